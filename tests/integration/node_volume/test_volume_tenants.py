"""Tenants and the driver's generations: who has which, and which may go."""

from pathlib import Path

from volume_room import NEW, Room

from aliquot.arbiter.client import ArbiterClient


def folder_of(room: Room) -> Path:
    """The tenant's folder of the room's tenant."""
    return Path(room.provisioned.record.socket).parent


def test_a_tenant_says_which_driver_its_container_is_shown(any_room: Room):
    """By the generation's name; the tenant's configuration leads to that generation's libraries."""
    current = any_room.driver.current

    assert current.name == any_room.provisioned.driver
    assert f"libcuda={current.libcuda.parent}/libcuda.so.1" in (folder_of(any_room) / "tenant.conf").read_text()
    assert current.origin in {mount.inside for mount in any_room.provisioned.edits.mounts}


def test_new_tenants_are_shown_the_new_driver(any_room: Room):
    """And those that are there keep theirs, which nobody prunes before they have left."""
    had = any_room.provisioned.driver
    any_room.upgrade()

    other = any_room.take("other")

    assert (had, NEW) == (any_room.provisioner.tenants[any_room.provisioned.key].driver, other.driver.partition("-")[0])
    assert [] == any_room.provisioner.prune(())
    any_room.provisioner.remove(any_room.provisioned.key)
    assert [] == any_room.provisioner.prune([had])
    assert [had] == any_room.provisioner.prune(())


def test_an_agent_that_starts_again_touches_nothing_of_a_running_container(any_room: Room):
    """After an upgrade as well: the folder, the mounts and the driver are those that the container has."""
    before = (folder_of(any_room) / "tenant.conf").stat()
    any_room.upgrade()
    any_room.provisioner = any_room.agent()

    provisioned = any_room.take("train", driver=any_room.provisioned.driver, again=True)

    assert any_room.provisioned == provisioned
    assert before == (folder_of(any_room) / "tenant.conf").stat()
    assert [] == any_room.provisioner.prune(())


def test_a_lost_checkpoint_takes_no_driver_away(any_room: Room):
    """Which driver a container has stands in its folder too, so it is kept for an agent that remembers nothing."""
    any_room.upgrade()
    any_room.provisioner = any_room.agent()

    provisioned = any_room.take("train", again=True)

    assert any_room.provisioned == provisioned
    assert [] == any_room.provisioner.prune(())


def test_a_container_whose_driver_was_lost_gets_the_current_one(any_room: Room):
    """Somebody emptied the state folder: what it had cannot be had again, and it starts all the same."""
    provisioned = any_room.take("train", driver="550.1-0123456789ab-01234567")

    assert any_room.driver.current.name == provisioned.driver


def test_a_tenant_with_another_driver_is_still_one(any_room: Room):
    """Its folder is made anew, and so is its place at the arbiter, with a socket that answers."""
    any_room.upgrade()
    any_room.driver.volume.prune(())

    provisioned = any_room.take("train", driver=any_room.provisioned.driver)

    assert any_room.driver.current.name == provisioned.driver
    assert Path(provisioned.record.socket).is_socket()
    with ArbiterClient(any_room.folder) as client:
        assert ["team/train/main"] == [tenant.name for gpu in client.status().gpus for tenant in gpu.tenants]


def test_a_tenant_that_is_not_enforced_is_shown_the_drivers_own_files(any_room: Room):
    """Nothing of the library is mounted, and the arbiter knows the tenant all the same."""
    provisioned = any_room.take("whole", whole="never")
    current = any_room.driver.current
    shown = {mount.inside.name: mount.host for mount in provisioned.edits.mounts}

    assert (current.libcuda, current.libnvml) == (shown["libcuda.so.1"], shown["libnvidia-ml.so.1"])
    assert not any(
        mount.host.is_relative_to(Path(provisioned.record.socket).parent) for mount in provisioned.edits.mounts
    )
    with ArbiterClient(any_room.folder) as client:
        tenants = {tenant.name: tenant.enforce for gpu in client.status().gpus for tenant in gpu.tenants}
    assert {"team/train/main": "all", "team/whole/main": "never"} == tenants

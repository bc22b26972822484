"""What the node agent answers kubelet, and what it makes for a container, without a cluster."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from kubelet_stand_in import AdmissionError, StartError
from node_room import NODE, Room
from waiting import eventually

from aliquot.kube.names import GPU_PERCENT, PLAN
from aliquot.kube.objects import PodStatus
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.node.allocation.checkpoint import PodKey, read_checkpoint
from aliquot.node.machine import NodeOffer
from aliquot.node.provisioner import TenantProvisioner


@pytest.fixture
def room() -> Iterator[Room]:
    """A node with two emulated V100."""
    with Room.opened() as made:
        yield made


def test_each_container_gets_what_its_plan_says(room: Room):
    """Equal containers, admitted in one order and started in another, each find their own GPU, memory and tenant."""
    names = [f"p{number}" for number in range(12)]
    for number, name in enumerate(names):
        room.pod(name, number % 2, 100, 512 + number)
    devices = {name: room.admit(name, 10) for name in names}

    for name in reversed(names):
        room.start(name)

    assert 12 == len(set(devices.values()))
    tenants = room.tenants()
    for number, name in enumerate(names):
        uuid = room.machine.gpus[number % 2].uuid
        assert f"CUDA_VISIBLE_DEVICES={number % 2}" in room.edits(devices[name])["env"]
        assert (uuid, 512 + number) == tenants[f"ns/{name}/main"]


def test_the_arbiter_is_told_up_to_where_memory_is_lent(room: Room):
    """A part is that of its GPU; a later plan of the pod changes it while the container runs, and others have none."""
    given = {}
    for name, most in (("none", ""), ("part", "75%"), ("size", "6144Mi")):
        room.started(name, 0, 100, 1024, most=most)
    owner, plan = room.pods.known["uid-size"].key, room.pod("size", 0, 100, 1024, most="4096Mi")
    before = room.provisioner.tenants["uid-size/main"].record.gpus[0].max_memory_mib
    room.provisioner.resize(owner, "main", plan)
    for key, tenant in room.provisioner.tenants.items():
        (gpu,) = tenant.record.gpus
        given[key] = gpu.max_memory_mib, gpu.device_mib

    assert 6144 == before
    assert {"uid-none/main": (0, 16384), "uid-part/main": (12288, 16384), "uid-size/main": (4096, 16384)} == given


def test_a_gpu_has_the_number_under_which_its_container_sees_it(room: Room):
    """A container that sees its own GPU alone finds it under 0, a privileged one under its index on the node."""
    room.provisioner.offer.machine = replace(room.machine, folder=None)
    seen = {}
    for name, privileged in (("plain", False), ("all", True)):
        device = room.started(name, 1, 100, 512, privileged=privileged)
        env = dict(variable.split("=", 1) for variable in room.edits(device)["env"])
        seen[name] = env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]

    assert {"plain": ("0", "PCI_BUS_ID"), "all": ("1", "PCI_BUS_ID")} == seen


def test_a_container_gets_the_device_node_of_its_plans_gpu():
    """The node is the one with the GPU's minor number, on a machine where that is not its index."""
    room = Room("a100x8", nodes=True)
    try:
        room.kubelet.wait_allocatable(GPU_PERCENT, 800)
        device = room.started("a", 4)
    finally:
        nodes = room.edits(device)["deviceNodes"]
        room.close()

    assert ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia6"] == [node["path"] for node in nodes]
    assert str(room.settings.emulated / "dev/nvidia6") == nodes[-1]["hostPath"]


def test_a_container_has_the_variables_of_its_pods_own_dialect(room: Room):
    """gpushare's programs compute their part of the memory from two variables; other pods do not have them."""
    room.pod("gpushare", 1, 10, 3072, dialect="aliyun")
    room.pod("plain", 1, 100, 1024)
    devices = {name: room.admit(name, size) for name, size in (("gpushare", 1), ("plain", 10))}
    for name in devices:
        room.start(name)
    theirs = [line for line in room.edits(devices["gpushare"])["env"] if line.startswith("ALIYUN")]

    assert ["_IDX=1", "_POD=3", "_CONTAINER=3", "_DEV=3"] == [
        line.removeprefix("ALIYUN_COM_GPU_MEM") for line in theirs
    ]
    assert not [line for line in room.edits(devices["plain"])["env"] if line.startswith("ALIYUN")]
    assert [("ns/plain", ()), ("ns/gpushare", tuple(theirs))] == sorted(
        ((str(a.owner), a.env) for a in read_checkpoint(room.settings.checkpoint)[0].allotments), key=lambda one: one[1]
    )


def test_an_init_containers_share_is_free_for_what_starts_after_it(room: Room):
    """Three tenths more than a GPU has are given one after another; who starts later ends what ran before."""
    key, whole = PodKey("uid-p", "ns", "p"), GpuUuid(room.machine.gpus[0].uuid)
    plans = {"warm": (800, 1), "side": (100, -2), "main": (500, 0)}
    plan = PodPlan(
        NODE, {name: ContainerPlan((Slice(whole, m, 1000, 1024),), init=init) for name, (m, init) in plans.items()}
    )
    had = []
    for name in ("warm", "side", "main", "side", "warm"):
        room.provisioner.provision(key, name, plan)
        had.append([name.rpartition("/")[2] for name in sorted(room.tenants())])

    assert [["warm"], ["side"], ["main", "side"], ["main", "side"], ["warm"]] == had
    assert ["uid-p/warm"] == room.provisioner.remove_init("uid-p")
    assert {} == room.tenants()


def init_status(container_id: str, state: str) -> PodStatus:
    """Of a pod that stays Initialized, as kubelet leaves it while init containers run again."""
    status = {"name": "main", "containerID": container_id, "state": {state: {}}}
    body = {"conditions": [{"type": "Initialized", "status": "True"}], "initContainerStatuses": [status]}
    return msgspec.convert(body, PodStatus)


def test_an_init_containers_share_stays_while_it_runs_again(room: Room):
    """What the API server says of its run before, and that the pod is Initialized, does not end it."""
    plan = room.pod("a", 0, 300, 1024)
    pod = room.pods.known["uid-a"]
    again = PodPlan(NODE, {"main": msgspec.structs.replace(plan.containers["main"], init=1)})
    pod.metadata.annotations[PLAN] = write_plan(again)
    pod.status = init_status("first", "terminated")
    room.admit("a", 30)
    room.start("a")
    had = []
    for container_id, state in (("first", "terminated"), ("second", "running"), ("second", "terminated")):
        pod.status = init_status(container_id, state)
        room.do(room.allocations.release_init())
        had.append(len(room.tenants()))

    assert [1, 1, 0] == had


def test_nothing_is_told_before_it_is_on_disk(room: Room):
    """The name that Allocate answers with is in the checkpoint, and so is its owner once the container starts."""
    room.pod("a", 1, 300, 1024)

    name = room.admit("a", 30).partition("=")[2]
    assert [(name, "")] == [(a.name, a.uid) for a in read_checkpoint(room.settings.checkpoint)[0].allotments]
    room.start("a")

    assert [(name, "uid-a")] == [(a.name, a.uid) for a in read_checkpoint(room.settings.checkpoint)[0].allotments]


def test_a_name_is_never_given_twice(room: Room):
    """The same ids, given to one pod after another, have another name each time."""
    seen = set()
    for number in range(5):
        room.pod(f"p{number}", 0, 1000, 1024)
        seen.add(room.admit(f"p{number}", 200))
        room.kubelet.end_pod("ns", f"p{number}")

    assert 5 == len(seen)


def test_a_start_again_finds_the_same_tenant(room: Room):
    """A container that starts again changes nothing: same file, one tenant."""
    device = room.started("a")
    before = (room.edits(device), room.tenants(), list(room.provisioner.tenants))

    room.start("a")

    assert before == (room.edits(device), room.tenants(), list(room.provisioner.tenants))


def test_a_pod_that_the_watch_has_not_brought_is_asked_for(room: Room):
    """Kubelet may know a pod before our copy of the API server's pods does."""
    room.started("late", late=True)

    assert "ns/late/main" in room.tenants()


def test_the_ids_of_the_planned_gpu_are_preferred(room: Room):
    """Where kubelet asks, the ids are those of the GPU that the waiting pod's plan names."""
    room.pod("a", 1, 300, 1024)

    allocated = room.kubelet.admit("ns", "a", "main", GPU_PERCENT, 30)

    assert {"g1"} == {device.partition("-")[0] for device in allocated.ids}


def test_what_does_not_fit_is_not_started(room: Room):
    """Beside those that are provisioned there has to be room, whatever a plan says; it fits when they have left."""
    room.pod("a", 0, 700, 1024)
    room.pod("b", 0, 700, 1024)
    for name in ("a", "b"):
        room.admit(name, 70)
    room.start("a")

    with pytest.raises(StartError, match="does not fit"):
        room.start("b")
    assert {"ns/a/main"} == set(room.tenants())
    assert "waits" in {outcome for _, _, outcome, _ in room.told}

    room.provisioner.remove_pod("uid-a")
    room.start("b")
    assert {"ns/b/main"} == set(room.tenants())


def test_a_start_waits_while_its_files_cannot_be_written(room: Room):
    """Where CDI files cannot be written the container waits, its pod is told why, and it starts when they can be."""
    room.pod("a", 0, 300, 1024)
    room.admit("a", 30)
    in_the_way = room.folder / "cdi"
    in_the_way.touch()

    with pytest.raises(StartError, match="could not be written"):
        room.start("a")
    assert "waits" == room.told[-1][2] and "is cdi-dir right?" in room.told[-1][3]

    in_the_way.unlink()
    room.start("a")
    assert "provisioned" == room.told[-1][2]


def test_a_pod_nobody_planned_is_refused_at_once(room: Room):
    """Without a plan there is nothing to wait for."""
    room.pod("a", 0, 300, 1024)
    room.pods.known["uid-a"].metadata.annotations.clear()
    room.admit("a", 30)

    with pytest.raises(StartError, match="it was not scheduled by Aliquot"):
        room.start("a")
    assert "refused" == room.told[-1][2]


def test_an_agent_that_is_not_fit_gives_nothing(room: Room):
    """All ids are unhealthy while something is amiss, and an Allocate that comes all the same is refused."""
    room.provisioner.offer.withheld = "the arbiter is away"
    room.do(room.plugin.send_devices())

    room.kubelet.wait_allocatable(GPU_PERCENT, 0)
    with pytest.raises(AdmissionError):
        room.admit("a", 30)


def test_the_plugin_registers_again_with_a_new_kubelet(room: Room):
    """Kubelet's restart, with all its sockets removed, is noticed; what was allocated starts as before."""
    room.pod("a", 0, 300, 1024)
    room.admit("a", 30)

    room.kubelet.restart()

    room.kubelet.wait_allocatable(GPU_PERCENT, 200)
    eventually(lambda: room.plugin.registrations == 2, "kubelet's answer to the second registration")
    assert room.wait_listed(2)
    room.start("a")


def test_a_new_arbiter_learns_who_is_here(room: Room):
    """An arbiter that comes back empty is told all tenants; one that remembers is told nothing new."""
    room.started("a", 1)
    assert "" == room.provisioner.check_arbiter()
    before = room.tenants()

    room.arbiter.kill()
    assert "no arbiter" in room.provisioner.check_arbiter()
    (room.folder / "tenants.json").unlink()
    room.arbiter.start()
    assert {} == room.tenants()

    assert "" == room.provisioner.check_arbiter()
    assert before == room.tenants()


def test_a_pod_of_the_same_name_takes_the_tenants_place(room: Room):
    """The second life of a stateful pod has the same name and another uid; the first one's tenant makes room."""
    first, second = room.pod("a", 0, 300, 1024), room.pod("a", 1, 300, 2048)
    key = room.pods.known["uid-a"].key

    room.provisioner.provision(key, "main", first)
    room.provisioner.remove(f"{key.uid}/main")
    room.provisioner.provision(type(key)("uid-2", key.namespace, key.pod), "main", second)

    assert {"ns/a/main": (room.machine.gpus[1].uuid, 2048)} == room.tenants()


def test_left_overs_are_swept(room: Room):
    """Folders and tenants without a container, as a crash leaves them, are removed."""
    plan = room.pod("a", 0, 300, 1024)
    room.provisioner.provision(room.pods.known["uid-a"].key, "main", plan)
    (room.settings.tenants / "stray").mkdir()
    crashed = room.provisioner
    after = TenantProvisioner(NODE, NodeOffer(room.machine), room.settings.tenants, room.folder, crashed.driver)

    assert {"stray", "ns/a/main"} <= set(after.sweep())

    assert {} == room.tenants()
    assert [] == list(room.settings.tenants.iterdir())


def test_a_tenant_that_was_had_is_kept_while_the_arbiter_is_away(room: Room):
    """An agent that comes back before its arbiter does keeps what running containers have, and tells it then."""
    plan = room.pod("a", 0, 300, 1024)
    key = room.pods.known["uid-a"].key
    room.arbiter.kill()

    provisioned = room.provisioner.provision(key, "main", plan, again=True)
    assert [] == room.provisioner.sweep()
    assert provisioned.edits.mounts[0].host.is_dir()

    room.arbiter.start()
    assert "" == room.provisioner.check_arbiter()
    assert {"ns/a/main"} == set(room.tenants())

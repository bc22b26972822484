"""Labels on devices, and what they allow (KubeShare 4.4)."""

import pytest
from scene import Scene, ask, node

from aliquot.placement.cluster import LedgerError, Placement


@pytest.fixture
def scene() -> Scene:
    """Two nodes of two GPUs."""
    return Scene(node("a", 2), node("b", 2, rank=1))


def test_affinity_draws_to_one_device(scene):
    """Tenants of one affinity label share a device, wherever else there is more room."""
    first = scene.place(300, affinity="team")
    scene.put("b/0", 500)

    assert first == scene.place(300, affinity="team") == scene.place(400, affinity="team")


def test_affinity_waits_when_its_device_is_full(scene):
    """A label never splits: the fourth waits."""
    for _ in range(3):
        scene.place(300, affinity="team")

    assert [] == scene.where(300, affinity="team")


def test_anti_affinity_keeps_apart(scene):
    """Each of four tenants of one anti-affinity label has its own device, and the fifth waits."""
    devices = [scene.place(100, anti_affinity="noisy")[0] for _ in range(4)]

    assert 4 == len(set(devices))
    assert [] == scene.where(100, anti_affinity="noisy")
    assert scene.where(100, anti_affinity="other")


def test_exclusion_lets_in_its_own_only(scene):
    """A device of one exclusion label takes that label alone; no label is a label of its own."""
    assert ["a/0"] == scene.place(100, exclusion="x")
    assert ["a/1"] == scene.place(100)
    assert ["a/0"] == scene.place(100, exclusion="x")
    assert ["b/0"] == scene.place(100, exclusion="y")


def test_a_named_vgpu_is_one_device(scene):
    """Equal names share a device, other names have another, and tenants without a name may join."""
    first = scene.place(300, gpu_id="one")

    assert first == scene.place(300, gpu_id="one")
    assert first != scene.place(300, gpu_id="two")
    assert first == scene.place(300)


def test_labels_leave_with_the_last_who_brought_them(scene):
    """A label stays on its device until its last tenant ends."""
    scene.place(300, "one", affinity="team")
    scene.place(300, "two", affinity="team")
    scene.put("b/0", 600)
    scene.decider.release("one")
    after_one = scene.where(700, affinity="team")
    scene.decider.release("two")

    assert (["a/0"], ["a/0"]) == (after_one, scene.where(700, affinity="team"))
    assert not scene.cluster.labels.affinity


def test_labels_hold_across_nodes(scene):
    """A device on another node is drawn to as well, and one that was chosen by others is refused."""
    scene.put("b/1", 300, affinity="team")

    assert ["b/1"] == scene.where(300, affinity="team")
    assert not isinstance(scene.decider.place_on(ask(300, affinity="team"), "a"), Placement)


def test_the_ledger_refuses_what_labels_forbid(scene):
    """A placement made before a label came cannot be written into the ledger after."""
    late = ask(300)
    found = scene.decider.decide(late)
    scene.place(300, exclusion="x")

    with pytest.raises(LedgerError, match='labels on the devices of node "a" keep "late" out'):
        scene.decider.commit("late", found, late)


def test_devices_are_named_by_uuid(scene):
    """Of named devices one is taken or none."""
    assert ["b/1"] == scene.where(300, gpu_uuid="b/1")
    assert ["a/1", "b/0"][:1] == scene.where(300, gpu_uuid="a/1,b/0")
    assert [] == scene.where(300, gpu_uuid="nowhere")

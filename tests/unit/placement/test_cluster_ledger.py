"""The ledger of a cluster: nodes that come and go, placements that do not fit, dumps."""

import json

import numpy as np
import pytest
from ledger import check
from scene import Scene, ask, node

from aliquot.model.requests import Slice
from aliquot.placement.cluster import Cluster, LedgerError, NodeSpec, Placement
from aliquot.placement.saved import BadLedger, dump, load
from aliquot.topology import Topology


def test_a_tenant_is_in_the_ledger_once():
    """A second placement for the same name is refused."""
    scene = Scene(node("a"))
    scene.place(300, "t")

    with pytest.raises(LedgerError, match='a tenant "t" is running already; choose another name'):
        scene.place(300, "t")


def test_the_ledger_refuses_what_labels_forbid():
    """A placement made before a label came cannot be written into the ledger after."""
    scene, late = Scene(node("a", 2), node("b", 2, rank=1)), ask(300)
    found = scene.decider.decide(late)
    scene.place(300, exclusion="x")

    with pytest.raises(LedgerError, match='labels on the devices of node "a" keep "late" out'):
        scene.decider.commit("late", found, late)


def test_a_machine_has_64_gpus_at_most():
    """A node with more is refused; the driver knows no machine with as many."""
    with pytest.raises(LedgerError, match='node "a" has 65 GPUs; a machine has 64 at most'):
        Cluster([node("a", 65)])


@pytest.mark.parametrize(
    ("slices", "milli", "says"),
    [
        ([("a/0", 600)], 600, "does not fit on a/0 any more"),
        ([("b/0", 300)], 300, 'names b/0, which is not on node "a"'),
        ([("a/1", 300), ("a/1", 300)], 600, "names a GPU twice"),
        ([("a/1", 300)], 500, "gives another part of GPUs than it asks for"),
    ],
)
def test_a_placement_that_does_not_fit_changes_nothing(slices, milli, says):
    """What contradicts the ledger is refused in one sentence, and the ledger is as before."""
    scene = Scene(node("a", 2), node("b", 1))
    scene.put("a/0", 500)
    before = dump(scene.cluster)
    placement = Placement("a", tuple(Slice(gpu, part, 1000, 10) for gpu, part in slices))

    with pytest.raises(LedgerError, match=says):
        scene.cluster.reserve("t", placement, ask(milli))
    assert before == dump(scene.cluster)


def test_a_node_that_fails_takes_its_tenants_along():
    """Removing a node tells who was on it, frees their names and labels, and nothing is placed there."""
    scene = Scene(node("a"), node("b", rank=1))
    scene.place(300, "t", affinity="team")

    assert ("t",) == scene.cluster.remove_node("a")
    assert ["b/0"] == scene.place(300, "t", affinity="team")
    assert {"b": 1} == scene.cluster.index


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (node("a"), 'a node "a" is here already'),
        (NodeSpec("c", node("a").gpus), 'GPU a/0 of node "c" is on another node already'),
        (NodeSpec("c", node("c").gpus * 2), 'node "c" names a GPU twice'),
        (NodeSpec("c", node("c", 2).gpus, topology=Topology.of([["X"]])), 'the topology of node "c" has 1 GPUs'),
    ],
)
def test_a_node_that_contradicts_the_ledger_is_refused(spec, says):
    """Names and UUIDs are unique, and a topology is of as many GPUs as the node has."""
    cluster = Cluster([node("a")])

    with pytest.raises(LedgerError, match=says):
        cluster.add_node(spec)
    assert ["a"] == [known.name for known in cluster.nodes]


def test_the_columns_follow_the_ledger():
    """Columns show what is left, -1 where there is no device, and a version that changes with the node."""
    scene = Scene(node("a", 2), node("b", 1))
    before = scene.cluster.version.copy()
    scene.put("a/1", 300, cpu_milli=1000, gpu_mib=1000)

    assert [[1000, 700], [1000, -1]] == scene.cluster.free_milli.tolist()
    assert [[16384, 15384], [16384, -1]] == scene.cluster.free_mib.tolist()
    assert ([63000, 64000], [1700, 1000]) == (scene.cluster.cpu_free.tolist(), scene.cluster.free_total.tolist())
    assert [True, False] == (before != scene.cluster.version).tolist()


def busy_scene() -> Scene:
    """Two nodes with tenants of every kind."""
    wired = Topology.of([["X", "NV2"], ["NV2", "X"]], numa=[0, 1], cores=[[0, 1], [2, 3]])
    scene = Scene(node("a", 2, topology=wired), node("b", ["NVIDIA A10"], rank=3))
    scene.place(300, "ns/one", affinity="team", gpu_mib=2048, cpu_milli=500, priority=7, near_cores=2)
    scene.place(1000, "ns/two", models=("V100",), limit_milli=1000)
    scene.place(0, "ns/cpu", cpu_milli=100)
    scene.cluster.set_cordoned("b")
    return scene


def test_a_ledger_that_is_saved_is_loaded_as_it_was():
    """A dump is JSON, and loading it gives an equal ledger, columns and labels."""
    scene = busy_scene()
    loaded = load(json.loads(json.dumps(dump(scene.cluster))))
    check(loaded)

    assert dump(scene.cluster) == dump(loaded)
    assert np.array_equal(scene.cluster.free_mib, loaded.free_mib)
    assert scene.cluster.labels == loaded.labels


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "of version 2, this program reads version 1"),
        ({"nodes": [{"name": "a"}]}, "cannot be read: KeyError"),
        ({"tenants": {"t": {"node": "a", "slices": [1], "ask": {}}}}, "cannot be read: TypeError"),
    ],
)
def test_a_ledger_that_cannot_be_read_is_refused(change, says):
    """Another version or a missing field is told in one sentence."""
    with pytest.raises(BadLedger, match=says):
        load(dump(busy_scene().cluster) | change)


def test_a_trial_leaves_no_trace():
    """What is released, reserved and cordoned in a trial is taken back at its end, and nodes keep their versions."""
    scene = busy_scene()
    before = (dump(scene.cluster), scene.cluster.version.tolist())
    with scene.cluster.trial():
        held = scene.cluster.release("ns/one")
        scene.cluster.set_cordoned("b", False)
        with scene.cluster.trial():
            scene.cluster.release("ns/two")
        scene.cluster.reserve("ns/three", held.placement, held.ask)
        within = (sorted(scene.cluster.tenants), scene.cluster.version.tolist())

    check(scene.cluster)
    assert ["ns/cpu", "ns/three", "ns/two"] == within[0]
    assert before[1] != within[1]
    assert before == (dump(scene.cluster), scene.cluster.version.tolist())


def test_a_trial_that_fails_is_taken_back_too():
    """An exception ends a trial as its end does."""
    scene = busy_scene()
    before = dump(scene.cluster)["tenants"]
    with pytest.raises(LedgerError), scene.cluster.trial():
        scene.cluster.release("ns/one")
        scene.cluster.reserve("ns/two", Placement("a"), ask(0))

    assert before == dump(scene.cluster)["tenants"]


def test_a_change_after_a_trial_has_a_version_of_its_own():
    """What was remembered of a node in a trial is never mistaken for what it is later."""
    scene = busy_scene()
    number = scene.cluster.index["a"]
    with scene.cluster.trial():
        scene.cluster.release("ns/one")
        within = scene.cluster.version.item(number)
    scene.cluster.release("ns/two")

    assert within < scene.cluster.version.item(number)

"""From device ids to the container: exactly one answer, or a refusal."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.node.allocation.checkpoint import Allotment, PodKey
from aliquot.node.allocation.kubelet import (
    Claim,
    ContainerDevices,
    Disagreement,
    PodDevicesEntry,
    UnknownOwner,
    identify,
)

POD = PodKey("uid-1", "ns", "a")
OTHER = PodKey("uid-2", "ns", "b")
PODS = {POD.uid: POD, OTHER.uid: OTHER}
IDS = frozenset({"g0-000", "g0-001"})
ROW = ContainerDevices("ns", "a", "main", IDS)
ENTRY = PodDevicesEntry("uid-1", "main", IDS, ("first",))


@st.composite
def nodes(draw: st.DrawFn):
    """A node's kubelet accounts: pods with containers of disjoint ids, some with an init container of the same ids."""
    held, noted, pods, expected, number = [], [], {}, {}, 0
    for p in range(draw(st.integers(1, 6))):
        key = PodKey(f"uid-{p}", draw(st.sampled_from(["x", "y"])), f"pod-{p}")
        pods[key.uid] = key
        for c in range(draw(st.integers(1, 3))):
            ids = frozenset(f"g0-{number + i:03}" for i in range(draw(st.integers(1, 3))))
            number += len(ids)
            names = [(f"c{c}", f"name-{p}-{c}")]
            if draw(st.booleans()):
                names.append((f"init{c}", f"name-{p}-{c}-init"))
            held.append(ContainerDevices(key.namespace, key.pod, f"c{c}", ids))
            noted += [PodDevicesEntry(key.uid, container, ids, (name,)) for container, name in names]
            expected[ids] = {Claim(name, key, container) for container, name in names}
    return draw(st.permutations(held)), draw(st.permutations(noted)), pods, expected


@given(nodes())
def test_every_container_is_found_by_its_ids(node):
    """Whatever else is on the node and in whatever order it is told, ids lead to their own containers and names."""
    held, noted, pods, expected = node

    for ids, claims in expected.items():
        assert claims == set(identify(ids, held, noted, [], pods))


def test_kubelets_file_alone_is_enough():
    """A plain init container is in no line of PodResources; kubelet's own file names it."""
    assert [Claim("first", POD, "main")] == identify(IDS, [], [ENTRY], [], PODS)


def test_without_kubelets_file_two_other_accounts_have_to_be_sure():
    """If kubelet's file cannot be read, one line of PodResources and one of our names are an answer, more are none."""
    ours = Allotment("first", tuple(IDS))

    assert [Claim("first", POD, "main")] == identify(IDS, [ROW], None, [ours], PODS)
    for held, names in (([], [ours]), ([ROW], []), ([ROW], [ours, Allotment("second", tuple(IDS))])):
        with pytest.raises(UnknownOwner, match="kubelet's checkpoint cannot be read"):
            identify(IDS, held, None, names, PODS)


def test_accounts_that_contradict_each_other_are_refused():
    """Two pods for the same ids, in one account or between two, are never decided between."""
    with pytest.raises(Disagreement, match="2 pods"):
        identify(IDS, [], [ENTRY, replace(ENTRY, uid="uid-2")], [], PODS)
    with pytest.raises(Disagreement, match="ns/a's by kubelet's checkpoint and ns/b's by its PodResources"):
        identify(IDS, [replace(ROW, pod="b")], [ENTRY], [], PODS)


def test_ids_that_only_overlap_are_others():
    """A container with more or fewer of the ids is not the one."""
    with pytest.raises(UnknownOwner):
        identify(IDS, [replace(ROW, ids=IDS | {"g0-002"})], [replace(ENTRY, ids=frozenset({"g0-000"}))], [], PODS)


def test_a_pod_that_is_not_known_yet_is_waited_for():
    """The pod's uid has to be known, since the plan is looked up by it."""
    with pytest.raises(UnknownOwner, match="uid-1 that holds g0-000, g0-001 is not known"):
        identify(IDS, [ROW], [ENTRY], [], {})

"""The ledger after a crash: kubelet first, our checkpoint next, the pods' annotations last, differences told."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.node.checkpoint import Allotment, PodKey
from aliquot.node.identity import Held, Noted
from aliquot.node.recovery import Known, recover

POD = PodKey("uid-1", "ns", "a")
IDS = ("g0-000", "g0-001")
KEPT = Allotment("first", IDS, "uid-1", "ns", "a", "main", "plan")
HELD = Held("ns", "a", "main", frozenset(IDS))
NOTED = Noted("uid-1", "main", frozenset(IDS), ("first",))
PODS = {"uid-1": Known(POD, "plan")}


def test_when_all_agree_nothing_is_told():
    """Three accounts of the same leave the ledger as it was."""
    found = recover([HELD], [NOTED], [KEPT], PODS)

    assert ((KEPT,), ()) == (found.allotments, found.differences)


def test_a_lost_checkpoint_is_rebuilt_from_kubelet_and_annotations():
    """Name, ids and owner come from kubelet, the plan from the pod; that it was needed is told."""
    found = recover([HELD], [NOTED], [], PODS)

    assert (KEPT,) == found.allotments
    assert "was not in our checkpoint" in found.differences[0]


def test_what_kubelet_dropped_is_dropped():
    """A name that kubelet's file does not have any more stands for nothing."""
    found = recover([], [], [KEPT], PODS)

    assert () == found.allotments
    assert ("first of ns/a is not with kubelet any more",) == found.differences


def test_an_empty_podresources_is_no_proof():
    """A kubelet that was just started knows none of its pods; what its file and ours have stands."""
    assert (KEPT,) == recover([], [NOTED], [KEPT], PODS).allotments
    assert (KEPT,) == recover([], None, [KEPT], PODS).allotments


def test_kubelet_counts_before_our_checkpoint():
    """Another owner or other ids with kubelet are taken over from kubelet."""
    pods = PODS | {"uid-2": Known(PodKey("uid-2", "ns", "b"), "other")}
    moved = recover([], [Noted("uid-2", "main", frozenset(IDS), ("first",))], [KEPT], pods)
    grown = recover([], [Noted("uid-1", "main", frozenset({*IDS, "g0-002"}), ("first",))], [KEPT], PODS)

    assert (replace(KEPT, uid="uid-2", pod="b", plan="other"),) == moved.allotments
    assert "first is main's of pod uid uid-2 with kubelet, ns/a's with us" in moved.differences
    assert (replace(KEPT, ids=(*IDS, "g0-002")),) == grown.allotments


def test_podresources_can_take_an_owner_away():
    """When another pod holds the ids, ours is not believed; who it is will be asked again before it starts."""
    found = recover([Held("ns", "b", "main", frozenset(IDS))], None, [KEPT], PODS)

    assert (Allotment("first", IDS),) == found.allotments
    assert ("first is ns/a's with us, ns/b holds its ids",) == found.differences


def test_a_plan_that_was_edited_later_does_not_count():
    """The plan by which a container got its share stands, whatever its annotation says now; the edit is told."""
    found = recover([HELD], [NOTED], [KEPT], {"uid-1": Known(POD, "edited")})

    assert (KEPT,) == found.allotments
    assert ("the plan of ns/a was changed after its container main got its share by it",) == found.differences


def test_pods_that_are_gone_or_over_leave_the_books():
    """An allotment lives as long as its pod."""
    assert () == recover([], None, [KEPT], {}).allotments
    assert () == recover([], [NOTED], [KEPT], {"uid-1": Known(POD, "plan", ended=True)}).allotments


def test_without_the_api_server_the_checkpoint_is_gone_on_with():
    """What only the API server could tell is left as it was."""
    assert (KEPT,) == recover([HELD], [NOTED], [KEPT], None).allotments


def test_ids_that_nobody_named_are_told():
    """A container that holds ids which no allotment has is not passed over in silence."""
    found = recover([HELD], [], [], PODS)

    assert ("ns/a container main holds 2 ids that we never named",) == found.differences

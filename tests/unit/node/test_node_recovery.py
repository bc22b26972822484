"""The ledger after a crash: what any record has of a container that lives stands, and differences are told."""

import pytest
from msgspec.structs import replace

from aliquot.kube.names import PLAN
from aliquot.kube.objects import ContainerStates, ContainerStatus, Meta, PodStatus, StateDetail
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.node.allocation.checkpoint import Allotment, PodKey
from aliquot.node.allocation.kubelet import ContainerDevices, PodDevicesEntry
from aliquot.node.allocation.recovery import recover, unrecorded
from aliquot.node.pods import NodePod

POD = PodKey("uid-1", "ns", "a")
IDS = ("g0-000", "g0-001")
KEPT = Allotment("first", IDS, "uid-1", "ns", "a", "main", "plan")
HELD = ContainerDevices("ns", "a", "main", frozenset(IDS))
NOTED = PodDevicesEntry("uid-1", "main", frozenset(IDS), ("first",))
RUNS = ContainerStates(running=StateDetail())


def pod(key: PodKey = POD, plan: str = "plan", *, phase: str = "", running: tuple[str, ...] = ()) -> NodePod:
    """A pod as the API server has it."""
    statuses = [ContainerStatus(name, state=RUNS) for name in running]
    meta = Meta(name=key.pod, namespace=key.namespace, uid=key.uid, annotations={PLAN: plan})
    return NodePod(meta, status=PodStatus(phase=phase, container_statuses=statuses))


PODS = {"uid-1": pod()}


def test_when_all_agree_nothing_is_told():
    """Three accounts of the same leave the ledger as it was."""
    found = recover([HELD], [NOTED], [KEPT], PODS)

    assert ((KEPT,), ()) == (found.allotments, found.differences)


def test_a_lost_checkpoint_is_rebuilt_from_kubelet_and_annotations():
    """Name, ids and owner come from kubelet, the plan from the pod; that it was needed is told."""
    found = recover([HELD], [NOTED], [], PODS)

    assert (KEPT,) == found.allotments
    assert "was not in our checkpoint" in found.differences[0]


@pytest.mark.parametrize("pods", [PODS, None])
def test_what_kubelet_lost_stays_with_its_pod(pods: dict[str, NodePod] | None):
    """A kubelet that lost its checkpoint goes on running its containers; only the pod's end ends their shares."""
    found = recover([], [], [KEPT], pods)

    assert (KEPT,) == found.allotments
    assert ("first of ns/a is not with kubelet any more; it stays with it",) == found.differences


def test_a_pod_deleted_by_force_keeps_its_share_while_its_processes_run():
    """The API server has no such pod any more, its container does not know that yet."""
    found = recover([], [], [KEPT], {}, {"uid-1"})

    assert (KEPT,) == found.allotments
    assert "the node's processes" in found.differences[-1]
    assert () == recover([], [], [KEPT], {}, {"uid-2"}).allotments


def test_a_running_container_keeps_ids_that_kubelet_gave_again():
    """A kubelet without its checkpoint gives the ids of a container that runs to a new pod too."""
    runs = {"uid-1": pod(running=("main",))}

    found = recover([ContainerDevices("ns", "b", "main", frozenset(IDS))], [], [KEPT], runs)

    assert KEPT in found.allotments


def test_a_pod_deleted_by_force_keeps_ids_that_kubelet_gave_again_while_its_processes_run():
    """Only the end of its processes frees the share, whatever kubelet and the API server have forgotten of it."""
    other = ContainerDevices("ns", "b", "main", frozenset(IDS))

    assert KEPT in recover([other], [], [KEPT], {}, {"uid-1"}).allotments


def test_a_share_that_no_record_has_is_found_by_its_folder():
    """Kubelet's and our checkpoint are lost: a container that runs and has a tenant's folder has its share again."""
    plan = write_plan(PodPlan("node-1", {"main": ContainerPlan((Slice(GpuUuid("GPU-1"), 300, 300, 1024),))}))
    pods = [pod(plan=plan, running=("main",)), pod(PodKey("uid-2", "ns", "b"), plan)]

    (found,) = unrecorded([], pods, lambda owner, container: True)

    assert (POD, "main", plan) == (found.owner, found.container, found.plan)
    assert [] == unrecorded([found], pods, lambda owner, container: True)
    assert [] == unrecorded([], pods, lambda owner, container: False)


def test_an_empty_podresources_is_no_proof():
    """A kubelet that was just started knows none of its pods; what its file and ours have stands."""
    assert (KEPT,) == recover([], [NOTED], [KEPT], PODS).allotments
    assert (KEPT,) == recover([], None, [KEPT], PODS).allotments


def test_kubelet_counts_before_our_checkpoint():
    """Another owner or other ids with kubelet are taken over from kubelet."""
    pods = PODS | {"uid-2": pod(PodKey("uid-2", "ns", "b"), "other")}
    moved = recover([], [PodDevicesEntry("uid-2", "main", frozenset(IDS), ("first",))], [KEPT], pods)
    grown = recover([], [PodDevicesEntry("uid-1", "main", frozenset({*IDS, "g0-002"}), ("first",))], [KEPT], PODS)

    assert (replace(KEPT, uid="uid-2", pod="b", plan="other"),) == moved.allotments
    assert "first is main's of pod uid uid-2 with kubelet, ns/a's with us" in moved.differences
    assert (replace(KEPT, ids=(*IDS, "g0-002")),) == grown.allotments


def test_podresources_can_take_an_owner_away():
    """When another pod holds the ids, ours is not believed; who it is will be asked again before it starts."""
    found = recover([ContainerDevices("ns", "b", "main", frozenset(IDS))], None, [KEPT], PODS)

    assert (Allotment("first", IDS),) == found.allotments
    assert ("first is ns/a's with us, ns/b holds its ids",) == found.differences


def test_a_plan_that_was_edited_later_does_not_count():
    """The plan by which a container got its share stands, whatever its annotation says now; the edit is told."""
    found = recover([HELD], [NOTED], [KEPT], {"uid-1": pod(plan="edited")})

    assert (KEPT,) == found.allotments
    assert ("the plan of ns/a was changed after its container main got its share by it",) == found.differences


def test_pods_that_are_gone_or_over_leave_the_ledger():
    """An allotment lives as long as its pod."""
    assert () == recover([], None, [KEPT], {}).allotments
    assert () == recover([], [NOTED], [KEPT], {"uid-1": pod(phase="Succeeded")}).allotments


def test_without_the_api_server_the_checkpoint_is_gone_on_with():
    """What only the API server could tell is left as it was."""
    assert (KEPT,) == recover([HELD], [NOTED], [KEPT], None).allotments


def test_ids_that_nobody_named_are_told():
    """A container that holds ids which no allotment has is not passed over in silence."""
    found = recover([HELD], [], [], PODS)

    assert ("ns/a container main holds 2 ids that we never named",) == found.differences

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


OTHER_HOLDS = ContainerDevices("ns", "b", "main", frozenset(IDS))
MORE_IDS = (*IDS, "g0-002")
WITH_B = PODS | {"uid-2": pod(PodKey("uid-2", "ns", "b"), "other")}


@pytest.mark.parametrize(
    ("held", "noted", "kept", "pods", "stands", "told"),
    [
        pytest.param([HELD], [NOTED], [KEPT], PODS, (KEPT,), (), id="all agree"),
        pytest.param(
            [HELD], [NOTED], [], PODS, (KEPT,), ("first of container main, pod uid uid-1, was not in our checkpoint",),
            id="our checkpoint is lost",
        ),
        *(
            pytest.param(
                [], [], [KEPT], pods, (KEPT,), ("first of ns/a is not with kubelet any more; it stays with it",),
                id=f"kubelet lost it, {name}",
            )
            for name, pods in (("its pod lives", PODS), ("the API server is away", None))
        ),
        pytest.param([], [NOTED], [KEPT], PODS, (KEPT,), (), id="an empty PodResources is no proof"),
        pytest.param([], None, [KEPT], PODS, (KEPT,), (), id="nor is one beside an unreadable file"),
        pytest.param(
            [], [PodDevicesEntry("uid-2", "main", frozenset(IDS), ("first",))], [KEPT], WITH_B,
            (replace(KEPT, uid="uid-2", pod="b", plan="other"),),
            ("first is main's of pod uid uid-2 with kubelet, ns/a's with us",), id="kubelet names another owner",
        ),
        pytest.param(
            [], [PodDevicesEntry("uid-1", "main", frozenset(MORE_IDS), ("first",))], [KEPT], PODS,
            (replace(KEPT, ids=MORE_IDS),), None, id="kubelet has more ids",
        ),
        pytest.param(
            [OTHER_HOLDS], None, [KEPT], PODS, (Allotment("first", IDS),),
            ("first is ns/a's with us, ns/b holds its ids",), id="another pod holds its ids: who it is is asked again",
        ),
        pytest.param(
            [HELD], [NOTED], [KEPT], {"uid-1": pod(plan="edited")}, (KEPT,),
            ("the plan of ns/a was changed after its container main got its share by it",), id="its plan was edited",
        ),
        pytest.param([], None, [KEPT], {}, (), None, id="its pod is gone"),
        pytest.param([], [NOTED], [KEPT], {"uid-1": pod(phase="Succeeded")}, (), None, id="its pod is over"),
        pytest.param([HELD], [NOTED], [KEPT], None, (KEPT,), None, id="all but the API server agree"),
        pytest.param(
            [HELD], [], [], PODS, (), ("ns/a container main holds 2 ids that we never named",), id="ids without a name"
        ),
    ],
)  # fmt: skip
def test_what_the_records_say_together_stands(held, noted, kept, pods, stands, told):
    """An allotment lives as long as its pod, by kubelet's file, then ours, and every difference is told."""
    found = recover(held, noted, kept, pods)

    assert stands == found.allotments
    assert told in (None, found.differences)


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

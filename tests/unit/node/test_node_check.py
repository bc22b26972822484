"""The allocation check: who does not have what it asked for, and what is done about it."""

import msgspec
import pytest

from aliquot.node.allocation.kubelet import ContainerDevices, PodDevicesEntry
from aliquot.node.allocation.outcomes import WAITS_S, Unserved, findings, missing
from aliquot.node.pods import NodePod

RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "t"}}}]}
IDS = frozenset({"g0-000"})


def pod(status: dict, *, asks: bool = True, controlled: bool = False, **metadata: str) -> NodePod:
    """A pod of one container."""
    limits = {"aliquot.dev/gpu-percent": "30"} if asks else {}
    owners = [{"kind": "ReplicaSet", "controller": True}] if controlled else []
    body = {
        "metadata": {"name": "a", "namespace": "ns", "uid": "uid-1", "ownerReferences": owners, **metadata},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": status,
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=NodePod)


def test_a_container_that_runs_and_is_in_no_record_misses_its_share():
    """One record of it is enough, ours or either of kubelet's."""
    runs = pod(RUNS)

    assert [(runs.key, "main")] == list(missing([runs], [], [], []))
    assert [] == list(missing([runs], [ContainerDevices("ns", "a", "main", IDS)], [], []))
    assert [] == list(missing([runs], [], [PodDevicesEntry("uid-1", "main", IDS)], []))
    assert [] == list(missing([runs], [], [], [("uid-1", "main")]))


def test_a_container_that_kubelet_has_no_devices_for_misses_its_share():
    """It was admitted before kubelet knew the devices and waits for ever; one that waits for its image does not."""

    def waiting(reason: str) -> NodePod:
        container = {"name": "main", "state": {"waiting": {"reason": reason}}}
        return pod({"phase": "Pending", "containerStatuses": [container]})

    assert [(waiting("").key, "main")] == list(missing([waiting("CreateContainerConfigError")], [], [], []))
    assert [] == list(missing([waiting("ImagePullBackOff"), waiting("ContainerCreating")], [], [], []))


@pytest.mark.parametrize("reason", ["CreateContainerConfigError", "CrashLoopBackOff"])
def test_a_container_that_ended_and_whose_devices_kubelet_lost_misses_its_share(reason: str):
    """Kubelet cannot start it again, which our record of it does not change; a record of kubelet's would."""
    ended = pod({"phase": "Running", "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason}}}]})
    ours = [("uid-1", "main")]

    assert [(ended.key, "main")] == list(missing([ended], [], [], ours))
    assert [] == list(missing([ended], [], [PodDevicesEntry("uid-1", "main", IDS)], ours))


def test_pods_that_ask_for_no_share_or_do_not_run_are_in_order():
    """Nothing is found where nothing was asked, nothing runs, or the pod is on its way out."""
    leaving = pod(RUNS, deletionTimestamp="2026-01-01T00:00:00Z")
    pods = [pod(RUNS, asks=False), pod({"phase": "Pending"}), leaving]

    assert [] == list(missing(pods, [], [], []))
    assert [] == findings(pods, {})


def test_a_pod_that_runs_without_its_share_for_long_is_replaced_where_a_controller_does_that():
    """Its share is reserved and unused; without a controller it is only reported."""
    lacks = {"uid-1": Unserved("missing", "kubelet gave it no device", 10.0)}

    (bare,), (owned,) = (findings([pod(RUNS, controlled=c)], lacks, now_s=10 + WAITS_S) for c in (False, True))

    assert ("missing", "kubelet gave it no device", False) == (bare.kind, bare.why, bare.replace)
    assert owned.replace
    assert [] == findings([pod(RUNS, controlled=True)], lacks, now_s=9 + WAITS_S)


def test_what_kubelet_did_not_admit_is_replaced_where_a_controller_does_that():
    """A pod that failed at admission for its devices is never run by kubelet again."""
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}

    (bare,), (owned,) = findings([pod(status)], {}), findings([pod(status, controlled=True)], {})

    assert ("failed", "no healthy devices", False) == (bare.kind, bare.why, bare.replace)
    assert owned.replace
    assert [] == findings([pod({"phase": "Failed", "reason": "Evicted"}, controlled=True)], {})


def test_a_refused_pod_is_replaced_where_a_controller_does_that():
    """A plan that can never be honoured is worth another try elsewhere."""
    (found,) = findings(
        [pod({"phase": "Pending"}, controlled=True)], {"uid-1": Unserved("refused", "no such GPU", 0.0)}
    )

    assert ("refused", "no such GPU", True) == (found.kind, found.why, found.replace)


def test_a_pod_that_waits_for_long_and_runs_nothing_is_replaced_where_a_controller_does_that():
    """As where the share of its init container was given to another while its other containers ran."""
    lacks = {"uid-1": Unserved("waits", "does not fit any more", 10.0)}
    waiting = pod({"phase": "Pending"}, controlled=True)

    (found,) = findings([waiting], lacks, now_s=10 + WAITS_S)

    assert ("waits", "does not fit any more", True) == (found.kind, found.why, found.replace)
    assert [] == findings([waiting], lacks, now_s=9 + WAITS_S)
    assert [] == findings([pod(RUNS, controlled=True)], lacks, now_s=10 + WAITS_S)

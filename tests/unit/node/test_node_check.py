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


ENTRY, OURS = PodDevicesEntry("uid-1", "main", IDS), ("uid-1", "main")


def waiting(reason: str, phase: str = "Pending") -> NodePod:
    """A pod whose container waits for that reason, after it ended where the pod's phase is Running."""
    return pod({"phase": phase, "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason}}}]})


@pytest.mark.parametrize(
    ("lacks", "made", "held", "noted", "ours"),
    [
        pytest.param(True, pod(RUNS), [], [], [], id="it runs and is in no record"),
        pytest.param(False, pod(RUNS), [ContainerDevices("ns", "a", "main", IDS)], [], [], id="PodResources has it"),
        pytest.param(False, pod(RUNS), [], [ENTRY], [], id="kubelet's file has it"),
        pytest.param(False, pod(RUNS), [], [], [OURS], id="our record has it"),
        pytest.param(True, waiting("CreateContainerConfigError"), [], [], [], id="kubelet has no devices for it"),
        pytest.param(False, waiting("ImagePullBackOff"), [], [], [], id="it waits for its image"),
        pytest.param(False, waiting("ContainerCreating"), [], [], [], id="it is being made"),
        *(
            pytest.param(lacks, waiting(reason, "Running"), [], noted, [OURS], id=f"{reason}: {name}")
            for reason in ("CreateContainerConfigError", "CrashLoopBackOff")
            for lacks, noted, name in ((True, [], "kubelet lost its devices"), (False, [ENTRY], "kubelet has them"))
        ),
        pytest.param(False, pod(RUNS, asks=False), [], [], [], id="it asks for no share"),
        pytest.param(False, pod({"phase": "Pending"}), [], [], [], id="nothing runs"),
        pytest.param(False, pod(RUNS, deletionTimestamp="2026-01-01T00:00:00Z"), [], [], [], id="it is on its way out"),
    ],
)
def test_a_container_misses_its_share(lacks: bool, made: NodePod, held, noted, ours):
    """One that runs without any record of it, or that kubelet has no devices for, whatever our record says."""
    assert [(made.key, "main")] * lacks == list(missing([made], held, noted, ours))
    assert [] == findings([made], {})


NOT_ADMITTED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}


@pytest.mark.parametrize(
    ("kind", "why", "status", "since_s"),
    [
        pytest.param("failed", "no healthy devices", NOT_ADMITTED, None, id="kubelet did not admit it"),
        pytest.param("", "", {"phase": "Failed", "reason": "Evicted"}, None, id="it failed for another reason"),
        pytest.param("refused", "no such GPU", {"phase": "Pending"}, 0.0, id="its plan can never be honoured"),
        pytest.param("waits", "does not fit any more", {"phase": "Pending"}, 10.0, id="it waits for long"),
        pytest.param("", "does not fit any more", {"phase": "Pending"}, 11.0, id="it waits for a while"),
        pytest.param("", "does not fit any more", RUNS, 10.0, id="its other containers run"),
    ],
)
def test_what_cannot_start_is_replaced_where_a_controller_does_that(kind: str, why: str, status: dict, since_s):
    """A pod that kubelet never runs again, or whose share cannot be had, is worth another try elsewhere."""
    lacks = {"uid-1": Unserved(kind or "waits", why, since_s)} if since_s is not None else {}

    found = findings([pod(status, controlled=True)], lacks, now_s=10 + WAITS_S)
    bare = findings([pod(status)], lacks, now_s=10 + WAITS_S)

    assert [(kind, why, True)] * bool(kind) == [(each.kind, each.why, each.replace) for each in found]
    assert not any(each.replace for each in bare)


def test_a_pod_that_runs_without_its_share_for_long_is_replaced_where_a_controller_does_that():
    """Its share is reserved and unused; without a controller it is only reported."""
    lacks = {"uid-1": Unserved("missing", "kubelet gave it no device", 10.0)}

    (bare,), (owned,) = (findings([pod(RUNS, controlled=c)], lacks, now_s=10 + WAITS_S) for c in (False, True))

    assert ("missing", "kubelet gave it no device", False) == (bare.kind, bare.why, bare.replace)
    assert owned.replace
    assert [] == findings([pod(RUNS, controlled=True)], lacks, now_s=9 + WAITS_S)

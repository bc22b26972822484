"""The allocation check: who does not have what it asked for, and what is done about it."""

from __future__ import annotations

import msgspec

from aliquot.node.check import findings
from aliquot.node.identity import Held, Noted
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


def test_a_container_that_runs_without_devices_slipped_through():
    """It is found only when kubelet's accounts can be read, and none of them has it."""
    (found,) = findings([pod(RUNS)], [], [], {})

    assert ("slipped", "main", False) == (found.kind, found.container, found.replace)
    assert [] == findings([pod(RUNS)], [], None, {})
    assert [] == findings([pod(RUNS)], [Held("ns", "a", "main", IDS)], [], {})
    assert [] == findings([pod(RUNS)], [], [Noted("uid-1", "main", IDS)], {})


def test_pods_that_ask_for_no_share_or_do_not_run_are_in_order():
    """Nothing is found where nothing was asked, nothing runs, or the pod is on its way out."""
    leaving = pod(RUNS, deletionTimestamp="2026-01-01T00:00:00Z")

    assert [] == findings([pod(RUNS, asks=False), pod({"phase": "Pending"}), leaving], [], [], {})


def test_what_kubelet_did_not_admit_is_replaced_where_a_controller_does_that():
    """A pod that failed at admission for its devices is never run by kubelet again."""
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}

    (bare,), (owned,) = findings([pod(status)], [], [], {}), findings([pod(status, controlled=True)], [], [], {})

    assert ("failed", "no healthy devices", False) == (bare.kind, bare.why, bare.replace)
    assert owned.replace
    assert [] == findings([pod({"phase": "Failed", "reason": "Evicted"}, controlled=True)], [], [], {})


def test_a_refused_pod_is_replaced_where_a_controller_does_that():
    """A plan that can never be honoured is worth another try elsewhere."""
    (found,) = findings([pod({"phase": "Pending"}, controlled=True)], [], [], {"uid-1": "no such GPU"})

    assert ("refused", "no such GPU", True) == (found.kind, found.why, found.replace)

"""The annotation that says what became of a pod's plan on its node."""

from __future__ import annotations

import msgspec

from aliquot.kube.names import PLAN_STATUS
from aliquot.kube.objects import Pod
from aliquot.kube.plan import read_missing, written_outcome


def test_an_outcome_is_written_with_its_reason():
    """A container that waits or is refused is written with the reason in brackets."""
    assert "main: provisioned" == written_outcome("main", "provisioned", "")
    assert "main: waits (the GPU is full)" == written_outcome("main", "waits", "the GPU is full")


def test_containers_without_their_share_are_read_with_the_reason():
    """Names and reasons may have the same word, and the annotation may end within a reason."""
    status = "missing: waits (missing (1)); main: missing (no device); side: missing (a long rea"

    assert {"main": "no device", "side": "a long rea"} == read_missing(status)


def test_a_pod_is_said_to_miss_its_share_while_the_container_runs():
    """The state of a pod is the word of kubectl once the container has ended or the pod leaves."""

    def pod(state: str, **metadata: str) -> Pod:
        said = written_outcome("main", "missing", "kubelet gave it no device")
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {state: {"reason": "Error"}}}]}
        body = {"metadata": {"annotations": {PLAN_STATUS: said}, **metadata}, "status": status}
        return msgspec.convert(body | {"spec": {"nodeName": "n"}}, Pod)

    leaving = pod("running", deletionTimestamp="2026-01-01T00:00:00Z")

    assert ["GpuShareMissing", "Error", "Terminating"] == [pod("running").state, pod("terminated").state, leaving.state]
    assert "container main runs without its share: kubelet gave it no device" == pod("running").share_missing
    assert "" == pod("terminated").share_missing

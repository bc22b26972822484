"""The admission check with the real Kueue and kube-scheduler: counts that suffice, devices that do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cluster.charted import Kueue
from cluster.control_plane import ControlPlane
from cluster.ours import ROOT
from scheduling import OurScheduler, Pods, asking, eventually, gpu_pod, percent

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(240)]
EXAMPLES = ROOT / "examples" / "kueue"


@pytest.fixture(scope="module")
def kueue(control_plane: ControlPlane) -> Iterator[None]:
    """Kueue, started."""
    made = Kueue(control_plane)
    made.start()
    yield
    made.part.stop()


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane, kueue: None) -> Iterator[OurScheduler]:
    """A node with two GPUs, our scheduler, and Kueue with the example's queues."""
    control_plane.fake_nodes(1, "v100", gpus=2)
    ours = OurScheduler(control_plane)
    with asking(ours):
        control_plane.kubectl("apply", "-f", str(EXAMPLES / "queues.yaml"))
        yield ours


def submit(plane: ControlPlane, name: str, queue: str, count: int, percent: int) -> None:
    """The example's Job with other numbers."""
    job = yaml.safe_load((EXAMPLES / "job.yaml").read_text())
    job["metadata"] = {"name": name, "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": queue}}
    job["spec"] |= {"parallelism": count, "completions": count}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"]["aliquot.dev/gpu-percent"] = percent
    plane.kubectl("apply", "-f", "-", input_=json.dumps(job))


def workload_of(plane: ControlPlane, name: str) -> dict[str, Any]:
    """The Workload of a Job, its status; empty before there is one."""
    for workload in plane.api.get("/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads")["items"]:
        if workload["metadata"]["ownerReferences"][0]["name"] == name:
            found: dict[str, Any] = workload.get("status", {})
            return found
    return {}


def pods_named(pods: Pods, name: str) -> list[dict[str, Any]]:
    """The pods of a Job."""
    return [pod for pod in pods.all() if pod["metadata"]["labels"]["job-name"] == name]


def test_a_gang_is_admitted_when_it_fits_on_devices(control_plane: ControlPlane, scheduler: OurScheduler):
    """Four pods of 0.3 run on two GPUs; the example's two of 0.4 are within quota (1.2 + 0.8 of 2) and fit only when
    those end: no pod of theirs is made before, and both are placed after."""
    plane, pods = control_plane, Pods(control_plane, "default")
    four = [gpu_pod(f"four{number}", percent(30, "3Gi")) for number in range(4)]
    for pod in four:
        pod["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "red", "job-name": "four"}
    pods.create(*four)
    pods.wait_bound(4)
    plane.kubectl("apply", "-f", str(EXAMPLES / "job.yaml"))
    seen: list[str] = []

    def refused() -> bool:
        checks = workload_of(plane, "pair").get("admissionChecks", [])
        seen.extend(check["message"] for check in checks if check["state"] == "Retry")
        return bool(seen)

    eventually(refused, "the gang is not sent away")
    none = pods_named(pods, "pair")
    plane.kubectl("delete", "pod", "-l", "job-name=four")
    eventually(lambda: len([p for p in pods_named(pods, "pair") if p["spec"].get("nodeName")]) == 2, "not placed", 60)

    assert [] == none
    assert "1 of 2 pods of the group have room now; another waits: asks 0.40 GPU, 3.0 GiB" in seen[0]
    assert "Nearest: " in seen[0]
    assert all(pod["metadata"]["annotations"]["aliquot.dev/workload"] for pod in pods_named(pods, "pair"))
    pods.agree(scheduler)
    plane.kubectl("delete", "job", "pair")


def test_a_gang_that_never_fits_burns_no_gpu(control_plane: ControlPlane, scheduler: OurScheduler):
    """Three pods of 0.6 for two GPUs: 1.8 of 2 by counts. None is made, and what fits beside them runs."""
    plane, pods = control_plane, Pods(control_plane, "default")
    eventually(lambda: not pods.all(), "the pods before are there", 60)
    submit(plane, "three", "red", 3, 60)
    eventually(lambda: any(c["state"] == "Retry" for c in workload_of(plane, "three").get("admissionChecks", [])), "")
    submit(plane, "two", "blue", 2, 60)
    pods.wait_bound(2, 60)

    assert [] == pods_named(pods, "three")
    assert 2 == len(pods_named(pods, "two"))

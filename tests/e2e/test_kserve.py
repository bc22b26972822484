"""An inference service by KServe's real controller, as a Deployment, beside the real kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from claiming import Lab, claims_served
from cluster.charted import KServe
from cluster.control_plane import ControlPlane
from operating import wait_for
from scheduling import ROOT, OurScheduler, slices_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]
SERVICES = "/apis/serving.kserve.io/v1beta1/namespaces/{}/inferenceservices/chat"


@pytest.fixture(scope="module")
def kserve(control_plane: ControlPlane) -> Iterator[None]:
    """KServe, started."""
    made = KServe(control_plane)
    made.start()
    yield
    made.part.stop()


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane, helm: str, kserve: None) -> Iterator[OurScheduler]:
    """A node of two H100 that serves claims."""
    with claims_served(control_plane, helm, control_plane.fake_nodes(1, "h100", gpus=2)) as ours:
        yield ours


@pytest.mark.parametrize("kind", ["extended resources", "placed"])
def test_the_example_of_an_inference_service_gets_its_share(
    control_plane: ControlPlane, namespace: str, scheduler: OurScheduler, kind: str
):
    """Its predictor's pod has 0.4 of a GPU and 24 GiB and the annotation about waking, and the service is ready."""
    lab = Lab(control_plane, namespace)
    if kind == "placed":
        lab.label(kind)
    control_plane.kubectl("apply", "-n", namespace, "-f", str(ROOT / "examples/kubeflow/inference.yaml"))
    (pod,) = wait_for(lab.bound, lambda bound: len(bound) == 1, "the predictor's pod is not bound", 90)
    wait_for(
        lambda: control_plane.api.get(SERVICES.format(namespace)).get("status", {}).get("conditions", []),
        lambda all_: any((one["type"], one["status"]) == ("Ready", "True") for one in all_),
        "the service is not ready",
        90,
    )
    claims = control_plane.api.get(lab.claims)["items"]
    shares = [(milli, mib) for claim in claims for milli, _, mib in lab.slices(claim)]
    shares += [(milli, mib) for _, milli, mib in slices_of(pod)] if not claims else []

    assert "20ms" == pod["metadata"]["annotations"]["aliquot.dev/wake"]
    assert [(400, 24 * 1024)] == shares
    assert (kind == "placed") == len(claims)
    control_plane.kubectl("delete", "inferenceservice", "chat", "-n", namespace)
    lab.clear()

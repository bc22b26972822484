"""Claims on the test cluster: the chart's classes, what agents of fake nodes would publish, pods that ask by them."""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from cluster.control_plane import ControlPlane
from cluster.ours import OurWebhook
from operating import install_crds, wait_for
from scheduling import ROOT, OurScheduler, Pods, asking, percent

from aliquot.driver.gpu import Gpu
from aliquot.kube.api import Api
from aliquot.kube.claims import ResourceClaim as Claim
from aliquot.kube.claims import claim_plan
from aliquot.kube.names import CLAIMS, GPUS
from aliquot.node.machine import Machine, NodeOffer
from aliquot.node.slices import SlicePublisher

API = "/apis/resource.k8s.io/v1"
SIZES = {"half": (50, 8192)}


async def publish(plane: ControlPlane, node: str) -> None:
    """What the agent of a fake node would publish of its GPUs."""
    told = json.loads(plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"][GPUS])
    gpus = tuple(
        Gpu(**each, links=["X" if number == other else "SYS" for other in range(len(told["devices"]))])
        for number, each in enumerate(told["devices"])
    )
    offer = NodeOffer(Machine(gpus, Path("libcuda"), Path("libnvml")))
    offer.withheld = ""
    async with Api.connect(str(plane.kubeconfig)) as api:
        await SlicePublisher(api, offer, node, SIZES).publish({})


@contextmanager
def claims_served(
    plane: ControlPlane, helm: str, nodes: Sequence[str], flags: Sequence[str] = ()
) -> Iterator[OurScheduler]:
    """These nodes serve claims of the chart's classes, and our scheduler with its webhook places them; `flags` are
    kube-scheduler's."""
    install_crds(plane)
    values = "claims.enabled=true,claims.sizes[0].name=half,claims.sizes[0].compute=50,claims.sizes[0].memory=8Gi"
    chart = ("--kube-version", "1.36.0", "--set", values, "--show-only", "templates/claims.yaml")
    command = [helm, "template", "aliquot", str(ROOT / "deploy" / "chart"), *chart]
    classes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    plane.kubectl("apply", "-f", "-", input_=classes)
    for node in nodes:
        asyncio.run(publish(plane, node))
    webhook = OurWebhook(plane, 8783)
    webhook.register()
    own = (*webhook.flags, "--claims", "--claim-sizes", "half=50/8Gi")
    with asking(OurScheduler(plane, 8782, *own), flags=flags) as ours:
        webhook.wait_trusted()
        yield ours


class Lab(Pods):
    """A namespace whose pods' words become claims of a kind."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        super().__init__(plane, namespace)
        self.claims = f"{API}/namespaces/{namespace}/resourceclaims"
        self.templates = f"{API}/namespaces/{namespace}/resourceclaimtemplates"

    def label(self, kind: str) -> None:
        self.plane.kubectl("label", "namespace", self.namespace, f"{CLAIMS}={kind}")

    def ask(self, name: str, milli: int, **spec: Any) -> None:
        """A pod as an old manifest has it."""
        annotations, resources = spec.pop("annotations", {}), {"limits": spec.pop("limits", percent(milli // 10))}
        container = {"name": "main", "image": "busybox", "resources": resources}
        meta = {"name": name, "annotations": annotations, "labels": {"app": name}}
        body = {"metadata": meta, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}}
        self.create(body)

    def running(self, *names: str, timeout_s: float = 90.0) -> dict[str, dict[str, Any]]:
        """The claims of these pods by the pods' names, once they run."""

        def waiting() -> list[str]:
            return [name for name in names if self[name]["status"]["phase"] != "Running"]

        wait_for(waiting, lambda left: not left, "pods wait", timeout_s)
        by_pod = {
            claim["metadata"]["ownerReferences"][0]["name"]: claim for claim in self.plane.api.get(self.claims)["items"]
        }
        return {name: by_pod[name] for name in names}

    def slices(self, claim: dict[str, Any]) -> list[tuple[int, int, int]]:
        """Request, limit and MiB of a claim, as its node would give it."""
        plan = claim_plan(msgspec.convert(claim, Claim), {})
        assert plan is not None
        return [(piece.request_milli, piece.limit_milli, piece.memory_mib) for piece in plan.slices]

    def events(self, name: str) -> list[str]:
        """Why we do not place a pod."""
        found = self.plane.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [e["message"] for e in found if e["reason"] == "FailedPlacement" and e["involvedObject"]["name"] == name]

    def clear(self) -> None:
        """Delete its pods, and wait until the claims are gone with them."""
        for pod in self.all():
            self.delete(pod["metadata"]["name"])
        wait_for(lambda: self.plane.api.get(self.claims)["items"], lambda left: not left, "claims stay", 60)

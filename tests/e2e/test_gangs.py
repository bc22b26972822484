"""JobSets and LeaderWorkerSets by their real controllers, beside the real kube-scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from claiming import Lab, claims_served
from cluster.charted import JobSet, LeaderWorkerSet
from cluster.control_plane import ControlPlane
from operating import wait_for
from scheduling import ROOT, OurScheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]
EXAMPLES = ROOT / "examples" / "gangs"
PODS = {"coscheduling.yaml": 3, "jobset.yaml": 3, "leaderworkerset.yaml": 4}
GROUP = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.x-k8s.io"},
    "spec": {
        "group": "scheduling.x-k8s.io",
        "names": {"kind": "PodGroup", "plural": "podgroups"},
        "scope": "Namespaced",
        "versions": [{
            "name": "v1alpha1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip
"""Coscheduling's kind; its controller and plugin need not run."""


@pytest.fixture(scope="module")
def jobset(control_plane: ControlPlane) -> Iterator[None]:
    """JobSet, started."""
    made = JobSet(control_plane)
    made.start()
    yield
    made.part.stop()


@pytest.fixture(scope="module")
def lws(control_plane: ControlPlane) -> Iterator[None]:
    """LeaderWorkerSet, started."""
    made = LeaderWorkerSet(control_plane)
    made.start()
    yield
    made.part.stop()


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane, helm: str, jobset: None, lws: None) -> Iterator[OurScheduler]:
    """Two nodes of two V100 that serve claims."""
    control_plane.kubectl("apply", "-f", "-", input_=yaml.safe_dump(GROUP))
    with claims_served(control_plane, helm, control_plane.fake_nodes(2, "v100", gpus=2)) as ours:
        yield ours


@pytest.fixture
def lab(control_plane: ControlPlane, namespace: str, scheduler: OurScheduler) -> Iterator[Lab]:
    """A namespace, empty of claims afterwards."""
    made = Lab(control_plane, namespace)
    yield made
    for kind in ("jobset", "leaderworkerset", "job"):
        control_plane.kubectl("delete", kind, "--all", "-n", namespace)
    made.clear()


def of_four(file: Path) -> list[dict[str, Any]]:
    """An example with four pods that belong together."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(file.read_text()))
    spec = documents[0]["spec"]
    if documents[0]["kind"] == "JobSet":
        spec["replicatedJobs"][1]["replicas"] = 3
    else:
        spec["replicas"], spec["leaderWorkerTemplate"]["size"] = 1, 4
    return documents


@pytest.mark.parametrize("kind", ["extended resources", "placed"])
@pytest.mark.parametrize("example", ["jobset.yaml", "leaderworkerset.yaml"])
def test_four_pods_that_fit_only_together_are_all_placed_or_none(lab: Lab, example: str, kind: str):
    """While another pod has one of four GPUs, none of four pods that need one each is bound or has an allocated claim;
    when it ends, two are bound to each node of two GPUs."""
    if kind == "placed":
        lab.label(kind)
    lab.ask("first", 600)
    wait_for(lambda: lab["first"]["status"]["phase"], lambda phase: phase == "Running", "the first pod waits", 60)
    lab.plane.kubectl("apply", "-n", lab.namespace, "-f", "-", input_=yaml.safe_dump_all(of_four(EXAMPLES / example)))

    def why() -> str:
        names = [pod["metadata"]["name"] for pod in lab.waiting()]
        return " ".join([lab.told(name) + "".join(lab.events(name)) for name in names])

    wait_for(why, lambda text: "3 of 4 pods of the group have room now" in text, "no pod says why", 90)
    early = {pod["metadata"]["name"] for pod in lab.bound()}
    allocated = [c for c in lab.plane.api.get(lab.claims)["items"] if c.get("status", {}).get("allocation")]
    lab.delete("first")
    wait_for(lab.bound, lambda bound: len(bound) == 4, "not all four are bound", 120)

    assert {"first"} == early and (kind == "placed") == len(allocated)
    assert [2, 2] == list(Counter(pod["spec"]["nodeName"] for pod in lab.bound()).values())


@pytest.mark.parametrize("name", PODS)
def test_each_example_of_a_group_runs(lab: Lab, name: str):
    """All pods of the manifest as it is in the repository; Kubernetes' own PodGroup is in test_groups."""
    lab.plane.kubectl("apply", "-n", lab.namespace, "-f", str(EXAMPLES / name))

    wait_for(lab.bound, lambda bound: len(bound) == PODS[name], "not all pods are bound", 90)

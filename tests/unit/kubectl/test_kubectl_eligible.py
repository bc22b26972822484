"""`kubectl aliquot explain` counts the nodes that a pod may go to, as kube-scheduler and its extender do."""

from typing import Any

import msgspec
import pytest
from kit import objects

from aliquot.cli.kubectl.explain import explained, lines_of
from aliquot.cli.kubectl.scene import ClusterScene
from aliquot.kube.eligible import barred
from aliquot.kube.objects import Node, Pod

SHARE = {"aliquot.dev/gpu-percent": "30"}
OFFERED = {"cpu": "4", "aliquot.dev/gpu-percent": "200", "aliquot.dev/gpu-memory": "32Gi"}


def node(name: str, labels: dict[str, str] | None = None, *, offers: dict[str, str] = OFFERED, **spec: Any) -> Node:
    """A node with two V100."""
    return objects.node(name, metadata={"labels": labels or {}}, spec=spec, status={"allocatable": offers})


def document(limits: dict[str, str] | None = None, said: str = "", name: str = "p", **spec: Any) -> dict[str, Any]:
    """A pod of namespace `lab` with one container."""
    containers = [{"name": "main", "resources": {"limits": limits or SHARE}}]
    condition = {"type": "PodScheduled", "status": "False", "message": said}
    return {
        "metadata": {"name": name, "namespace": "lab", "uid": f"uid-{name}"},
        "spec": {"containers": containers, **spec},
        "status": {"conditions": [condition] if said else []},
    }


TAINT = {"key": "kwok", "value": "fake", "effect": "NoSchedule"}
FULL = {"key": "kind", "operator": "In", "values": ["full"]}


def affine(*expressions: dict[str, Any]) -> dict[str, Any]:
    """A required affinity of nodes."""
    terms = [{"matchExpressions": [one]} for one in expressions]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("where", "spec", "why"),
    [
        (node("n", taints=[TAINT]), {}, "has a taint that the pod does not tolerate (kwok:NoSchedule)"),
        (node("n", taints=[TAINT]), {"tolerations": [{"key": "kwok", "operator": "Exists"}]}, ""),
        (node("n", taints=[TAINT]), {"tolerations": [{"key": "kwok", "value": "fake", "effect": "NoSchedule"}]}, ""),
        (node("n", taints=[TAINT]), {"tolerations": [{"key": "kwok", "value": "other"}]}, "has a taint"),
        (node("n", taints=[TAINT]), {"tolerations": [{"operator": "Exists"}]}, ""),
        (node("n", taints=[TAINT | {"effect": "PreferNoSchedule"}]), {}, ""),
        (node("n"), {"nodeSelector": {"kind": "full"}}, "does not have the label kind=full"),
        (node("n", {"kind": "full"}), {"nodeSelector": {"kind": "full"}}, ""),
        (node("n"), affine(FULL), "does not meet the pod's required node affinity"),
        (node("n", {"kind": "full"}), affine(FULL), ""),
        (node("n", {"size": "9"}), affine(FULL, {"key": "size", "operator": "Gt", "values": ["8"]}), ""),
        (node("n", {"size": "8"}), affine({"key": "size", "operator": "Gt", "values": ["8"]}), "does not meet"),
        (node("n"), affine({"key": "kind", "operator": "NotIn", "values": ["full"]}), ""),
        (node("n", offers={"cpu": "4"}), {}, "offers no aliquot.dev/gpu-percent now; is its aliquot node running?"),
    ],
)
def test_a_node_is_barred_by_what_kubernetes_asks_of_it(where: Node, spec: dict[str, Any], why: str):
    """Taints, selectors, required affinity and what the node offers each bar it, or are met as Kubernetes does."""
    found = barred(msgspec.convert(document(**spec), Pod), [where], [])

    assert bool(why) == ("n" in found) and found.get("n", "").startswith(why)


def test_what_other_pods_have_of_a_node_is_counted():
    """CPU is counted of the pods on the node that have not ended."""
    where, asking = node("n"), msgspec.convert(document(SHARE | {"cpu": "2"}), Pod)
    others = [
        document({"cpu": "3"}, name=phase, nodeName="n") | {"status": {"phase": phase}}
        for phase in ("Running", "Failed")
    ]
    ended, both = ([msgspec.convert(one, Pod) for one in some] for some in (others[1:], others))

    assert {"n": "has 1 of cpu free, 2 are requested"} == barred(asking, [where], both)
    assert {} == barred(asking, [where], ended)


def explain(pod: dict[str, Any], *nodes: Node) -> str:
    """The account as people read it."""
    asking = msgspec.convert(pod, Pod)
    scene = ClusterScene(list(nodes), [asking], [], [], [], "lab")
    return "\n".join(lines_of(explained(scene, asking)))


def test_nothing_fits_on_a_node_that_the_pod_may_not_go_to():
    """With the agent away on one node and a taint on the other the pod waits, and each node has its reason."""
    told = explain(document(), node("real", offers={"cpu": "4"}), node("fake", taints=[TAINT]))

    assert "lab/p waits: Kubernetes allows none of the 2 nodes with GPUs for it" in told
    assert "not counted: real: offers no aliquot.dev/gpu-percent now; is its aliquot node running?" in told
    assert "not counted: fake: has a taint that the pod does not tolerate (kwok:NoSchedule)" in told
    assert "fits" not in told


def test_a_node_with_fewer_gpus_than_are_asked_is_explained_by_its_gpus():
    """Where the pod asks for more GPUs than any node has, the account says so, and how much less would fit."""
    told = explain(
        document({"aliquot.dev/gpu-percent": "900"}, said="0/1 nodes are available: 1 Insufficient."), node("n")
    )

    assert told.startswith("lab/p waits: asks 9 GPUs close to each other")
    assert "not counted" not in told
    assert "Nearest: ask 7.00 GPU less, and it fits on n." in told


def test_a_pod_that_kube_scheduler_left_waiting_is_not_said_to_fit():
    """GPUs that are free now are named as such, and kube-scheduler's own reason follows."""
    told = explain(document(said="0/1 nodes are available: 1 node(s) had volume node affinity conflict."), node("n"))

    assert told.startswith("lab/p waits, though GPUs for it are free now: asks 0.30 GPU.")
    assert "kube-scheduler reports: 0/1 nodes are available" in told


def test_a_pod_that_nobody_looked_at_yet_fits():
    """Before kube-scheduler has said anything, the account is of what it will find."""
    assert explain(document(), node("n")).startswith("lab/p fits: asks 0.30 GPU.")

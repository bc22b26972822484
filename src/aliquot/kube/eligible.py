"""Which nodes Kubernetes allows for a pod, and why not the others, regardless of their free GPUs.

Checked are those of kube-scheduler's predicates that concern GPUs: taints, selector, required node affinity, and
the capacity and free amount of each resource the pod requests. Not checked are volumes, ports, affinity of pods and
spread; for these kube-scheduler's own sentence is repeated by the caller.

Source: Kubernetes, "Taints and Tolerations", "Assigning Pods to Nodes"; kube-scheduler's plugins of these names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from aliquot.kube.names import GPU_PERCENT, RESOURCES
from aliquot.kube.objects import Node, NodeTerm, Pod
from aliquot.kube.quantities import milli
from aliquot.kube.requests import effective

_BARRING: Final = ("NoSchedule", "NoExecute")
_PODS: Final = "pods"
"""How many pods a node runs, which every pod counts for."""


def barred(pod: Pod, nodes: Iterable[Node], pods: Iterable[Pod], fitting: Collection[str] = ()) -> dict[str, str]:
    """Why the pod may not run on nodes, by their name; `pods` are all pods of the cluster.

    Where GPUs are full or too few the ledger knows more, down to the device, so the capacity and free amount of GPU
    resources are checked on `fitting` nodes only: there Kubernetes counts more than the ledger does.
    """
    used: dict[str, Counter[str]] = {}
    for other in pods:
        if other.spec.node_name and not other.ended and other.metadata.uid != pod.metadata.uid:
            used.setdefault(other.spec.node_name, Counter()).update(_amounts(other))
    asked = _amounts(pod)
    reasons = {}
    for node in nodes:
        name = node.metadata.name
        taints = [taint for taint in node.spec.taints if taint.effect in _BARRING]
        taint = next((t for t in taints if not any(one.covers(t) for one in pod.spec.tolerations)), None)
        if taint is not None:
            reasons[name] = f"has a taint that the pod does not tolerate ({taint.key}:{taint.effect})"
        elif why := _labels(pod, node) or _resources(asked, node, used.get(name, Counter()), gpus=name in fitting):
            reasons[name] = why
    return reasons


def _labels(pod: Pod, node: Node) -> str:
    labels = node.metadata.labels
    for key, value in pod.spec.node_selector.items():
        if labels.get(key) != value:
            return f"does not have the label {key}={value} of the pod's nodeSelector"
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return ""
    fields = {"metadata.name": node.metadata.name}
    for term in affinity.required.node_selector_terms:
        labelled = all(one.holds(labels) for one in term.match_expressions)
        if labelled and all(one.holds(fields) for one in term.match_fields) and term != NodeTerm():
            return ""
    return "does not meet the pod's required node affinity"


def _resources(asked: Mapping[str, int], node: Node, used: Mapping[str, int], *, gpus: bool) -> str:
    """The resources that are not offered or not free; amounts are in thousandths."""
    allocatable = node.status.allocatable
    if not allocatable:
        return ""
    for name, amount in asked.items():
        if name == _PODS and name not in allocatable:
            continue
        has = milli(allocatable.get(name, 0))
        if name == GPU_PERCENT and not has:
            return f"offers no {GPU_PERCENT} now; is its aliquot node running?"
        if not gpus and name in RESOURCES:
            continue
        if has < amount:
            return f"offers {_shown(name, has)} of {name}, {_shown(name, amount)} are requested"
        if has - used.get(name, 0) < amount:
            return f"has {_shown(name, has - used.get(name, 0))} of {name} free, {_shown(name, amount)} are requested"
    return ""


def _amounts(pod: Pod) -> dict[str, int]:
    """What kube-scheduler counts for a pod, in thousandths, by resource."""
    containers = [*pod.spec.init_containers, *pod.spec.containers]
    names = {name for c in containers for name in (*c.resources.requests, *c.resources.limits)}
    return {name: amount for name in sorted(names) if (amount := effective(pod, name, milli))} | {_PODS: 1000}


def _shown(name: str, thousandths: int) -> str:
    if name in ("memory", "ephemeral-storage") or name.startswith("hugepages-") or name == RESOURCES[1]:
        return f"{thousandths / 1000 / (1 << 20):,.0f} MiB"
    return f"{thousandths / 1000:g}"

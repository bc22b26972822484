"""The facts that `kubectl aliquot` shows, as plain values: devices, SharePods, vGPUs and quotas of one scene."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aliquot.cli.kubectl.scene import ClusterScene, age
from aliquot.kube.quotas import quotas_of
from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.placement.ledger import ledger_facts, ledger_gpus
from aliquot.status.workloads import PENDING


def gpus(scene: ClusterScene) -> list[dict[str, Any]]:
    """Every device that pods may use, with its tenants."""
    cluster = scene.ledger.cluster
    found = []
    for name, number in sorted(cluster.index.items()):
        topology = cluster.spec(number).topology
        for g, gpu in enumerate(ledger_gpus(cluster, name)):
            links = list(topology.links[g]) if topology is not None else []
            found.append({"node": name, **ledger_facts(gpu), "links": links})
    return found


def sharepods(scene: ClusterScene) -> list[dict[str, Any]]:
    """The SharePods of the namespace; the state of one that has a pod is the pod's."""
    states = {pod.metadata.key: pod.state for pod in scene.pods}
    return [
        {
            "namespace": pod.metadata.namespace,
            "name": pod.metadata.name,
            "request": _amount(pod.spec.gpu.request),
            "limit": _amount(pod.spec.gpu.limit),
            "memory": _amount(pod.spec.gpu.memory),
            "state": states.get(f"{pod.metadata.namespace}/{pod.status.pod_name}", pod.status.phase or PENDING),
            "node": pod.status.node_name,
            "vgpu": pod.status.gpu_id,
            "uuid": pod.status.gpu_uuid,
            "pod": pod.status.pod_name,
            "age": age(pod.metadata),
        }
        for pod in scene.sharepods
        if scene.here(pod)
    ]


def vgpus(scene: ClusterScene) -> list[dict[str, Any]]:
    """The vGPUs of the cluster."""
    return [
        {
            "name": vgpu.metadata.name,
            "node": vgpu.spec.node_name,
            "phase": vgpu.status.phase or "Creating",
            "requested": vgpu.status.requested,
            "model": vgpu.status.model,
            "uuid": vgpu.status.uuid,
            "attached": [one.tenant for one in vgpu.status.attached],
            "age": age(vgpu.metadata),
        }
        for vgpu in scene.vgpus
    ]


def quotas(scene: ClusterScene) -> list[dict[str, Any]]:
    """Each bound of each quota, with the amount that the plans of the namespace's pods hold."""
    return [entry for quota in scene.quotas if scene.here(quota) for entry in _bounds(scene, quota)]


def _bounds(scene: ClusterScene, quota: Any) -> Iterator[dict[str, Any]]:
    used = scene.ledger.cluster.usage(quota.metadata.namespace)
    for bound in quotas_of(quota):
        if bound.forbids:
            continue
        held = bound.counted(used)
        yield {
            "namespace": quota.metadata.namespace,
            "name": quota.metadata.name,
            "model": bound.model,
            "held_milli": held[0],
            "max_milli": bound.milli,
            "held_mib": held[1],
            "max_mib": bound.memory_mib,
        }


def of_bound(quota: dict[str, Any]) -> tuple[str, str]:
    """GPUs and memory held of a bound, as `1.50 of 2.00`; `-` where there is no bound."""
    max_milli, max_mib = quota["max_milli"], quota["max_mib"]
    return (
        f"{format_milli(quota['held_milli'])} of {'-' if max_milli is None else format_milli(max_milli)}",
        f"{format_mib(quota['held_mib'])} of {'-' if max_mib is None else format_mib(max_mib)}",
    )


def reserved(gpu: dict[str, Any]) -> tuple[str, str]:
    """Compute and memory that are promised, as `0.30 of 1.00` and `4.0 / 16.0 GiB`."""
    memory = f"{(gpu['memory_mib'] - gpu['free_mib']) / 1024:.1f} / {gpu['memory_mib'] / 1024:.1f} GiB"
    return f"{format_milli(MILLI - gpu['free_milli'])} of {format_milli(MILLI)}", memory


def _amount(value: Any) -> str:
    return "" if value is None else str(value)

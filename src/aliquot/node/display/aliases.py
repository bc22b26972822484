"""The same facts under the names that dashboards made for other programs read.

Sources: gpu-manager, its metrics service (utilization in hundredths of a card, requests in cards, memory in MiB; one
line for each card and one with the value `total`); HAMi, cmd/vGPUmonitor/metrics.go and cmd/scheduler/metrics.go
(`hami_*` since 2.9, with the label `node` on a GPU's metrics since 2.10; the older names before that). What HAMi's
scheduler reports about a GPU is reported by the node here, which knows the same.
A name without a counterpart here, such as HAMi's module memory, is left out rather than reported as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from aliquot.status.nodes import NodeGpu, NodeReport, Owner, Use

_MIB: Final = 1 << 20
_POD: Final = ("pod_name", "namespace", "node", "container_name")
_HAMI_CONTAINER: Final = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_HAMI_HOST: Final = ("node", "device_index", "device_uuid", "device_type")
_LEGACY_CONTAINER: Final = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_LEGACY_HOST: Final = ("deviceidx", "deviceuuid", "devicetype")


def gpu_manager(facts: NodeReport) -> Iterable[Metric]:
    """gpu-manager's four."""
    util = GaugeMetricFamily("container_gpu_utilization", "GPU utilization, 100 is one card", labels=(*_POD, "gpu"))
    memory = GaugeMetricFamily("container_gpu_memory_total", "GPU memory usage in MiB", labels=(*_POD, "gpu_memory"))
    asked = GaugeMetricFamily(
        "container_request_gpu_utilization", "Requested GPU in cards", labels=(*_POD, "req_of_gpu")
    )
    asked_memory = GaugeMetricFamily(
        "container_request_gpu_memory", "Requested GPU memory in MiB", labels=(*_POD, "req_of_gpu_memory")
    )
    for owner, uses in by_container(facts).items():
        who = [owner.pod, owner.namespace, facts.node, owner.container]
        for gpu, use in uses:
            util.add_metric([*who, f"gpu{gpu.index}"], 100 * use.status.usage)
            memory.add_metric([*who, f"gpu{gpu.index}"], use.status.memory_used_mib)
        statuses = [use.status for _, use in uses]
        util.add_metric([*who, "total"], sum(100 * status.usage for status in statuses))
        memory.add_metric([*who, "total"], sum(status.memory_used_mib for status in statuses))
        asked.add_metric([*who, "total"], sum(status.request_milli for status in statuses) / 1000)
        asked_memory.add_metric([*who, "total"], sum(status.memory_limit_mib for status in statuses))
    yield from (util, memory, asked, asked_memory)


def gpu_manager_usage(facts: NodeReport) -> dict[str, Any]:
    """gpu-manager's answer to `/usage`: by the pod's uid the use and the requests of its containers.

    As there, zero values are left out; GPU time is in percent of a card, and requests in cards; memory in MiB. The
    numbers of processes, and user and cluster from Tencent's platform, are not reported.

    Source: gpu-manager, pkg/api/runtime/display/api.proto and pkg/services/display/display.go.
    """
    pods: dict[str, dict[str, Any]] = {}
    for owner, uses in by_container(facts).items():
        pod = pods.setdefault(owner.uid or f"{owner.namespace}/{owner.pod}", {"stat": {}, "project": owner.namespace})
        devices = [
            {
                "id": gpu.pci,
                "card_idx": str(gpu.index),
                "gpu": 100 * use.status.usage,
                "mem": use.status.memory_used_mib,
            }
            for gpu, use in uses
        ]
        pod["stat"][owner.container] = {"dev": [_nonzero(device) for device in devices]}
        asked = {
            "gpu": sum(use.status.request_milli for _, use in uses) / 1000,
            "mem": sum(use.status.memory_limit_mib for _, use in uses),
        }
        pod.setdefault("spec", {})[owner.container] = _nonzero(asked)
    return {"usage": pods} if pods else {}


def _nonzero(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}


def hami(facts: NodeReport) -> Iterable[Metric]:
    """HAMi's monitor and scheduler since 2.9."""
    names = (
        "hami_vgpu_memory_used_bytes",
        "hami_vgpu_memory_limit_bytes",
        "hami_container_device_utilization_ratio",
        "hami_host_gpu_memory_used_bytes",
        "hami_host_gpu_utilization_ratio",
    )
    yield from _hami(facts, names, _HAMI_CONTAINER, lambda gpu: _hami_host(facts, gpu), _HAMI_HOST)
    context = GaugeMetricFamily("hami_vgpu_memory_context_bytes", "Memory of contexts", labels=_HAMI_CONTAINER)
    for gpu in facts.gpus:
        for use in gpu.uses:
            context.add_metric(_hami_labels(gpu, use), use.status.memory_context_mib * _MIB)
    yield context
    # The promised part of each GPU; the memory's ratio is a fraction, the cores' in hundredths, as in HAMi.
    where = ("node", "device_uuid", "device_index")
    kinds = {
        "hami_gpu_memory_limit_bytes": ("Memory of a GPU", (*where, "device_type")),
        "hami_gpu_memory_allocated_bytes": ("Memory promised", (*where, "device_cores", "device_type")),
        "hami_gpu_shared_count": ("Containers that share a GPU", (*where, "device_type")),
        "hami_gpu_core_allocated_ratio": ("Compute promised, of 100", (*where, "device_type")),
        "hami_node_gpu_memory_allocated_ratio": ("Part of the memory that is promised", where),
    }
    allocated = [GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in kinds.items()]
    for gpu in facts.gpus:
        node, index, uuid, kind = _hami_host(facts, gpu)
        promised_mib = sum(use.status.memory_limit_mib for use in gpu.uses)
        values: tuple[tuple[float, list[str]], ...] = (
            (gpu.memory_mib * _MIB, [kind]),
            (promised_mib * _MIB, ["100", kind]),
            (len(gpu.uses), [kind]),
            (sum(use.status.request_milli for use in gpu.uses) / 10, [kind]),
            (promised_mib / gpu.memory_mib, []),
        )
        for family, (value, more) in zip(allocated, values, strict=True):
            family.add_metric([node, uuid, index, *more], value)
    yield from allocated


def hami_legacy(facts: NodeReport) -> Iterable[Metric]:
    """HAMi's monitor before 2.9."""
    names = (
        "vGPU_device_memory_usage_in_bytes",
        "vGPU_device_memory_limit_in_bytes",
        "Device_utilization_desc_of_container",
        "HostGPUMemoryUsage",
        "HostCoreUtilization",
    )
    yield from _hami(facts, names, _LEGACY_CONTAINER, lambda gpu: [str(gpu.index), gpu.uuid, gpu.model], _LEGACY_HOST)


def _hami(
    facts: NodeReport,
    names: tuple[str, str, str, str, str],
    of_container: Sequence[str],
    host: Callable[[NodeGpu], list[str]],
    of_host: Sequence[str],
) -> Iterable[Metric]:
    """Utilization is reported in hundredths under all of HAMi's names, those that end in `ratio` too, as HAMi does."""
    used, limit, util = (GaugeMetricFamily(name, "As HAMi reports it", labels=of_container) for name in names[:3])
    host_used, host_util = (GaugeMetricFamily(name, "As HAMi reports it", labels=of_host) for name in names[3:])
    for gpu in facts.gpus:
        host_used.add_metric(host(gpu), gpu.memory_used_mib * _MIB)
        host_util.add_metric(host(gpu), 100 * gpu.busy)
        for use in gpu.uses:
            labels = _hami_labels(gpu, use)
            used.add_metric(labels, use.status.memory_used_mib * _MIB)
            limit.add_metric(labels, use.status.memory_limit_mib * _MIB)
            util.add_metric(labels, 100 * use.status.usage)
    yield from (used, limit, util, host_used, host_util)


def _hami_host(facts: NodeReport, gpu: NodeGpu) -> list[str]:
    return [facts.node, str(gpu.index), gpu.uuid, f"NVIDIA-{gpu.model}"]


def _hami_labels(gpu: NodeGpu, use: Use) -> list[str]:
    return [use.owner.namespace, use.owner.pod, use.owner.container, str(use.number), gpu.uuid]


def by_container(facts: NodeReport) -> dict[Owner, list[tuple[NodeGpu, Use]]]:
    """The uses of each container, in the order of GPUs."""
    found: dict[Owner, list[tuple[NodeGpu, Use]]] = {}
    for gpu in facts.gpus:
        for use in gpu.uses:
            found.setdefault(use.owner, []).append((gpu, use))
    return found


ALIASES: Final[Mapping[str, Callable[[NodeReport], Iterable[Metric]]]] = {
    "gpu-manager": gpu_manager,
    "hami": hami,
    "hami-legacy": hami_legacy,
}

"""Pods from answers of Prometheus to range queries: what was asked for, and when pods ran.

`kube_pod_container_resource_requests` of kube-state-metrics says what a pod asks for and since when it exists; the node
label is empty until it has a node. It goes on after the pod has ended, so `kube_pod_status_phase` (Running) is wanted
beside it. `DCGM_FI_DEV_GPU_UTIL` with pod labels says on how many GPUs a pod ran, but not when it was submitted.

What cannot be known from them: anything shorter than the step of the query, the arrival of pods that were there before
the range, the end of those that are there after it, and jobs whose pods are retried count once for each pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from aliquot.model.quantities import MILLI
from aliquot.sim.imports.documents import GPU_RESOURCES, load
from aliquot.sim.imports.records import NEVER_RAN, NO_GPU, RUNNING, JobAccounts, Record
from aliquot.sim.imports.tables import Wanted
from aliquot.sim.tables import BadTable

REQUESTS: Final = ("kube_pod_container_resource_requests", "kube_pod_container_resource_limits")
PHASE: Final = "kube_pod_status_phase"
_RESOURCES: Final = {name.replace(".", "_").replace("/", "_").replace("-", "_"): f for name, f in GPU_RESOURCES.items()}


@dataclass
class _Pod:
    """What the series of one pod say."""

    user: str
    since: float = float("inf")
    asked: dict[str, float] = field(default_factory=dict)
    cpu_milli: float = 0.0
    memory_mib: float = 0.0
    on_node: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    seen_gpus: set[str] = field(default_factory=set)
    seen_at: list[float] = field(default_factory=list)
    model: str = ""


def read_prometheus(paths: Sequence[Path], ledger: JobAccounts, how: Wanted) -> Iterator[Record]:
    """One job for each pod in the answers.

    Raises:
        BadTable: no answer of a range query, or none of the metrics that are read.
    """
    pods: dict[tuple[str, str], _Pod] = {}
    times: set[float] = set()
    known = 0
    for path in paths:
        for metric, samples in _series(path):
            known += _take(pods, metric, samples)
            times.update(when for when, _ in samples)
    if not known:
        raise BadTable(f"{paths[0]}: has no series of {REQUESTS[0]}, {PHASE} or DCGM_FI_DEV_* with the label pod")
    if not times:
        raise BadTable(f"{paths[0]}: has no sample; ask for a longer range")
    grid = sorted(times)
    step = min((later - earlier for earlier, later in pairwise(grid)), default=60.0)
    ledger.notes[f"times are known to {step:g} s, the step of the query; shorter pods and waits are not seen"] = 1
    if not any(pod.running for pod in pods.values()) and any(pod.on_node for pod in pods.values()):
        ledger.warn(f"without {PHASE} a pod that has ended counts as running until it is deleted")
    for (namespace, name), pod in pods.items():
        ledger.seen += 1
        record = _record(f"{namespace}/{name}", pod, (grid[0], grid[-1], step), ledger, how)
        if record is not None:
            yield record


def _series(path: Path) -> Iterator[tuple[Mapping[str, str], list[tuple[float, float]]]]:
    answer = load(path)
    try:
        if answer["data"]["resultType"] != "matrix":
            raise BadTable(f"{path}: is the answer to a query for one moment; ask /api/v1/query_range")
        for series in answer["data"]["result"]:
            yield series["metric"], [(float(when), float(value)) for when, value in series["values"]]
    except (KeyError, TypeError, ValueError):
        raise BadTable(
            f"{path}: is not the answer of Prometheus to a range query: data.result with the metric and values of each"
        ) from None


def _take(pods: dict[tuple[str, str], _Pod], metric: Mapping[str, str], samples: list[tuple[float, float]]) -> bool:
    """What a series says goes to its pod; False for a series that says nothing about pods and GPUs."""
    name = metric.get("__name__") or _guessed(metric)
    pod_name = metric.get("exported_pod") or metric.get("pod") or ""
    namespace = metric.get("exported_namespace") or metric.get("namespace") or "default"
    if not pod_name or not (name in REQUESTS or name == PHASE or name.startswith("DCGM_")):
        return False
    pod = pods.setdefault((namespace, pod_name), _Pod(namespace))
    at = [when for when, value in samples if value > 0]
    if name == PHASE:
        if metric.get("phase") == "Running":
            pod.running += at
    elif name in REQUESTS:
        _asked(pod, metric, samples)
        pod.on_node += at if metric.get("node") else []
        pod.since = min([pod.since, *(when for when, _ in samples)])
    else:
        pod.seen_gpus.add(metric.get("UUID") or f"{metric.get('Hostname', '')}/{metric.get('gpu', '')}")
        pod.seen_at += [when for when, _ in samples]
        pod.model = metric.get("modelName", pod.model)
    return True


def _guessed(metric: Mapping[str, str]) -> str:
    """The metric of a series whose query took its name away (`sum by (pod, resource)`)."""
    return REQUESTS[0] if "resource" in metric else PHASE if "phase" in metric else ""


def _asked(pod: _Pod, metric: Mapping[str, str], samples: list[tuple[float, float]]) -> None:
    most = max((value for _, value in samples), default=0.0)
    resource, container = metric.get("resource", ""), metric.get("container", "")
    if resource in _RESOURCES:
        pod.asked[f"{container}/{resource}"] = most * _RESOURCES[resource]
    elif resource == "cpu":
        pod.cpu_milli += most * 1000
    elif resource == "memory":
        pod.memory_mib += most / 2**20


def _record(name: str, pod: _Pod, grid: tuple[float, float, float], ledger: JobAccounts, how: Wanted) -> Record | None:
    first, last, step = grid
    milli = round(sum(pod.asked.values())) or len(pod.seen_gpus) * MILLI
    ran = pod.running or pod.seen_at or pod.on_node
    if not milli and not how.cpu_jobs:
        ledger.drop(NO_GPU)
    elif not ran:
        ledger.drop(NEVER_RAN)
    elif max(ran) >= last:
        ledger.drop(RUNNING)
    else:
        if min(ran) <= first:
            ledger.notes["pods ran before the range began; they arrive with it, with what was left of them"] += 1
        arrival = min(pod.since, min(ran))
        return Record(
            name, arrival, max(ran) - min(ran) + step, (milli,), pod.model, round(pod.cpu_milli),
            round(pod.memory_mib), user=pod.user,
        )  # fmt: skip
    return None

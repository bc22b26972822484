"""Pods from answers of Prometheus to range queries: what was asked for, and when pods ran.

`kube_pod_container_resource_requests` of kube-state-metrics says what a pod asks for and since when it exists; the node
label is empty until it has a node. It goes on after the pod has ended, so `kube_pod_status_phase` (Running) is wanted
beside it. `DCGM_FI_DEV_GPU_UTIL` with pod labels says on how many GPUs a pod ran, but not when it was submitted. Where
Prometheus renames the exporter's labels, the workload is in `exported_pod`, and `pod` is dcgm-exporter's own.

What cannot be known from them: anything shorter than the step of the query, the arrival of pods that were there before
the range, the end of those that are there after it, and jobs whose pods are retried count once for each pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final

from aliquot.model.quantities import MILLI
from aliquot_lab.sim.imports.documents import load
from aliquot_lab.sim.imports.quantities import milli_of_profile, milli_of_resource
from aliquot_lab.sim.imports.records import Dropped, JobAccounts, Record
from aliquot_lab.sim.imports.tables import Wanted
from aliquot_lab.sim.tables import BadTable

REQUESTS: Final = ("kube_pod_container_resource_requests", "kube_pod_container_resource_limits")
PHASE: Final = "kube_pod_status_phase"
Samples = list[tuple[float, float]]
Labels = Mapping[str, str]


@dataclass
class _Pod:
    """What the series of one pod say; `asked`, `cpu` and `memory` by container, `seen_gpus` by GPU or MIG slice."""

    user: str
    since: float = float("inf")
    asked: dict[str, float] = field(default_factory=dict)
    cpu_milli: dict[str, float] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)
    on_node: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    seen_gpus: dict[str, int] = field(default_factory=dict)
    seen_at: list[float] = field(default_factory=list)
    model: str = ""


Pods = dict[tuple[str, str, str], _Pod]
"""By namespace, name and uid: a StatefulSet's pods keep their names."""


def read_prometheus(paths: Sequence[Path], accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    """One job for each pod in the answers.

    Raises:
        BadTable: no answer of a range query, or none of the metrics that are read.
    """
    pods: Pods = {}
    dcgm: list[tuple[Labels, Samples]] = []
    first, last, step = float("inf"), float("-inf"), float("inf")
    known = 0
    for path in paths:
        for metric, samples in _series(path):
            if metric.get("__name__", "").startswith("DCGM_"):
                dcgm.append((metric, samples))
            else:
                known += _take(pods, metric, samples)
            first = min([first, *(when for when, _ in samples)])
            last = max([last, *(when for when, _ in samples)])
            step = min([step, *(later - earlier for (earlier, _), (later, _) in pairwise(samples))])
    if not known + _take_dcgm(pods, dcgm, accounts):
        raise BadTable(f"{paths[0]}: has no series of {REQUESTS[0]}, {PHASE} or DCGM_FI_DEV_* with the label pod")
    if last < first:
        raise BadTable(f"{paths[0]}: has no sample; ask for a longer range")
    step = step if 0 < step < float("inf") else 60.0
    accounts.notes[f"times are known to {step:g} s, the step of the query; shorter pods and waits are not seen"] = 1
    if not any(pod.running for pod in pods.values()) and any(pod.on_node for pod in pods.values()):
        accounts.warn(f"without {PHASE} a pod that has ended counts as running until it is deleted")
    accounts.place = paths[0]
    for (namespace, name, _), pod in pods.items():
        accounts.seen += 1
        record = _record(f"{namespace}/{name}", pod, (first, last, step), accounts, how)
        if record is not None:
            yield record


def _series(path: Path) -> Iterator[tuple[Labels, Samples]]:
    answer = load(path, "; ask for shorter ranges, and give the answers together")
    if isinstance(answer, dict) and answer.get("status") == "error":
        raise BadTable(f"{path}: Prometheus refused the query: {str(answer.get('error', ''))[:200]}")
    try:
        if answer["data"]["resultType"] != "matrix":
            raise BadTable(f"{path}: is the answer to a query for one moment; ask /api/v1/query_range")
        for series in answer["data"]["result"]:
            labels = {str(name): str(value) for name, value in dict(series["metric"]).items()}
            samples = [(float(when), float(value)) for when, value in series["values"]]
            yield labels, [(when, value) for when, value in samples if 0 <= when < inf and 0 <= value < inf]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadTable(
            f"{path}: is not the answer of Prometheus to a range query: data.result with the metric and values of each"
        ) from None


def _take(pods: Pods, metric: Labels, samples: Samples) -> bool:
    """What a series of kube-state-metrics says goes to its pod; False for a series that says nothing about pods."""
    name = metric.get("__name__")
    if not name:  # the query took it away (`sum by (pod, resource)`)
        name = REQUESTS[0] if "resource" in metric else PHASE if "phase" in metric else ""
    pod_name = metric.get("exported_pod") or metric.get("pod") or ""
    namespace = metric.get("exported_namespace") or metric.get("namespace") or "default"
    if not pod_name or not (name in REQUESTS or name == PHASE):
        return False
    pod = pods.setdefault((namespace, pod_name, metric.get("uid", "")), _Pod(namespace))
    at = [when for when, value in samples if value > 0]
    if name == PHASE:
        pod.running += at if metric.get("phase") == "Running" else []
    else:
        most = max((value for _, value in samples), default=0.0)
        resource, container = metric.get("resource", ""), metric.get("container", "")
        for holds, key, amount in (
            (pod.asked, f"{container}/{resource}", most * milli_of_resource(resource)),
            (pod.cpu_milli, container, most * 1000 if resource == "cpu" else 0),
            (pod.memory_mib, container, most / 2**20 if resource == "memory" else 0),
        ):
            if amount:
                holds[key] = max(holds.get(key, 0.0), amount)
        pod.on_node += at if metric.get("node") else []
        pod.since = min([pod.since, *(when for when, _ in samples)])
    return True


def _take_dcgm(pods: Pods, series: Sequence[tuple[Labels, Samples]], accounts: JobAccounts) -> int:
    """What DCGM's series say goes to the pods of that name; how many series did."""
    renamed = {metric.get("job", "") for metric, _ in series if metric.get("exported_pod")}
    named: dict[tuple[str, str], list[_Pod]] = {}
    for (namespace, name, _), pod in pods.items():
        named.setdefault((namespace, name), []).append(pod)
    known = 0
    for metric, samples in series:
        name = metric.get("exported_pod") or ""
        if not name and (metric.get("job", "") in renamed or "dcgm-exporter" in metric.get("container", "")):
            known += 1
            accounts.notes["series of idle GPUs were left out, whose pod is dcgm-exporter's own"] += 1
            continue
        namespace = metric.get("exported_namespace") or metric.get("namespace") or "default"
        key = namespace, name or metric.get("pod") or ""
        if not key[1]:
            continue
        known += 1
        if key not in named:
            named[key] = [pods.setdefault((*key, ""), _Pod(key[0]))]
        gpu = metric.get("UUID") or f"{metric.get('Hostname', '')}/{metric.get('gpu', '')}"
        for pod in named[key]:
            part = milli_of_profile(metric.get("GPU_I_PROFILE", "")) or MILLI
            pod.seen_gpus[f"{gpu}/{metric.get('GPU_I_ID', '')}"] = part
            pod.model = metric.get("modelName", pod.model)
            pod.seen_at += [when for when, _ in samples] if len(named[key]) == 1 else []
    return known


def _record(
    name: str, pod: _Pod, span: tuple[float, float, float], accounts: JobAccounts, how: Wanted
) -> Record | None:
    first, last, step = span
    milli = round(sum(pod.asked.values())) or sum(pod.seen_gpus.values())
    ran = pod.running or pod.seen_at or pod.on_node
    if not milli and not how.cpu_jobs:
        accounts.drop(Dropped.NO_GPU)
    elif not ran:
        accounts.drop(Dropped.NEVER_RAN)
    elif max(ran) + step > last:
        accounts.drop(Dropped.RUNNING)
    else:
        note = "pods ran before the range began; they arrive with it, with what was left of them"
        arrival = min(pod.since, min(ran))
        return Record(
            name, arrival, max(ran) - min(ran) + step, (milli,), pod.model, round(sum(pod.cpu_milli.values())),
            round(sum(pod.memory_mib.values())), user=pod.user, notes=(note,) if min(ran) - step < first else (),
        )  # fmt: skip
    return None

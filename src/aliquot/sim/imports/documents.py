"""Accounts of jobs as JSON documents: Philly's job log and Kueue's workloads.

Sources: msr-fiddle/philly-traces, README.md; Kueue's Workload, kueue.x-k8s.io.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from aliquot.model.quantities import MILLI
from aliquot.sim.imports.quantities import Unreadable, parse_quantity, parse_time
from aliquot.sim.imports.records import NEVER_RAN, NO_GPU, NO_TIMES, RUNNING, JobAccounts, Record
from aliquot.sim.imports.sheet import opened
from aliquot.sim.imports.tables import Wanted
from aliquot.sim.tables import BadTable

GPU_RESOURCES: Final = {"nvidia.com/gpu": MILLI, "amd.com/gpu": MILLI, "aliquot.dev/gpu-percent": MILLI // 100}
_BROKEN: Final = (KeyError, TypeError, AttributeError, IndexError)


def load(path: Path) -> Any:
    """A JSON document.

    Raises:
        BadTable: it cannot be read or is no JSON.
    """
    try:
        with opened(path) as file:
            return json.load(file)
    except (ValueError, RecursionError) as error:
        raise BadTable(f"{path}: is no JSON ({error})") from None


def read_philly(path: Path, ledger: JobAccounts, how: Wanted) -> Iterator[Record]:
    """The jobs of `cluster_job_log`: GPUs of the last attempt, the time of all attempts together.

    Raises:
        BadTable: no list of jobs.
    """
    jobs = load(path)
    if not isinstance(jobs, list):
        raise BadTable(f"{path}: is no list of jobs; Philly's cluster_job_log is wanted")
    for number, job in enumerate(jobs):
        ledger.seen += 1
        try:
            record = _philly(job, ledger, how)
        except Unreadable as error:
            ledger.unreadable(f"{path} job {number}: {error}")
        except _BROKEN:
            ledger.unreadable(f"{path} job {number}: is not a job of Philly's log")
        else:
            if record is not None:
                yield record


def _philly(job: Mapping[str, Any], ledger: JobAccounts, how: Wanted) -> Record | None:
    attempts = job["attempts"]
    spans = [tuple(_when(attempt.get(name), how) for name in ("start_time", "end_time")) for attempt in attempts]
    details = [attempt["detail"] for attempt in attempts if attempt.get("detail")]
    sizes = tuple(len(machine["gpus"]) * MILLI for machine in details[-1] if machine["gpus"]) if details else ()
    submitted = _when(job.get("submitted_time"), how)
    ran_s = sum(end - start for start, end in spans if start is not None and end is not None and end > start)
    if not attempts:
        ledger.drop(NEVER_RAN)
    elif not sizes and not how.cpu_jobs:
        ledger.drop(NO_GPU)
    elif spans[-1][0] is not None and spans[-1][1] is None:
        ledger.drop(RUNNING)
    elif submitted is None or not ran_s:
        ledger.drop(NO_TIMES)
    else:
        if any(None in span for span in spans):
            ledger.notes["jobs with an attempt whose times are not recorded, which is left out of their duration"] += 1
        return Record(str(job["jobid"]), submitted, ran_s, sizes or (0,), user=str(job.get("user") or ""))
    return None


def _when(value: object, how: Wanted) -> float | None:
    text = "" if value is None else str(value)
    try:
        return parse_time(text, how.zone)
    except Unreadable as error:
        raise Unreadable(f"{text[:80]!r} {error}") from None


def read_kueue(path: Path, ledger: JobAccounts, how: Wanted) -> Iterator[Record]:
    """The workloads of `kubectl get workloads -A -o json`: created, admitted, finished.

    Raises:
        BadTable: no list of objects, or none of it is a workload.
    """
    document = load(path)
    items = document.get("items", [document]) if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise BadTable(f"{path}: is no list of workloads; write it with: kubectl get workloads -A -o json")
    workloads = [item for item in items if isinstance(item, dict) and item.get("kind") == "Workload"]
    if not workloads:
        raise BadTable(f"{path}: has no Workload; write it with: kubectl get workloads -A -o json")
    if len(workloads) < len(items):
        ledger.ignored["objects of another kind"] += len(items) - len(workloads)
    for number, item in enumerate(workloads):
        ledger.seen += 1
        try:
            yield from _kueue(item, ledger, how)
        except Unreadable as error:
            ledger.unreadable(f"{path} workload {number}: {error}")
        except (*_BROKEN, ValueError):
            ledger.unreadable(f"{path} workload {number}: is not a Workload of Kueue")


def _kueue(item: Mapping[str, Any], ledger: JobAccounts, how: Wanted) -> Iterator[Record]:
    meta, spec = item["metadata"], item["spec"]
    said = {entry["type"]: entry for entry in item.get("status", {}).get("conditions", [])}
    created = _when(meta["creationTimestamp"], how)
    admitted = said.get("Admitted") or said.get("QuotaReserved")
    finished = said.get("Finished", {})
    pods = [(_pod(pod_set["template"]["spec"]), int(pod_set.get("count", 1))) for pod_set in spec["podSets"]]
    if not any(milli for (milli, _, _), _ in pods) and not how.cpu_jobs:
        ledger.drop(NO_GPU)
        return
    if finished.get("status") != "True":
        runs = admitted is not None and admitted.get("status") == "True"
        ledger.drop(RUNNING if runs else NEVER_RAN)
        return
    if admitted is None:
        ledger.drop(NEVER_RAN)
        return
    start, end = _when(admitted["lastTransitionTime"], how), _when(finished["lastTransitionTime"], how)
    if created is None or start is None or end is None or end <= start:
        ledger.drop(NO_TIMES)
        return
    if "Evicted" in said:
        ledger.notes["workloads were evicted once or more; only their last stay is known"] += 1
    name, user = f"{meta.get('namespace', 'default')}/{meta['name']}", str(meta.get("namespace", ""))
    for number, ((milli, cpu, memory), count) in enumerate(pods):
        if milli or how.cpu_jobs:
            part = name if len(pods) == 1 else f"{name}/{spec['podSets'][number].get('name', number)}"
            yield Record(
                part, created, end - start, (milli,) * count, cpu_milli=cpu, memory_mib=memory,
                priority=max(0, int(spec.get("priority") or 0)), user=user,
            )  # fmt: skip


def _pod(spec: Mapping[str, Any]) -> tuple[int, int, int]:
    """Milli-GPU, milli-CPU and MiB that a pod asks for; a limit stands for a request that is not given."""
    milli, cpu, memory = 0.0, 0.0, 0.0
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        milli += sum(parse_quantity(asked[name]) * factor for name, factor in GPU_RESOURCES.items() if name in asked)
        cpu += parse_quantity(asked.get("cpu", 0)) * 1000
        memory += parse_quantity(asked.get("memory", 0)) / 2**20
    return round(milli), round(cpu), round(memory)

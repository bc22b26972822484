"""Jobs from Kueue's workloads, as kubectl prints them in JSON or YAML.

Source: the Workload of kueue.x-k8s.io. A workload is created, admitted, and finished; one that was evicted in between
has only the times of its last stay, and the seconds that it ran before (`accumulatedPastExecutionTimeSeconds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from aliquot_lab.sim.imports.documents import jobs_in, parsed, read, when
from aliquot_lab.sim.imports.quantities import MAX_PARTS, Unreadable, milli_of_resource, parse_quantity
from aliquot_lab.sim.imports.records import Dropped, JobAccounts, Record
from aliquot_lab.sim.imports.tables import Wanted
from aliquot_lab.sim.tables import BadTable

COMMAND: Final = "kubectl get workloads -A -o json"
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_kueue(path: Path, accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    """The workloads of a list: created, admitted, finished.

    Raises:
        BadTable: no list of objects, or none of it is a workload.
    """
    document = _document(path)
    items = document.get("items", [document]) if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise BadTable(f"{path}: is no list of workloads; write it with: {COMMAND}")
    # Objects of a typed list, as the API server answers them, do not name their kind.
    named = "Workload" if document.get("kind") == "WorkloadList" else None
    workloads = [item for item in items if isinstance(item, dict) and item.get("kind", named) == "Workload"]
    if not workloads:
        raise BadTable(f"{path}: has no Workload; write it with: {COMMAND}")
    if len(workloads) < len(items):
        accounts.ignored["objects of another kind"] += len(items) - len(workloads)
    return jobs_in(
        workloads, f"{path} workload", "a Workload of Kueue", lambda item: _kueue(item, accounts, how), accounts
    )


def _document(path: Path) -> Any:
    text = read(path)
    if text.lstrip()[:1] in ("{", "["):
        return parsed(path, text)
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise BadTable(f"{path}{line}: is neither JSON nor YAML; write it with: {COMMAND}") from None


def _kueue(item: Mapping[str, Any], accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    said = {entry["type"]: entry for entry in status.get("conditions") or []}
    name, user = f"{meta.get('namespace', 'default')}/{meta['name']}", str(meta.get("namespace", ""))
    parts = []
    # As many pods as were admitted, which may be fewer than were asked for.
    assigned = (status.get("admission") or {}).get("podSetAssignments") or []
    counts = {entry.get("name"): entry.get("count") for entry in assigned}
    for number, pod_set in enumerate(spec["podSets"]):
        count = counts.get(pod_set.get("name")) or pod_set.get("count", 1)
        if not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
            raise Unreadable(f'"count" is {str(count)[:80]!r}; allowed are whole numbers from 0 to {MAX_PARTS:,}')
        pod = _pod(pod_set["template"]["spec"])
        if count and (pod[0] or how.cpu_jobs):
            parts.append((name if len(spec["podSets"]) == 1 else f"{name}/{pod_set.get('name', number)}", pod, count))
    if not parts:
        accounts.drop(Dropped.NO_GPU)
        return
    stay = _stay(meta, status, said, accounts, how)
    if stay is None:
        return
    created, ran_s, notes = stay
    priority = max(0, int(spec.get("priority") or 0))
    accounts.seen += len(parts) - 1  # each pod set is a job of the trace
    for part, (milli, cpu, memory), count in parts:
        yield Record(
            part, created, ran_s, (milli,) * count, cpu_milli=cpu, memory_mib=memory, priority=priority, user=user,
            notes=notes,
        )  # fmt: skip
        notes = ()  # they are of the workload


def _stay(
    meta: Mapping[str, Any], status: Mapping[str, Any], said: Mapping[str, Any], accounts: JobAccounts, how: Wanted
) -> tuple[float, float, tuple[str, ...]] | None:
    """When a workload was created, how long it ran, and notes; None where that is not known: the accounts say it."""
    created = when(meta["creationTimestamp"], how)
    admitted, finished = said.get("Admitted") or said.get("QuotaReserved"), said.get("Finished", {})
    if finished.get("status") != "True":
        runs = admitted is not None and admitted.get("status") == "True"
        accounts.drop(Dropped.RUNNING if runs else Dropped.NEVER_RAN)
        return None
    if admitted is None:
        accounts.drop(Dropped.NEVER_RAN)
        return None
    start, end = when(admitted["lastTransitionTime"], how), when(finished["lastTransitionTime"], how)
    before = float(status.get("accumulatedPastExecutionTimeSeconds") or 0)
    if created is None or start is None or end is None or end <= start or before < 0:
        accounts.drop(Dropped.NO_TIMES)
        return None
    known = "their stays are joined to one" if before else "only their last stay is known"
    notes = (f"workloads were evicted once or more; {known}",) if before or "Evicted" in said else ()
    return created, before + end - start, notes


def _pod(spec: Mapping[str, Any]) -> tuple[int, int, int]:
    """Milli-GPU, milli-CPU and MiB that a pod asks for; a limit stands for a request that is not given."""
    milli, cpu, memory = 0.0, 0.0, 0.0
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        milli += sum(parse_quantity(amount) * milli_of_resource(name) for name, amount in asked.items()
                     if milli_of_resource(name))  # fmt: skip
        cpu += parse_quantity(asked.get("cpu", 0)) * 1000
        memory += parse_quantity(asked.get("memory", 0)) / 2**20
    return round(milli), round(cpu), round(memory)

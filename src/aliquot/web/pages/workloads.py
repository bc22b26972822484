"""Workloads: running and waiting ones with place, promise and use; one of them with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from aliquot.status import COMPLETED, PENDING, RUNNING, OwnedView, StatusSource, Workload
from aliquot.web.pages import Drawn, NotHere, Query, commands, misread, one_page
from aliquot.web.render import block

PER_PAGE: Final = 50
LINKED: Final = 8
"""Containers of a workload whose timelines its page links to."""
STATES: Final = (PENDING, RUNNING, COMPLETED)
"""The states that the page offers also where nothing is in them."""
NO_WORKLOAD: Final = (
    "No workloads yet. On one machine start one with aliquot run, or aliquot apply -f FILE; in a cluster with a "
    "SharePod, or a pod with aliquot.dev/gpu-percent. You see those of the namespaces that you may list."
)


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The part of the workloads that the query selects."""
    everything = facts.workloads()
    found = matching(everything, query)
    shown, pager = one_page(query, "/workloads", found, PER_PAGE, "workloads")
    counts = dict.fromkeys(STATES, 0) | Counter(workload.state for workload in everything)
    blocks = [
        *misread(query, {"q": None, "state": counts, "namespace": None, "page": None}),
        block("counts", "blocks/counts.html", counts=counts),
        block("workloads", "blocks/workloads.html", workloads=shown, window_s=facts.window_s)
        if shown
        else block("none", "blocks/none.html", text="No workload fits these filters." if everything else NO_WORKLOAD),
        *pager,
    ]
    namespaces = sorted({workload.namespace for workload in everything if workload.namespace})
    return Drawn(
        "Workloads", blocks, {"states": list(counts), "namespaces": namespaces, "command": commands.workloads(facts)}
    )


def draw_one(facts: StatusSource, query: Query) -> Drawn:
    """The workload that the query names."""
    name = query.get("name", "")
    workload = next((workload for workload in facts.workloads() if workload.name == name), None)
    if workload is None:
        raise NotHere(f"There is no workload {name[:100]} here.")
    blocks = [
        block("workload", "blocks/workload.html", workload=workload, window_s=facts.window_s),
        block("why", "blocks/why.html", why=facts.explain(name)),
        block("events", "blocks/notes.html", notes=list(reversed(workload.events))),
    ]
    tenants = dict.fromkeys(s.tenant for gpu in facts.gpus() for s in gpu.shares if s.workload == name)
    frame: dict[str, Any] = {"command": commands.of_workload(facts, workload), "tenants": list(tenants)[:LINKED]}
    frame |= {"own": isinstance(facts, OwnedView) and facts.owns(name), "logs": workload.kind == "SharePod"}
    return Drawn(workload.name, blocks, frame)


def matching(workloads: Sequence[Workload], query: Query) -> list[Workload]:
    """The workloads whose name, model or node contains the text, of the given state and namespace."""
    text, state, namespace = query.get("q", "").strip().lower(), query.get("state", ""), query.get("namespace", "")
    return [
        workload
        for workload in workloads
        if (not state or workload.state == state)
        and (not namespace or workload.namespace == namespace)
        and any(text in name.lower() for name in (workload.name, workload.model, *(p.node for p in workload.pieces)))
    ]

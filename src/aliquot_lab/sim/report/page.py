"""The page itself: the verdict, one table of all policies, and a finding above every picture."""

from __future__ import annotations

from html import escape
from typing import Any

from aliquot_lab.sim.report import pictures, tables
from aliquot_lab.sim.report.findings import verdict
from aliquot_lab.sim.report.style import STYLE
from aliquot_lab.sim.study import Made, Study


def page(study: Study, facts: dict[str, Any], times: dict[str, Any] | None, made: Made | None = None) -> str:
    """The whole report as HTML; every number in it is one of `summary.json` (or `timing.json`)."""
    body = [_head(facts, made), pictures.sizes(facts)]
    if study.policies:
        body += [
            tables.policies(facts),
            tables.waits_by_kind(facts),
            tables.waits_by_user(facts),
            tables.gpu_hours(facts),
            pictures.waits(facts),
            *pictures.curves(study, facts),
            *(pictures.heat(study, group) for group in study.policies),
        ]
    if times is not None:
        body.append(tables.decisions(times))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(_title(facts))}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _title(facts: dict[str, Any]) -> str:
    load = f" at load {facts['load']:g}" if facts["load"] is not None else ""
    cluster = facts["cluster"]
    return f"{facts['trace']}{load} on {cluster['gpus']:,} GPUs ({cluster['source']})"


def _head(facts: dict[str, Any], made: Made | None) -> str:
    cluster = facts["cluster"]
    seeds = sorted({seed for row in facts["policies"] for seed in row["seeds"]})
    told = (
        f", seed {seeds[0]}" if len(seeds) == 1 else f", {len(seeds)} seeds, {seeds[0]} to {seeds[-1]}" if seeds else ""
    )
    missing = len(facts["missing"])
    note = "" if facts["complete"] else f'<p class="note">Incomplete: {missing} runs were not finished.</p>'
    means = " Means over the seeds, ± one standard deviation." if len(seeds) > 1 else ""
    how = "" if made is None else (
        f'<p class="small"><code>{escape(made.command)}</code><br>{escape(made.date)}, '
        f"aliquot {escape(made.version)}</p>"
    )  # fmt: skip
    said = "".join(f'<p class="verdict">{escape(line)}</p>' for line in verdict(facts))
    return (
        f"<header><h1>{escape(_title(facts))}</h1>{note}{said}"
        f"<p>{cluster['nodes']:,} nodes with {cluster['gpus']:,} GPUs, {facts['offered']['jobs']:,} jobs, "
        f"queue {escape(facts['queue'])}, vGPU pool {escape(facts['pool'])}{told}.{means}</p>{how}</header>"
    )

"""The page itself, with its style sheet: the verdict, one table of all policies, and a finding above every picture."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from aliquot_lab.sim.report import pictures, tables
from aliquot_lab.sim.report.findings import verdict
from aliquot_lab.sim.study import Made, Study

_LIGHT: Final = ("#1b7837", "#2166ac", "#b35806", "#762a83", "#8c510a", "#c51b7d", "#4d4d4d", "#01665e", "#b2182b")
_DARK: Final = ("#7fc97f", "#80b1d3", "#fdb863", "#c2a5cf", "#dfc27d", "#f1b6da", "#bababa", "#5ab4ac", "#ef8a62")


def _colours(shades: tuple[str, ...]) -> str:
    return "".join(f"--s{number}:{shade};" for number, shade in enumerate(shades))


_SERIES: Final = "".join(
    f".line.s{n}{{stroke:var(--s{n})}}.band.s{n}{{fill:var(--s{n})}}i.s{n}{{background:var(--s{n})}}"
    for n in range(len(_LIGHT))
)

# Below this width a row of a wide table is a card with a line for each figure, named by `data-name`.
_PHONE: Final = (
    ".phone{display:none}@media screen and (max-width:640px){.screen{display:none}.phone{display:block}"
    "main{padding:16px 8px 48px}h1{font-size:22px;line-height:28px}"
    ".cards thead{display:none}.cards,.cards tbody,.cards tr,.cards th,.cards td{display:block}"
    ".cards tbody th{font-weight:600;margin-top:16px}.cards td{display:flex;justify-content:space-between;"
    "padding:0 8px}.cards td::before{content:attr(data-name);color:var(--soft);white-space:normal;"
    "text-align:left;padding-right:16px}th,td{padding:0 4px}table{font-size:13px}code{overflow-wrap:anywhere}}"
)
# Last, so that it overrides what is above.
_PRINT: Final = (
    f"@media print{{:root{{--ink:#000;--soft:#555;--rule:#ccc;--paper:#fff;{_colours(_LIGHT)}}}"
    "main{max-width:none;padding:0}section{break-inside:avoid}details{display:none}.wide{overflow:visible}"
    "table{font-size:10px;line-height:16px}thead th,small{font-size:9px}th,td{padding:0 4px}h2{margin-top:24px}"
    "svg,i{print-color-adjust:exact}}@page{margin:12mm}"
)

STYLE: Final = (
    f":root{{color-scheme:light dark;--ink:#1a1a1a;--soft:#666;--rule:#ddd;--paper:#fff;{_colours(_LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{--ink:#e6e6e6;--soft:#999;--rule:#3a3a3a;--paper:#161616;"
    f"{_colours(_DARK)}}}}}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/24px system-ui,sans-serif;"
    "font-variant-numeric:tabular-nums}"
    "main{max-width:1152px;margin:0 auto;padding:24px 32px 64px}"
    "h1{font-size:28px;line-height:32px;margin:0 0 8px;font-weight:600}"
    "h2{font-size:18px;line-height:24px;margin:40px 0 8px;font-weight:600}"
    "p{margin:0 0 8px;max-width:80ch}.small,small{font-size:13px;color:var(--soft)}"
    ".note{border-left:4px solid #b35806;padding-left:12px;font-weight:600}"
    "table{border-collapse:collapse;font-size:14px;line-height:24px}.wide{overflow-x:auto}"
    "th,td{text-align:right;padding:0 8px;border-bottom:1px solid var(--rule);font-weight:400;white-space:nowrap}"
    "thead th{color:var(--soft);font-size:13px;white-space:normal;vertical-align:bottom;line-height:16px;"
    "padding:4px 8px}"
    "tbody th,thead th:first-child{text-align:left}"
    "svg{display:block;width:100%;height:auto}svg text{font-size:12px;fill:var(--soft)}"
    "svg .end{text-anchor:end}svg .mid{text-anchor:middle}svg .title{fill:var(--ink)}"
    ".grid{stroke:var(--rule);stroke-width:1}.axis,.tick{stroke:var(--soft);stroke-width:1}"
    ".frame{fill:none;stroke:var(--rule);stroke-width:1}"
    ".line{fill:none;stroke-width:1.75;stroke-linejoin:round}.band{opacity:.18;stroke:none}"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:0 24px;margin:0;padding:0;font-size:14px}"
    "i{display:inline-block;width:12px;height:12px;margin-right:8px;border-radius:2px;vertical-align:-1px}"
    "summary{font-size:13px;color:var(--soft);cursor:pointer}code{font-size:13px}.verdict{font-size:18px;line-height:26px}"
    + _SERIES
    + _PHONE
    + _PRINT
)


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

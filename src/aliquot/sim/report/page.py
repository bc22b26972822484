"""The page itself: what was asked, one table of all policies, and a finding above every picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aliquot.lib.arrays import FloatArray
from aliquot.sim.measures import BINS
from aliquot.sim.report.style import STYLE
from aliquot.sim.report.svg import COLOURS, Axis, ChartLine, chart, legend, strip

if TYPE_CHECKING:
    from aliquot.sim.study import PolicyRuns, Study

COLUMNS: Final = (
    ("allocation_percent", "allocated", "%"), ("fragmentation_percent", "fragmented", "%"),
    ("utilisation_percent", "utilisation", "%"), ("active_gpus", "active GPUs", ""), ("wait_mean_s", "mean wait", "s"),
    ("wait_p90_s", "90 % wait at most", "s"), ("wait_p99_s", "99 % wait at most", "s"),
    ("completion_mean_s", "mean completion", "s"), ("makespan_s", "makespan", "s"),
    ("throughput_per_min", "jobs a minute", ""), ("waiting_at_end", "waiting at the end", ""), ("moves", "moves", ""),
)  # fmt: skip
KINDS: Final = (("cpu", "no GPU"), ("fractional", "part of a GPU"), ("one", "one GPU"), ("multi", "several GPUs"))
MOST_ROWS: Final = 320


def page(study: Study, facts: dict[str, Any], times: dict[str, Any] | None) -> str:
    """The whole report as HTML; every number in it is one of `summary.json` (or `timing.json`)."""
    body = [_head(facts), _table(facts), _waits_by_kind(facts)]
    if study.policies:
        body += [
            _curve(study, facts, "allocation_percent", "GPU allocated (%)", "most"),
            _curve(study, facts, "fragmentation_percent", "GPU fragmented (%)", "least"),
            _curve(study, facts, "waiting_percent", "GPU demand waiting (%)", "least"),
            _waits(facts),
            *(_heat(group) for group in study.policies),
        ]
    if times is not None:
        body.append(_decisions(times))
    title = f"{facts['trace']} on {facts['cluster']['source']}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _head(facts: dict[str, Any]) -> str:
    cluster = facts["cluster"]
    seeds = sorted({seed for row in facts["policies"] for seed in row["seeds"]})
    told = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}" if seeds else ""
    missing = len(facts["missing"])
    note = "" if facts["complete"] else f'<p class="note">Incomplete: {missing} runs were not finished.</p>'
    means = "Means over the seeds, ± one standard deviation." if len(seeds) > 1 else ""
    load = f", load {facts['load']:g}" if facts["load"] is not None else ""
    return (
        f"<header><h1>{escape(facts['trace'])}{escape(load)}</h1>"
        f"<p>{cluster['nodes']} nodes with {cluster['gpus']} GPUs ({escape(cluster['source'])}), "
        f"queue {escape(facts['queue'])}, vGPU pool {escape(facts['pool'])}, {told}. "
        f"{means}</p>{note}</header>"
    )


def number(value: float) -> str:
    """A number with as many digits as help: 93.86, 1,234, 0.0421."""
    if value == 0:
        return "0"
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.2f}" if size >= 0.1 else f"{value:.4f}"


def _table(facts: dict[str, Any]) -> str:
    rows = facts["policies"]
    shown = [column for column in COLUMNS if any(row["mean"].get(column[0]) for row in rows)]
    heads = "".join(f"<th>{escape(title)}{f' ({unit})' if unit else ''}</th>" for _, title, unit in shown)
    lines = []
    for at, row in enumerate(rows):
        cells = "".join(f"<td>{number(row['mean'][name])}{_deviation(row, name)}</td>" for name, _, _ in shown)
        lines.append(f'<tr><th><i class="s{at % COLOURS}"></i>{escape(row["policy"])}</th>{cells}</tr>')
    return (
        "<section><h2>The policies side by side</h2>"
        f'<div class="wide"><table><thead><tr><th>policy</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _deviation(row: dict[str, Any], name: str) -> str:
    if len(row["seeds"]) < 2:
        return ""
    return f"<small> ±{number(row['sd'][name])}</small>"


def _waits_by_kind(facts: dict[str, Any]) -> str:
    rows = facts["policies"]
    kinds = [(f"wait_mean_{kind}_s", title) for kind, title in KINDS]
    shown = [(name, title) for name, title in kinds if any(name in row["mean"] for row in rows)]
    heads = "".join(f"<th>{escape(title)}</th>" for _, title in shown)
    lines = "".join(
        f"<tr><th>{escape(row['policy'])}</th>"
        + "".join(f"<td>{number(row['mean'].get(name, 0.0))}</td>" for name, _ in shown)
        + "</tr>"
        for row in rows
    )
    return (
        f"<section><h2>Mean wait by what was asked for</h2><table><thead><tr><th>seconds</th>{heads}</tr></thead>"
        f"<tbody>{lines}</tbody></table></section>"
    )


def _finding(facts: dict[str, Any], figure: str, verb: str, best: str, unit: str) -> str:
    """The policies' order in one sentence; no order where the seeds do not show one."""
    rows = sorted(facts["policies"], key=lambda row: row["mean"][figure], reverse=best == "most")
    if not rows:
        return "No run was finished"
    first, last = rows[0], rows[-1]
    ends = [number(row["mean"][figure]) for row in (first, last)]
    if len(rows) == 1 or ends[0] == ends[1]:
        return f"{first['policy'] if len(rows) == 1 else 'Every policy'} {verb} {ends[0]} {unit}"
    if not _apart(first, last, figure):
        return f"No policy clearly {verb} {best}: {ends[0]} {unit} to {ends[1]} {unit}"
    return f"{first['policy']} {verb} {best}: {ends[0]} {unit}, {last['policy']} {ends[1]} {unit}"


def _apart(one: dict[str, Any], other: dict[str, Any], figure: str) -> bool:
    """Whether two policies differ by more than two standard errors of their difference, seed by seed."""
    theirs = {run["seed"]: run[figure] for run in other["runs"]}
    paired = [run[figure] - theirs[run["seed"]] for run in one["runs"] if run["seed"] in theirs]
    if len(paired) < 2:
        return True
    return bool(abs(np.mean(paired)) > 2 * np.std(paired, ddof=1) / np.sqrt(len(paired)))


_VERBS: Final = {
    "allocation_percent": "allocates",
    "fragmentation_percent": "fragments",
    "waiting_percent": "leaves waiting",
}


def _curve(study: Study, facts: dict[str, Any], curve: str, title: str, best: str) -> str:
    x = time_axis(study.end_s)
    lines, top = [], 0.0
    for group in study.policies:
        band = group.band(curve, study.end_s)
        several = len(group.seeds) > 1
        top = max(top, float(band.high.max()))
        lines.append(
            ChartLine(group.policy, (np.arange(BINS) + 0.5) / BINS * study.end_s, band.mean,
                 band.low if several else None, band.high if several else None)
        )  # fmt: skip
    finding = _finding(facts, curve, _VERBS[curve], best, "%")
    end = 100.0 if curve == "allocation_percent" else nice_end(top)
    picture = chart(lines, x, Axis(title, end), finding)
    band_note = " The band holds all seeds." if any(len(group.seeds) > 1 for group in study.policies) else ""
    return (
        f"<section><h2>{escape(finding)}</h2>{legend([line.name for line in lines])}{picture}"
        f'<p class="small">{title} over time.{band_note} All points: curves.csv.</p>'
        f"{_points_table(lines, x.title)}</section>"
    )


def nice_end(top: float) -> float:
    """A round end of an axis that holds a value."""
    from aliquot.sim.report.svg import nice

    step = nice(max(top, 1e-9) / 5)
    return step * int(np.ceil(max(top, 1e-9) / step))


def _points_table(lines: Sequence[ChartLine], time_title: str) -> str:
    """The same curve as a few numbers, for readers who cannot see it."""
    at = [BINS // 10 * part + BINS // 20 for part in range(10)]
    axis = time_axis(float(lines[0].x[-1]))
    heads = "".join(f"<th>{escape(axis.tell(float(lines[0].x[point])))}</th>" for point in at)
    rows = "".join(
        f"<tr><th>{escape(line.name)}</th>"
        + "".join(f"<td>{number(float(line.y[point]))}</td>" for point in at)
        + "</tr>"
        for line in lines
    )
    return (
        f"<details><summary>as a table</summary><table><thead><tr><th>{escape(time_title)}</th>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></details>"
    )


def _waits(facts: dict[str, Any]) -> str:
    rows = [(row["policy"], row["wait_quantiles_s"]) for row in facts["policies"]]
    percents = np.array([float(percent) for percent in rows[0][1]])
    longest = max(max(quantiles.values()) for _, quantiles in rows)
    finding = _finding(facts, "wait_mean_s", "waits", "least", "s on average")
    lines = [ChartLine(policy, np.maximum(list(quantiles.values()), 1.0), percents) for policy, quantiles in rows]
    x = Axis("waited at most (s, logarithmic, 1 stands for less)", max(longest, 10.0), lambda v: f"{v:,.0f}", log=True)
    shown = ("50", "90", "99", "99.9", "100")
    heads = "".join(f"<th>{percent} %</th>" for percent in shown)
    table = "".join(
        f"<tr><th>{escape(policy)}</th>" + "".join(f"<td>{number(quantiles[at])}</td>" for at in shown) + "</tr>"
        for policy, quantiles in rows
    )
    picture = chart(lines, x, Axis("part of the jobs (%)", 100.0), finding)
    return (
        f"<section><h2>{escape(finding)}</h2>{legend([policy for policy, _ in rows])}{picture}"
        f"<table><thead><tr><th>waited at most (s)</th>{heads}</tr></thead><tbody>{table}</tbody></table></section>"
    )


def _heat(group: PolicyRuns) -> str:
    run = group.runs[0]
    use = _fewer_rows(run.gpu_use)
    given = number(run.figures["utilisation_percent"])
    finding = f"{group.policy} keeps {given} % of the GPUs given away (seed {group.seeds[0]})"
    told = "one row per GPU" if len(use) == len(run.gpu_use) else f"one row per {-(-len(run.gpu_use) // len(use))} GPUs"
    return (
        f"<section><h2>{escape(finding)}</h2>{strip(use, time_axis(run.end_s), finding)}"
        f'<p class="small">{told}, in the order of the nodes; the stronger the green, the more of it is allocated.</p>'
        "</section>"
    )


def _fewer_rows(use: FloatArray) -> FloatArray:
    """At most `MOST_ROWS` rows, each the mean of neighbours."""
    together = -(-len(use) // MOST_ROWS)
    if together <= 1:
        return use
    return np.array([use[start : start + together].mean(axis=0) for start in range(0, len(use), together)])


def _decisions(times: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(row['policy'])}</th><td>{row['decisions']:,}</td><td>{row['mean_us']:,}</td>"
        f"<td>{row['p50_us']:,}</td><td>{row['p99_us']:,}</td><td>{row['max_us']:,}</td></tr>"
        for row in times["decision_time"]
    )
    return (
        "<section><h2>Time of a decision on the machine that simulated</h2><table><thead><tr><th>µs</th>"
        f"<th>decisions</th><th>mean</th><th>50 %</th><th>99 %</th><th>longest</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></section>"
    )


def time_axis(end_s: float) -> Axis:
    """Seconds, minutes, hours or days, whichever has few digits."""
    units = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
    unit, seconds = next((entry for entry in units if end_s >= 3 * entry[1]), units[-1])
    return Axis(f"time ({unit})", max(end_s, 1e-6), lambda value: f"{value / seconds:.4g}", unit=seconds)

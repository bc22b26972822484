"""Fig. 6 in a terminal: a bar per tenant with its due marked, and a line of the last minutes per tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aliquot_lab.bench.fig6 import TOLERANCE, Phase, Report

BAR_CELLS: Final = 40
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


def bar(share: float, due: float, cells: int = BAR_CELLS) -> str:
    """A bar of a share of one GPU, with a stroke where the due is."""
    filled = max(0, min(cells, round(share * cells)))
    mark = max(0, min(cells - 1, round(due * cells)))
    return "".join("│" if at == mark else "█" if at < filled else "░" for at in range(cells))


def spark(shares: Sequence[float], cells: int = BAR_CELLS) -> str:
    """The last `cells` values as blocks; a full block is a whole GPU."""
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[max(0, min(steps, round(share * steps)))] for share in shares[-cells:]).rjust(cells)


def live(report: Report, phase: Phase, end_s: float) -> str:
    """The present picture as lines of fixed width."""
    point = report.usage[-1]
    emulated = " (emulated)" if report.emulated else ""
    lines = [
        f"{report.gpu}{emulated}   {phase.name}   {point.at_s:5.0f} of {end_s:.0f} s",
        f"  {'TENANT':8}{'REQUEST':>8}{'LIMIT':>8}  {'USAGE (│ its due)':{BAR_CELLS}}        {'HISTORY':>{BAR_CELLS}}",
    ]
    for tenant, ask in phase.asks.items():
        share = point.usage.get(tenant, 0.0)
        due = phase.expected.get(tenant, 0.0)
        past = [seen.usage.get(tenant, 0.0) for seen in report.usage]
        lines.append(
            f"  demo/{tenant:3}{ask.request_milli / 1000:8.2f}{ask.limit_milli / 1000:8.2f}"
            f"  {bar(share, due)}  {share:.2f}  {spark(past)}"
        )
    return "\n".join(lines)


def plain(report: Report, phase: Phase, end_s: float) -> str:
    """The present picture as one line, for a log."""
    point = report.usage[-1]
    shares = "  ".join(f"{tenant} {point.usage.get(tenant, 0.0):.2f}" for tenant in phase.asks)
    return f"{point.at_s:6.1f} s of {end_s:.0f}  {phase.name:14}  {shares}"


def table(report: Report) -> str:
    """Expected against measured, one line per tenant and phase, and the verdict."""
    lines = [f"  {'PHASE':15}{'TIME':>11}  TENANT  EXPECTED  MEASURED  CHARGED   ERROR"]
    for seen in report.phases:
        span = f"{seen.phase.start_s:.0f}-{seen.phase.end_s:.0f} s"
        for tenant, error in seen.errors().items():
            due, own, charged = (by.get(tenant, 0.0) for by in (seen.phase.expected, seen.measured, seen.charged))
            lines.append(
                f"  {seen.phase.name:15}{span:>11}  {tenant:6}  {due:8.3f}  {own:8.3f}  {charged:7.3f}  {error:6.3f}"
            )
    done = f"{report.done_per_charged * 100:.0f} % of the time charged was filled with kernels"
    verdict = "kept" if report.kept else "NOT kept"
    lines.append(f"Largest error {report.max_error:.3f}, {TOLERANCE} allowed; {done}: the promise is {verdict}.")
    return "\n".join(lines)

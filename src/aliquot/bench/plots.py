"""Fig. 6 as a picture: one colour per tenant, the due as a thin line behind, a finding as the title."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from aliquot.bench.fig6 import Report, Tenant

COLOURS: Final = {"a": "#1b7837", "b": "#2166ac", "c": "#b35806"}
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "svg.hashsalt": "aliquot",
    "svg.fonttype": "none",
}


def title(report: Report) -> str:
    """The finding in one sentence."""
    if report.kept:
        return f"Every share is within {report.max_error * 100:.1f} points of what is due"
    return f"A share is {report.max_error * 100:.1f} points off what is due"


def draw_fig6(report: Report, directory: Path) -> list[Path]:
    """Write fig6.svg and fig6.png into `directory` (made if missing) and return their paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
        _draw_due(axes, report)
        _draw_usage(axes, report)
        axes.set(xlabel="time (s)", ylabel="share of the GPU over the window", ylim=(0, 0.75))
        axes.set_title(title(report), loc="left")
        axes.legend(frameon=False, ncols=3, loc="upper right")
        emulated = " (emulated)" if report.emulated else ""
        figure.text(0.01, -0.03, f"{report.gpu}{emulated}; thin lines: due", fontsize=8, color="#666666")
        paths = [directory / "fig6.svg", directory / "fig6.png"]
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=160, metadata=metadata, bbox_inches="tight")
        pyplot.close(figure)
    return paths


def _draw_due(axes: Any, report: Report) -> None:
    for seen in report.phases:
        axes.axvline(seen.phase.start_s, color="#cccccc", linewidth=0.8)
        for tenant, due in seen.phase.expected.items():
            edges = (seen.phase.start_s, seen.phase.end_s)
            axes.plot(edges, (due, due), color=COLOURS[tenant], linewidth=0.8, alpha=0.6, linestyle=(0, (4, 3)))


def _draw_usage(axes: Any, report: Report) -> None:
    for name, colour in COLOURS.items():
        tenant = Tenant(name)
        points = [(point.at_s, point.usage[tenant]) for point in report.usage if tenant in point.usage]
        if points:
            times, shares = zip(*points, strict=True)
            axes.plot(times, shares, color=colour, linewidth=1.6, label=name.upper())

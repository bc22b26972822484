"""Fig. 6 and the topology churn as pictures, each with a finding as its title."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from aliquot_lab.bench.fig6 import Report, Tenant

COLOURS: Final = {Tenant("a"): "#1b7837", Tenant("b"): "#2166ac", Tenant("c"): "#b35806"}
POLICIES: Final = {
    "first-index": ("first index", "#999999"),
    "best-effort": ("NVIDIA best-effort", "#b35806"),
    "aliquot": ("Aliquot", "#1b7837"),
}
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "svg.hashsalt": "aliquot",
    "svg.fonttype": "none",
}


@contextmanager
def _figure(size: tuple[float, float], style: dict[Any, Any] | None = None) -> Iterator[tuple[Any, Any]]:
    """A figure with its axes, closed afterwards; equal figures are equal files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(_STYLE | (style or {})):
        figure, axes = pyplot.subplots(figsize=size, layout="constrained")
        yield figure, axes
        pyplot.close(figure)


def title(report: Report) -> str:
    """The finding in one sentence."""
    if report.kept:
        return f"Every share is within {report.max_error * 100:.1f} points of what is due"
    return f"A share is {report.max_error * 100:.1f} points off what is due"


def draw_fig6(report: Report, directory: Path, name: str = "fig6") -> list[Path]:
    """Write NAME.svg and NAME.png into `directory` (made if missing) and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    with _figure((8, 4)) as (figure, axes):
        for seen in report.phases:
            axes.axvline(seen.phase.start_s, color="#cccccc", linewidth=0.8)
            for tenant, due in seen.phase.expected.items():
                edges = (seen.phase.start_s, seen.phase.end_s)
                axes.plot(edges, (due, due), color=COLOURS[tenant], linewidth=0.8, alpha=0.6, linestyle=(0, (4, 3)))
        for tenant, colour in COLOURS.items():
            points = [(point.at_s, point.usage[tenant]) for point in report.usage if tenant in point.usage]
            if points:
                times, shares = zip(*points, strict=True)
                axes.plot(times, shares, color=colour, linewidth=1.6, label=tenant.upper())
        axes.set(xlabel="time (s)", ylabel="share of the GPU over the window", ylim=(0, 0.75))
        axes.set_title(title(report), loc="left")
        axes.legend(frameon=False, ncols=3, loc="upper right")
        emulated = " (emulated)" if report.emulated else ""
        figure.text(0.01, -0.03, f"{report.gpu}{emulated}; thin lines: due", fontsize=8, color="#666666")
        paths = [directory / f"{name}.svg", directory / f"{name}.png"]
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=160, metadata=metadata, bbox_inches="tight")
    return paths


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean part of the best bandwidth kept by each policy over machines and sizes, every case counting alike."""
    return {policy: fmean(row["kept"] for row in rows if row["policy"] == policy) for policy in POLICIES}


def draw_churn(rows: Sequence[Mapping[str, Any]], directory: Path, about: str) -> None:
    """Write topology_churn.svg and .json (the same rows) into `directory`, made if missing."""
    directory.mkdir(parents=True, exist_ok=True)
    cases = list(dict.fromkeys((row["machine"], row["size"]) for row in rows))
    mean = means(rows)
    with _figure((8, 1.4 + 0.3 * len(cases)), {"axes.spines.left": False}) as (figure, axes):
        places = [len(cases) - 1 - at for at in range(len(cases))]
        for policy, (label, colour) in POLICIES.items():
            kept = {(row["machine"], row["size"]): row["kept"] for row in rows if row["policy"] == policy}
            axes.scatter([kept[case] * 100 for case in cases], places, color=colour, s=36, label=label)
        axes.set_yticks(places)
        axes.set_yticklabels([f"{machine}, {size} GPUs" for machine, size in cases])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("mean pair bandwidth of a job, % of the best set of an empty machine (modelled)")
        others = ", ".join(f"{POLICIES[policy][0]} {mean[policy]:.1%}" for policy in ("best-effort", "first-index"))
        finding = f"Jobs keep {mean['aliquot']:.1%} of the best bandwidth ({others})"
        figure.suptitle(finding, x=0.01, ha="left", fontsize=11)
        figure.legend(*axes.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower right")
        figure.savefig(directory / "topology_churn.svg", metadata={"Date": None}, bbox_inches="tight")
    facts = json.dumps({"about": about, "means": mean, "rows": list(rows)}, indent=1)
    (directory / "topology_churn.json").write_text(f"{facts}\n", "utf-8")

"""The churn comparison as a picture: per machine and job size, what part of the best bandwidth each policy keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

COLOURS: Final = {"first-index": "#999999", "best-effort": "#b35806", "aliquot": "#1b7837"}
LABELS: Final = {"first-index": "first index", "best-effort": "NVIDIA best-effort", "aliquot": "Aliquot"}
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.8,
    "svg.hashsalt": "aliquot",
    "svg.fonttype": "none",
}


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean part kept by each policy over machines and sizes, every case counting alike."""
    return {policy: fmean(row["kept"] for row in rows if row["policy"] == policy) for policy in COLOURS}


def title(rows: Sequence[Mapping[str, Any]]) -> str:
    """The finding in one sentence."""
    kept = means(rows)
    told = f"{kept['aliquot']:.1%} of the best bandwidth"
    return f"Jobs keep {told} (NVIDIA best-effort {kept['best-effort']:.1%}, first index {kept['first-index']:.1%})"


def draw_churn(rows: Sequence[Mapping[str, Any]], directory: Path, about: str) -> list[Path]:
    """Write topology_churn.svg and .json (the same rows) into `directory`, made if missing; returns their paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    cases = list(dict.fromkeys((row["machine"], row["size"]) for row in rows))
    svg, facts = directory / "topology_churn.svg", directory / "topology_churn.json"
    with mpl.rc_context(_STYLE):
        figure, axes = pyplot.subplots(figsize=(8, 1.4 + 0.3 * len(cases)), layout="constrained")
        for policy, colour in COLOURS.items():
            kept = {(row["machine"], row["size"]): row["kept"] for row in rows if row["policy"] == policy}
            places = [len(cases) - 1 - at for at in range(len(cases))]
            axes.scatter([kept[case] * 100 for case in cases], places, color=colour, s=36, label=LABELS[policy])
        axes.set_yticks([len(cases) - 1 - at for at in range(len(cases))])
        axes.set_yticklabels([f"{machine}, {size} GPUs" for machine, size in cases])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("mean pair bandwidth of a job, % of the best set of an empty machine (modelled)")
        figure.suptitle(title(rows), x=0.01, ha="left", fontsize=11)
        figure.legend(*axes.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower right")
        figure.savefig(svg, metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)
    facts.write_text(json.dumps({"about": about, "means": means(rows), "rows": list(rows)}, indent=1) + "\n", "utf-8")
    return [svg, facts]

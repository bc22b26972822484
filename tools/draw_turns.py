#!/usr/bin/env python3
"""A picture of docs/concepts.md, from the simulator: `python tools/draw_turns.py`.

How far each of three programs that work and rest is behind the fluid, over half a minute, under `fluid` and `gemini`.
Writes docs/figures/turns-lag.svg and, with the figures it is drawn from, docs/figures/turns-lag.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aliquot.tokens import SECOND, Turns
from aliquot_lab.bench.plots import COLOURS
from aliquot_lab.sim.turns.mixes import BY_NAME
from aliquot_lab.sim.turns.node import STEP_NS
from aliquot_lab.sim.turns.study import case_of, play

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
SEED, SECONDS, FROM_S, SHOWN_S = 1, 60, 15, 30
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.8, "svg.hashsalt": "aliquot", "svg.fonttype": "none",
}  # fmt: skip


def facts() -> dict[str, Any]:
    """The lags in milliseconds at every step that is shown, by way of taking turns, and what the windows say."""
    found: dict[str, Any] = {"mix": "irregular", "seed": SEED, "seconds": SECONDS, "step_ms": STEP_NS // 1_000_000}
    steps = slice(FROM_S * SECOND // STEP_NS, (FROM_S + SHOWN_S) * SECOND // STEP_NS + 1)
    for way in (Turns.FLUID, Turns.GEMINI):
        node = play(BY_NAME["irregular"], way, SEED, SECONDS)
        case = case_of(node, way, SEED)
        found[way.value] = {
            "lag_ms": {name: [round(1000 * lag) for lag in lags[steps]] for name, lags in node.lags.items()},
            "error_p95": case["error_p95"],
            "error_worst": case["error_worst"],
        }
    return found


def draw(told: dict[str, Any]) -> Any:
    """Two panels with one scale."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 1, figsize=(8, 4.6), sharex=True, sharey=True, layout="constrained")
    for axes, way in zip(panels, ("fluid", "gemini"), strict=True):
        for (name, lags), colour in zip(told[way]["lag_ms"].items(), COLOURS.values(), strict=False):
            at_s = [FROM_S + step * told["step_ms"] / 1000 for step in range(len(lags))]
            axes.plot(at_s, lags, color=colour, linewidth=1, label=name)
        axes.axhline(0, color="#888888", linewidth=0.8)
        axes.set_ylabel("behind the fluid (ms)")
        error = told[way]["error_p95"]
        axes.set_title(f"{way}: 95 of 100 windows within {error:.3f} of the fluid", loc="left", fontsize=10)
    panels[0].legend(
        ("a  .2 to .5", "b  .3 to 1", "c  .5 to .5"), ncols=3, frameon=False, loc="upper right", fontsize=9
    )
    panels[1].set_xlabel("time (s)")
    figure.suptitle("Turns that follow the fluid leave nobody far behind it", x=0.01, ha="left")
    return figure


def main() -> None:
    """Play and draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    told = facts()
    with mpl.rc_context(STYLE):
        draw(told).savefig(FIGURES / "turns-lag.svg", metadata={"Date": None}, bbox_inches="tight")
    (FIGURES / "turns-lag.json").write_text(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()

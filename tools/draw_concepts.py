#!/usr/bin/env python3
"""The pictures of docs/concepts.md, from real runs: `python tools/draw_concepts.py [token] [plan] [vgpu]`.

- token: three CUDA programs on one GPU; who held it when, by what each program noted of its own launches.
- plan: the manifest of the page, applied to four GPUs; who got which part of which.
- vgpu: the simulator's pool of vGPUs under three policies.

Writes docs/figures/concepts-*.svg and, with the figures they are drawn from, docs/figures/concepts.json.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aliquot.standalone.engine import Engine
from aliquot.standalone.paths import RuntimeDir
from aliquot.standalone.pods import Pods
from aliquot_lab.bench.fig6 import ASKS, Tenant
from aliquot_lab.bench.plots import COLOURS
from aliquot_lab.bench.progress import Interval
from aliquot_lab.bench.scene import scene, start_all

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
PAGE = ROOT / "docs" / "concepts.md"
SETTLE_S, SHOWN_S = 12.0, 1.2
SHADES = ("#1b7837", "#2166ac", "#b35806", "#762a83", "#8c510a", "#4d4d4d")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.8, "svg.hashsalt": "aliquot", "svg.fonttype": "none",
}  # fmt: skip


def turns(intervals: Sequence[Interval], began_ns: int, ended_ns: int, apart_ns: int = 2_000_000) -> list[list[float]]:
    """Stretches (start, length in ms) of back-to-back launches; what lies apart by more is another turn."""
    found: list[list[int]] = []
    for one in intervals:
        if one.ended_ns < began_ns or one.launched_ns > ended_ns:
            continue
        if found and one.launched_ns - found[-1][1] < apart_ns:
            found[-1][1] = one.ended_ns
        else:
            found.append([one.launched_ns, one.ended_ns])
    return [[(start - began_ns) / 1e6, (end - start) / 1e6] for start, end in found]


def run_token() -> dict[str, Any]:
    """Fig. 6's three tenants together, after one window."""
    with scene(None) as stage:
        options = ("sync", "--kernel-ms", "2")
        start_all(stage, [(tenant, ask, options) for tenant, ask in ASKS.items()])
        time.sleep(SETTLE_S)
        ended_ns = time.monotonic_ns()
        began_ns = ended_ns - int(SHOWN_S * 1e9)
        seen = {str(tenant): turns(client.intervals, began_ns, ended_ns) for tenant, client in stage.clients.items()}
        return {"gpu": stage.gpu, "emulated": stage.emulated, "usage": stage.usage(), "turns_ms": seen}


def run_plan() -> dict[str, Any]:
    """The page's manifest on four GPUs; its programs sleep."""
    text = re.search(r"```yaml file=plan.yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert text, "docs/concepts.md has no plan.yaml"
    with tempfile.TemporaryDirectory(prefix="alq-") as runtime:
        os.environ["ALIQUOT_STATE_DIR"] = runtime  # what this machine learned before is not of the picture
        engine = Engine.start("v100x4", runtime=RuntimeDir(Path(runtime)))
        with engine:
            pods = Pods(engine)
            try:
                pods.apply(text[1])
                return {"gpu": engine.gpus[0].model, "held": _held(engine)}
            finally:
                pods.stop()


def _held(engine: Engine) -> list[dict[str, Any]]:
    by_uuid = {gpu.uuid: gpu.tenants for gpu in engine.arbiter.status().gpus}
    return [
        {"index": gpu.index, "tenants": [[t.name, t.request_milli] for t in by_uuid.get(gpu.uuid, ())]}
        for gpu in engine.gpus
    ]


def run_vgpu() -> dict[str, Any]:
    """A morning of small jobs on one machine of four V100: what each pool policy costs and saves."""
    found = {}
    jobs = "mix:jobs=400,rate=6,service=60"
    for pool in ("on-demand", "hybrid:60", "reservation:1"):
        with tempfile.TemporaryDirectory() as out:
            command = [
                sys.executable, "-m", "aliquot.cli", "sim", "run", "--nodes", "v100x4*2", "--trace", jobs, "--policy",
                "kubeshare", "--seeds", "1..5", "--pool", pool, "--vgpu-create-s", "10", "--out", out,
            ]  # fmt: skip
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ})
            (row,) = json.loads((Path(out) / "summary.json").read_text())["policies"]
        found[pool] = {key: row["mean"][key] for key in ("vgpus_created", "vgpu_idle_s", "vgpu_held_s", "wait_mean_s")}
    return {"jobs": jobs, "nodes": "v100x4*2", "pools": found}


def draw_token(facts: dict[str, Any], axes: Any) -> None:
    """One row a tenant, a box for each turn."""
    names = sorted(facts["turns_ms"])
    for row, name in enumerate(reversed(names)):
        colour = COLOURS[name]
        axes.broken_barh(facts["turns_ms"][name], (row - 0.3, 0.6), facecolors=colour)
        ask = ASKS[Tenant(name)]
        said = f"{name.upper()}  request {ask.request_milli / 1000}, limit {ask.limit_milli / 1000}"
        axes.text(0, row + 0.36, f"{said}: got {facts['usage'][name]:.2f}", fontsize=9)
    axes.set(xlabel="time (ms)", yticks=[], xlim=(0, SHOWN_S * 1000), ylim=(-0.5, len(names) - 0.2))
    axes.spines["left"].set_visible(False)
    axes.set_title("One holds the token at a time; turns are as long as the shares need", loc="left")


def draw_plan(facts: dict[str, Any], axes: Any) -> None:
    """One bar a GPU, a part for each slice."""
    names = list(dict.fromkeys(name for gpu in facts["held"] for name, _ in gpu["tenants"]))
    for gpu in facts["held"]:
        left = 0.0
        for name, milli in gpu["tenants"]:
            axes.barh(-gpu["index"], milli / 1000, 0.6, left, color=SHADES[names.index(name)], edgecolor="white")
            text = f"{name.removeprefix('default/')}  {milli / 1000}"
            axes.text(left + milli / 2000, -gpu["index"], text, ha="center", va="center", color="white", fontsize=9)
            left += milli / 1000
        axes.barh(-gpu["index"], 1 - left, 0.6, left, color="#eeeeee")
    count = len(facts["held"])
    axes.set(yticks=[-n for n in range(count)], yticklabels=[f"GPU {n}" for n in range(count)])
    axes.set(xlabel="promised part of the GPU", xlim=(0, 1))
    axes.set_title("2.5 GPUs are two near each other and half of a third that is near them", loc="left")


def draw_vgpu(facts: dict[str, Any], axes: Any) -> None:
    """Idle time that keeping costs against vGPUs that had to be made."""
    for number, (name, row) in enumerate(facts["pools"].items()):
        idle = 100 * row["vgpu_idle_s"] / row["vgpu_held_s"]
        axes.scatter(idle, row["vgpus_created"], s=60, color=SHADES[number])
        said = f"{name}\nmean wait {row['wait_mean_s']:.1f} s"
        axes.annotate(said, (idle, row["vgpus_created"]), textcoords="offset points", xytext=(10, -4), fontsize=9)
    axes.set(xlabel="time that held GPUs were idle (%)", ylabel="vGPUs made")
    most = max(row["vgpus_created"] for row in facts["pools"].values())
    axes.set(xlim=(-1, 50), ylim=(-0.04 * most, 1.2 * most))
    axes.set_title("Who keeps GPUs idle makes fewer of them anew", loc="left")


PICTURES: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any], Any], None]]] = {
    "token": (run_token, draw_token),
    "plan": (run_plan, draw_plan),
    "vgpu": (run_vgpu, draw_vgpu),
}


def main(wanted: list[str]) -> None:
    """Run and draw what was named, or all of it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    if unknown := set(wanted) - set(PICTURES):
        sys.exit(f"there is no picture {sorted(unknown)[0]}; there are {', '.join(PICTURES)}")
    kept = FIGURES / "concepts.json"
    facts = json.loads(kept.read_text()) if kept.exists() else {}
    for name in wanted or PICTURES:
        run, draw = PICTURES[name]
        facts[name] = run()
        with mpl.rc_context(STYLE):
            figure, axes = pyplot.subplots(figsize=(8, 2.8), layout="constrained")
            draw(facts[name], axes)
            figure.savefig(FIGURES / f"concepts-{name}.svg", metadata={"Date": None}, bbox_inches="tight")
            pyplot.close(figure)
        kept.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

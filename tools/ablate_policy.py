"""Each part of the default policy left out or changed, on traces of the FGD benchmark; see docs/policy-aliquot.md.

    tools/ablate_policy.py [--trace default ...] [--seeds 42,43] [--variant "no slot price" ...] [--jobs 1] [--out FILE]

The figure is the GPU allocation in percent when as much GPU request has arrived as the cluster has, mean over seeds.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from aliquot.placement.policies.aliquot import Aliquot, Constants
from aliquot_lab.sim.openb.replay import replay
from aliquot_lab.sim.openb.results import columns
from aliquot_lab.sim.openb.trace import read_nodes, read_pods
from aliquot_lab.sim.papers.fgd import NODES, data_folder
from aliquot_lab.sim.parallel import run_all
from aliquot_lab.sim.policies import made
from aliquot_lab.sim.seeds import seed_list

TRACES = ("default", "gpushare60", "cpu250", "multigpu30", "gpuspec33")
BASE = Constants()
VARIANTS: dict[str, Constants] = {
    "the policy": BASE,
    "long run only (f = 1)": replace(BASE, long_run=1.0, long_run_scarce_cpu=1.0, long_run_no_cpu=1.0),
    "near term only (f = 0)": replace(BASE, long_run=0.0, long_run_scarce_cpu=0.0, long_run_no_cpu=0.0),
    "f fixed at 0.7": replace(BASE, long_run_scarce_cpu=0.7, long_run_no_cpu=0.7),
    "CPU-only pods never in the sequences": replace(BASE, cpu_only_visits=0.0),
    "no slot price": replace(BASE, slot_price=0.0, prior=False),
    "no prior pseudo-pods": replace(BASE, prior=False),
    "no model price": replace(BASE, model_price=0.0),
    "16 visits": replace(BASE, visits=16),
    "128 visits": replace(BASE, visits=128),
    "16 sequences": replace(BASE, sequences=16),
    "8 sequences": replace(BASE, sequences=8),
    "whole history": replace(BASE, window=1 << 20),
    "last 1,024 arrivals": replace(BASE, window=1024),
    "prices at 1.5 % change": replace(BASE, refresh=0.015),
    "prices at 20 % change": replace(BASE, refresh=0.2),
    "other draws": replace(BASE, seed=7),
    "chi = 1": replace(BASE, chi=1.0),
}


@dataclass(frozen=True)
class Run:
    """One run to do."""

    folder: str
    trace: str
    variant: str
    seed: int


def pods_of(folder: Path, trace: str) -> Path:
    """The trace's file."""
    if not (found := sorted(folder.glob(f"openb_pod_list_{trace}.csv*"))):
        raise click.BadParameter(f"--trace {trace}: {folder} has no openb_pod_list_{trace}.csv")
    return found[0]


def allocation(run: Run) -> float:
    """Percent of the GPUs allocated when 100 % have arrived."""
    made("aliquot")  # takes the native loops into use
    folder = Path(run.folder)
    found = replay(
        read_nodes(folder / NODES), read_pods(pods_of(folder, run.trace)), Aliquot(VARIANTS[run.variant]), run.seed
    )
    return float(columns(found.events).allocation[100])


@click.command()
@click.option("--data", type=click.Path(path_type=Path))
@click.option("--trace", "traces", multiple=True, default=TRACES)
@click.option("--variant", "variants", multiple=True, type=click.Choice(list(VARIANTS)))
@click.option("--seeds", default="42,43")
@click.option("--jobs", type=click.IntRange(1))
@click.option("--out", type=click.Path(path_type=Path), help="JSON of every run.")
def main(
    data: Path | None,
    traces: tuple[str, ...],
    variants: tuple[str, ...],
    seeds: str,
    jobs: int | None,
    out: Path | None,
) -> None:
    """Run the variants and print the table."""
    folder = data_folder(data)
    for trace in traces:
        pods_of(folder, trace)
    names = variants or tuple(VARIANTS)
    todo = [Run(str(folder), trace, name, seed) for name in names for trace in traces for seed in seed_list(seeds)]
    done = run_all(allocation, todo, workers=jobs, title="ablation").results
    print("| variant | " + " | ".join(traces) + " |\n|---|" + "---|" * len(traces))
    for name in names:
        found = [[x for run, x in done.items() if (run.variant, run.trace) == (name, trace)] for trace in traces]
        print(f"| {name} | " + " | ".join(f"{np.mean(some):.2f}" if some else "-" for some in found) + " |")
    if out:
        out.write_text(json.dumps([{**vars(run), "allocation_percent": x} for run, x in done.items()], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

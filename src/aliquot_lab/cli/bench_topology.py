"""`aliquot bench topology`: what choosing by links gains while jobs arrive and leave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.options import output_option
from aliquot.model.errors import UserError

if TYPE_CHECKING:
    from aliquot.topology import Topology


@click.command()
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--jobs", type=click.IntRange(10, 1_000_000), default=4000, show_default=True, help="Jobs per seed.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many workloads.")
@click.option("--out", type=click.Path(), help="Also write topology_churn.svg and .json into this folder.")
@output_option
def topology(files: tuple[str, ...], jobs: int, seeds: int, out: str | None, output: str) -> None:
    """Modelled bandwidth of 2- and 4-GPU jobs by first index, by NVIDIA's best-effort policy and by ours.

    FILES are outputs of nvidia-smi topo -m; without any, the machines of the emulated profiles. Machines whose links
    are all alike, and those with more than 8 GPUs, cannot distinguish policies and are left out.
    """
    from aliquot_lab.bench.churn import LOAD, SIZES, compare
    from aliquot_lab.bench.plots import draw_churn, means

    machines = {name: each for name, each in _machines(files).items() if _tells(each)}
    if not machines:
        raise UserError("no machine here has 2 to 8 GPUs with different links; give another matrix")
    rows = compare(machines, jobs=jobs, seeds=range(1, seeds + 1))
    shares = ", ".join(f"{part:.0%} request {size}" for size, part in SIZES.items())
    about = f"{seeds} seeds of {jobs} jobs on each machine; {shares}; load {LOAD:.0%}"
    if out:
        draw_churn(rows, Path(out), about)
    if output == "json":
        click.echo(json.dumps({"about": about, "means": means(rows), "rows": rows}))
        return
    click.echo(about)
    for line in _table(rows, means(rows)):
        click.echo(line)


def _machines(files: Sequence[str]) -> dict[str, Topology]:
    from aliquot.cli.topo import read_topology
    from aliquot.driver.emulation import PROFILES, profile_topology

    if files:
        return {Path(file).stem: topology for file in files for _, topology in [read_topology(file)]}
    return {name: profile_topology(profile, 8) for name, profile in PROFILES.items()}


def _tells(topology: Topology) -> bool:
    labels = {label for i, row in enumerate(topology.links) for j, label in enumerate(row) if i != j}
    return 2 <= topology.count <= 8 and len(labels) > 1


def _table(rows: Sequence[Mapping[str, Any]], kept: Mapping[str, float]) -> list[str]:
    policies = list(kept)
    cases: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["machine"], row["size"]), {})[row["policy"]] = row
    width = max(len(machine) for machine, _ in cases)
    lines = [f"  {'MACHINE':<{width}}  GPUS" + "".join(f"  {policy.upper():>20}" for policy in policies)]
    for (machine, size), by in cases.items():
        cells = "".join(f"  {by[p]['mean_pair_gbps']:8.2f} GB/s {by[p]['kept']:6.1%}" for p in policies)
        lines.append(f"  {machine:<{width}}  {size:>4}{cells}")
    return [*lines, f"  {'mean':<{width}}      " + "".join(f"  {kept[policy]:>20.1%}" for policy in policies)]

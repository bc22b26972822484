"""`aliquot sim paper churn`: the policies in a cluster where pods arrive and leave."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aliquot.cli.entry import INTERRUPTED
from aliquot.cli.options import Amount, out_option, output_option

_DIR = click.Path(path_type=Path)


@click.command()
@click.option("--data", type=_DIR, help="Folder of the trace; the checkout's tests/data/openb if left out.")
@click.option("--setup", type=click.Choice(["A", "B"]), default="A", show_default=True,
              help="A: an eighth of the cluster; B: all of it.")  # fmt: skip
@click.option("--trace", "names", multiple=True, help="Such as default or gpuspec33; the five of the page if left out.")
@click.option("--load", "loads", type=Amount(2, least=0.05), multiple=True,
              help="Offered GPU time over capacity, 0.05 to 2; may be given again.")  # fmt: skip
@click.option("--policy", default="bestfit,fgd,aliquot", show_default=True, metavar="P[,Q]")
@click.option("--seeds", default="42..45", show_default=True, metavar="A..B", help="Seeds: 42, 42..45 or 42,44.")
@click.option("--arrivals", type=click.IntRange(4), help="Pods to arrive; 40,000 in A, 60,000 in B if left out.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time; all cores if left out.")
@out_option("Folder for churn.csv and summary.json.")
@output_option
def churn(
    data: Path | None, setup: str, names: tuple[str, ...], loads: tuple[float, ...], policy: str, seeds: str,
    arrivals: int | None, jobs: int | None, out: Path | None, output: str,
) -> int:  # fmt: skip
    """Pods of the openb traces arrive and leave: which are placed, which wait and for how long."""
    from aliquot_lab.sim.papers import churn as paper
    from aliquot_lab.sim.papers.fgd import data_folder
    from aliquot_lab.sim.policies import parsed
    from aliquot_lab.sim.seeds import seed_list

    todo = paper.runs(
        data_folder(data), setup, names or paper.TRACES, loads or paper.LOADS[setup], parsed(policy),
        seed_list(seeds), arrivals,
    )  # fmt: skip
    done = paper.run_setup(todo, jobs)
    facts = paper.facts_of(done, len(todo))
    if out is not None:
        paper.write(out, done, facts)
    click.echo(json.dumps(facts) if output == "json" else paper.text(facts))
    if not done.complete:
        click.echo(f"aliquot: interrupted; {len(done.results)} of {len(todo)} runs are done", err=True)
        return INTERRUPTED
    return 0

"""`aliquot sim paper`: the published experiments, with our figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from aliquot.cli.lazy import WholeSentences
from aliquot.cli.main import INTERRUPTED
from aliquot.cli.options import Amount, out_option, output_option
from aliquot.model.errors import AliquotError

_FILE = click.Path(path_type=Path)


@click.group(cls=WholeSentences)
def paper() -> None:
    """Repeat a paper's experiments."""


def _tell(facts: dict[str, Any], text: str, output: str, out: Path | None) -> None:
    if out is not None:
        from aliquot_lab.sim.tables import write_whole

        write_whole(out / "paper.json", json.dumps(facts, indent=2) + "\n")
    click.echo(json.dumps(facts) if output == "json" else text)


@paper.command()
@click.option("--repetitions", type=click.IntRange(1, 100_000), default=500, show_default=True)
@out_option("Folder for paper.json.")
@output_option
def gaia(repetitions: int, out: Path | None, output: str) -> None:
    """Gaia Scheduler (ISPA 2018): Tables I to IV, golden cases, Fig. 10 and 12."""
    from aliquot_lab.sim.papers import gaia as papers

    facts = papers.reproduce(repetitions)
    _tell(facts, papers.text(facts), output, out)
    if not facts["agrees"]:
        raise AliquotError("a choice differs from the published one; see the table above")


@paper.command()
@click.option("--data", type=_FILE, help="Folder of the trace; the checkout's tests/data/openb if left out.")
@click.option("--policy", default="random,dotprod,clustering,packing,bestfit,fgd,aliquot", show_default=True)
@click.option("--seeds", default="42..51", show_default=True, metavar="A..B")
@out_option("Folder for the result files, summary.json and paper.json.")
@click.option(
    "--within",
    type=Amount(100),
    help="Exit 1 if a mean is farther off (and by 2 standard errors), 0 to 100.",
)
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time; all cores if left out.")
@output_option
def fgd(
    data: Path | None, policy: str, seeds: str, out: Path | None, within: float | None, jobs: int | None, output: str
) -> int:
    """FGD (USENIX ATC 2023): all traces, policies and seeds."""
    from aliquot_lab.sim.papers import fgd as papers
    from aliquot_lab.sim.policies import parsed
    from aliquot_lab.sim.seeds import seed_list

    folder = papers.data_folder(data)
    todo = papers.todo(folder, parsed(policy), seed_list(seeds))
    facts = papers.reproduce(folder, todo, out, jobs)
    _tell(facts, papers.text(facts), output, out)
    if not facts["complete"]:
        return INTERRUPTED
    far = [] if within is None else papers.beyond(facts, within)
    if far:
        raise AliquotError(f"means farther than {within} points from the published ones: {'; '.join(far)}")
    return 0


@paper.command()
@click.option("--runs", type=click.IntRange(1, 100), default=5, show_default=True, help="Seeds a point.")
@click.option("--arrivals", type=click.IntRange(10, 100_000), default=1500, show_default=True, help="Jobs a run.")
@out_option("Folder for paper.json.")
@output_option
def kubeshare(runs: int, arrivals: int, out: Path | None, output: str) -> None:
    """KubeShare (HPDC 2020): Fig. 6, 7, 8a to 8c, 9, 11, 12 and 13."""
    from aliquot_lab.sim.papers import kubeshare as papers

    facts = papers.reproduce(runs, arrivals)
    _tell(facts, papers.text(facts), output, out)


@paper.command()
@click.option("--data", type=_FILE, help="Folder of the trace; the checkout's tests/data/openb if left out.")
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

"""`aliquot sim`: what a policy would do to a trace, and the published experiments by one command each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from aliquot.cli.completion import policy_names
from aliquot.cli.entry import INTERRUPTED
from aliquot.cli.lazy import WholeSentences
from aliquot.cli.options import Amount, out_option, output_option
from aliquot.model.errors import AliquotError, UserError
from aliquot_lab.cli.papers import paper
from aliquot_lab.cli.sim_import import import_jobs
from aliquot_lab.cli.sim_turns import turns

_FILE = click.Path(path_type=Path)
_TIME = Amount(1e9)


@click.group(cls=WholeSentences)
def sim() -> None:
    """Try placement policies on a trace, and ways of taking turns on programs, in virtual time."""


sim.add_command(import_jobs)
sim.add_command(paper)
sim.add_command(turns)


@sim.command()
@click.option("--nodes", type=_FILE, required=True, help="Table of nodes (sn, cpu_milli, memory_mib, gpu, model).")
@click.option("--trace", "traces", type=_FILE, multiple=True, required=True, help="Table of tasks; may be given again.")
@click.option("--policy", required=True, metavar="P[,Q]", help="Policies by name.", shell_complete=policy_names)
@click.option("--seeds", default="42", show_default=True, metavar="A..B", help="Seeds: 42, 42..51 or 42,44.")
@click.option("--expected", type=_FILE, help="Folder of published result files to compare every column with.")
@out_option("Folder for the result files.", required=True)
@click.option(
    "--tune",
    type=Amount(100, above_zero=True),
    default=1.3,
    show_default=True,
    help="GPU request to arrive, in clusters.",
)
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time; all cores if left out.")
@output_option
def openb(
    nodes: Path, traces: tuple[Path, ...], policy: str, seeds: str, expected: Path | None, out: Path,
    tune: float, jobs: int | None, output: str,
) -> int:  # fmt: skip
    """Replay the FGD benchmark: pods arrive until nothing fits, in the published order of each seed.

    Writes analysis_allo_discrete.csv, analysis_frag_discrete.csv and analysis_frag_ratio_discrete.csv in the published
    columns, and summary.json. With --expected, exits 1 at any difference.
    """
    from aliquot_lab.cli.sim_run import nothing_finished
    from aliquot_lab.sim.openb import batch, results, summary
    from aliquot_lab.sim.policies import parsed
    from aliquot_lab.sim.seeds import seed_list

    published = results.Published(expected) if expected else None
    todo = batch.tasks(nodes, traces, parsed(policy), seed_list(seeds), tune)
    done = batch.run_batch(todo, jobs)
    if not done.results:
        return nothing_finished(out)
    facts = summary.write_batch(out, done, len(todo))
    groups = summary.grouped(done.results.values())
    seconds = {key: sum(run.seconds for run in runs) / len(runs) for key, runs in groups.items()}
    verdict = results.compare([run.columns for run in done.results.values()], published) if published else None
    if verdict:
        facts["compared"] = {"runs": verdict.compared, "without_row": verdict.without_row,
                             "differing": verdict.differing, "first": verdict.first}  # fmt: skip
    click.echo(json.dumps(facts) if output == "json" else summary.table(facts, seconds))
    if not done.complete:
        click.echo(f"aliquot: interrupted; {out} has {len(done.results)} of {len(todo)} runs", err=True)
        return INTERRUPTED
    if verdict and not verdict.equal:
        raise AliquotError(verdict.first)
    if verdict and not verdict.compared:
        click.echo(f"aliquot: {expected} has no row of these runs, so nothing was compared", err=True)
    elif verdict and output == "text":
        without = f"; {verdict.without_row} have no published row" if verdict.without_row else ""
        click.echo(f"{verdict.compared} runs equal the published ones in every column{without}")
    return 0


@sim.command()
@click.option("--nodes", required=True, metavar="TABLE|PROFILES|DUMP",
              help="nodes.csv, v100x4*8, a range of sizes v100x4*6..12, or a cluster.json.")  # fmt: skip
@click.option("--trace", required=True, metavar="TABLE|GENERATOR", help="jobs.csv, kubeshare:rate=150, mix:jobs=500.")
@click.option("--policy", required=True, metavar="P[,Q]", help="Policies by name.", shell_complete=policy_names)
@click.option("--seeds", default="42", show_default=True, metavar="A..B", help="Seeds: 42, 42..51 or 42,44.")
@out_option("Folder for summary.json, tables and report.html.", required=True)
@click.option("--queue", type=click.Choice(["backfill", "fifo"]), default="backfill", show_default=True)
@click.option("--pool", default="on-demand", show_default=True,
              help="Idle vGPUs: on-demand, reservation:N, hybrid:SECONDS, as in a cluster.")  # fmt: skip
@click.option("--vgpu-create-s", type=_TIME, default=0.0, help="Time that making a vGPU takes.")
@click.option("--pod-start-s", type=_TIME, default=0.0, help="Time that starting a pod takes.")
@click.option("--moves", type=click.IntRange(0, 3), default=0, help="Running pods to move for a waiting one.")
@click.option("--load", type=Amount(10, above_zero=True), help="Draw from the trace at this load (1 = all GPUs busy).")
@click.option("--arrivals", type=click.IntRange(1, 10_000_000), default=10_000, show_default=True, help="Jobs drawn.")
@click.option("--service-s", type=Amount(1e9, above_zero=True), help="Mean of exponential service times to draw.")
@click.option("--services", type=_FILE, help="Trace whose service times are drawn, for a trace without any.")
@click.option("--from-s", type=Amount(1e12), default=0.0, help="Only tasks created from then on.")
@click.option("--gpu-only", is_flag=True, help="Only tasks that request a GPU.")
@click.option("--whole", is_flag=True, help="Round a part of a GPU up to a whole one, as without sharing.")
@click.option("--jitter-s", type=_TIME, default=0.0, help="Move each arrival by up to this time, by seed.")
@click.option("--compress", type=Amount(1e6, above_zero=True), default=1.0, help="Divide all times of the trace.")
@click.option("--warmup", type=Amount(0.9), default=0.0, help="Part of the arrivals that is not counted.")
@click.option("--until-last", is_flag=True, help="End with the last arrival, not when all is done.")
@click.option("--timing", is_flag=True, help="Measure decisions in real time too (timing.json).")
@click.option("--wait", "wait_s", default="10m", show_default=True, metavar="TIME",
              help="With a range of sizes: how long jobs may wait.")  # fmt: skip
@click.option("--wait-at", type=click.Choice(["mean", "p50", "p90", "p99"]), default="p90", show_default=True,
              help="Which wait that is: the mean, or what so many percent of the jobs wait at most.")  # fmt: skip
@click.option("--gpu-hour-price", type=Amount(1e6), help="Price of a GPU for an hour, for costs.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time; all cores if left out.")
@click.option("--on", "where", metavar="dask[:ADDRESS]", help="Run on a Dask cluster instead of here.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "csv"]), default="text", show_default=True)
def run(policy: str, seeds: str, out: Path, output: str, **options: Any) -> int:
    """Run jobs through policies in virtual time and write a report."""
    from aliquot_lab.cli.sim_run import run_study
    from aliquot_lab.sim.policies import parsed
    from aliquot_lab.sim.seeds import seed_list

    return run_study(_scenario(**options), parsed(policy), seed_list(seeds), out=out, output=output, options=options)


def _scenario(**options: Any) -> Any:
    from aliquot.placement.pool_policy import pool_policy
    from aliquot_lab.sim.engine import Discipline, SimSettings
    from aliquot_lab.sim.kernel import us
    from aliquot_lab.sim.pool import PoolSettings
    from aliquot_lab.sim.runs import Scenario
    from aliquot_lab.sim.workloads.trace import Draws, TraceReplay

    pool = PoolSettings(pool_policy(options["pool"]), us(options["vgpu_create_s"]), us(options["pod_start_s"]))
    load = options["load"]
    if load is None and options["service_s"] is not None:
        raise UserError(f"--service-s {options['service_s']:g}: gives times to jobs that are drawn; add --load")
    return Scenario(
        nodes=options["nodes"],
        trace=options["trace"],
        settings=SimSettings(Discipline(options["queue"]), pool, options["moves"]),
        replay=TraceReplay(options["from_s"], options["gpu_only"], options["jitter_s"], options["compress"]),
        draws=None if load is None else Draws(load, options["arrivals"], mean_service_s=options["service_s"]),
        services=str(options["services"] or ""),
        whole=options["whole"],
        warmup=options["warmup"],
        stop_at_last_arrival=options["until_last"],
        timing=options["timing"],
    )


@sim.command()
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
@output_option
def compare(first: Path, second: Path, output: str) -> None:
    """Lay two result folders side by side: each figure, and by how much the second differs."""
    from aliquot_lab.sim import sidebyside

    facts = sidebyside.compare(first, second)
    click.echo(json.dumps(facts) if output == "json" else sidebyside.table(facts))

"""`aliquot sim`: what a policy would do to a trace, and the published experiments by one command each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from aliquot.cli.completion import policy_names
from aliquot.cli.lazy import WholeSentences
from aliquot.cli.main import INTERRUPTED
from aliquot.cli.options import Amount, out_option, output_option
from aliquot.model.errors import AliquotError, UserError
from aliquot.tokens import Turns
from aliquot_lab.sim.seeds import seed_list

KINDS = ("pai", "philly", "helios", "sacct", "kueue", "prometheus", "csv")
LEAST_S = 16
_FILE = click.Path(path_type=Path)
_TIME = Amount(1e9)


@click.group(cls=WholeSentences)
def sim() -> None:
    """Try placement policies on a trace, and ways of taking turns on programs, in virtual time.

    Example, two policies on generated jobs, side by side in a report:
      aliquot sim run --nodes 'v100x4*8' --trace kubeshare:rate=150 --policy aliquot,binpack --out out
    """


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
    from aliquot_lab.sim.openb import results
    from aliquot_lab.sim.policies import parsed

    published = results.Published(expected) if expected else None
    todo = results.tasks(nodes, traces, parsed(policy), seed_list(seeds), tune)
    done = results.run_batch(todo, jobs)
    if not done.results:
        return nothing_finished(out)
    facts = results.write_batch(out, done, len(todo))
    groups = results.grouped(done.results.values())
    seconds = {key: sum(run.seconds for run in runs) / len(runs) for key, runs in groups.items()}
    verdict = results.compare([run.columns for run in done.results.values()], published) if published else None
    if verdict:
        facts["compared"] = {"runs": verdict.compared, "without_row": verdict.without_row,
                             "differing": verdict.differing, "first": verdict.first}  # fmt: skip
    click.echo(json.dumps(facts) if output == "json" else results.table(facts, seconds))
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

    return run_study(parsed(policy), seed_list(seeds), out=out, output=output, options=options)


@sim.command()
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
@output_option
def compare(first: Path, second: Path, output: str) -> None:
    """Lay two result folders side by side: each figure, and by how much the second differs."""
    from aliquot_lab.sim import study as folders

    facts = folders.compare(first, second)
    click.echo(json.dumps(facts) if output == "json" else folders.table(facts))


@sim.command("import")
@click.argument("files", type=_FILE, nargs=-1, required=True)
@click.option("--from", "kind", type=click.Choice(KINDS), required=True, help="Where the files come from.")
@click.option(
    "-o", "--output", "out", type=_FILE, required=True, metavar="TRACE", help="The trace to write (.csv, .csv.gz)."
)
@click.option("--zone", default="UTC", show_default=True, metavar="NAME", help="Time zone of times without one.")
@click.option("--cpu-jobs", is_flag=True, help="Keep jobs without a GPU.")
@click.option("--models", is_flag=True, help="Keep the GPU models; the cluster has to name them in the same way.")
@click.option("--shards-per-gpu", "shards", type=click.IntRange(1, 10_000), metavar="N",
              help="How many gres/shard of Slurm make a GPU; left out, so are jobs with shards alone.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print what was kept and dropped as JSON.")
def import_jobs(
    files: tuple[Path, ...], kind: str, out: Path, zone: str, cpu_jobs: bool, models: bool, shards: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Read FILE as another system wrote it, and write its jobs as a trace.

    \b
    sacct       sacct -a -P -X -S 2026-01-01 -o JobID,User,Submit,Eligible,
                Start,End,ElapsedRaw,State,NNodes,AllocTRES,ReqTRES;
                or sacct -a -X --json
    kueue       kubectl get workloads -A -o json (or yaml)
    prometheus  /api/v1/query_range of kube_pod_container_resource_requests,
                kube_pod_status_phase, DCGM_FI_DEV_GPU_UTIL; one file each
    philly      cluster_job_log
    helios      cluster_log.csv
    pai         pai_task_table.csv, with pai_job_table.csv and
                pai_instance_table.csv where they are at hand; or the trace
                for its simulator, pai_job_duration_estimate_100K.csv
    csv         a table with a header line and usual names of columns

    A job arrives when it was submitted or, if later, could first have run. Jobs on several machines become a line for
    each machine. Jobs that were still running, or never ran, are left out; how many is said at the end.
    """
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    from aliquot_lab.sim.imports.importing import import_trace
    from aliquot_lab.sim.imports.tables import Wanted
    from aliquot_lab.sim.parallel import shown_progress

    try:
        times_of = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UserError(f"--zone {zone}: is no time zone; allowed are names such as UTC and Europe/Berlin") from None
    if shards and kind not in ("sacct", "csv"):
        raise UserError(f"--shards-per-gpu {shards}: only sacct and csv have gres/shard, --from is {kind}")
    if out.is_dir():
        raise UserError(f"-o {out}: is a folder; name a file")

    def warn(text: str) -> None:
        click.echo(f"aliquot: {text}", err=True)

    how = Wanted(times_of, cpu_jobs, shards)
    with shown_progress("jobs read", None) as tell:
        facts = import_trace(kind, files, out, how=how, models=models, warn=warn, tell=tell)
    text = facts.pop("text")
    click.echo(json.dumps(facts) if as_json else f"{text}\ntrace: {out}")


def chosen(names: Sequence[str], groups: dict[str, Sequence[Any]], default: str) -> list[Any]:
    """The mixes of these names, of the default group where there is none.

    Raises:
        UserError: a name that is neither a mix nor a group.
    """
    known = {mix.name: mix for group in groups.values() for mix in group}
    found: dict[str, Any] = {}
    for name in names or (default,):
        if name in groups:
            found.update({mix.name: mix for mix in groups[name]})
        elif name in known:
            found[name] = known[name]
        else:
            raise UserError(f"--mix {name!r} is not known; there are {', '.join([*groups, *known])}")
    return list(found.values())


@sim.command()
@click.option("--mix", "names", multiple=True, metavar="NAME", help="A mix, or all, or misbehaviours. [default: all]")
@click.option("--turns", "ways", type=click.Choice([way.value for way in Turns]), multiple=True,
              help="Only these ways of taking turns; may be given again. [default: each]")  # fmt: skip
@click.option("--seed", default="1", show_default=True, metavar="A..B", help="Seeds: 1, 1..5 or 1,3.")
@click.option(
    "--seconds", type=Amount(100_000, least=LEAST_S), default=60, show_default=True, help="Time of each, 16 at least."
)
@click.option("--list", "listing", is_flag=True, help="Describe the mixes.")
@output_option
def turns(names: tuple[str, ...], ways: tuple[str, ...], seed: str, seconds: float, listing: bool, output: str) -> None:
    """What programs that share a GPU get, by turn policy: in virtual time, with the arbiter's own policies.

    Each row is a mix of programs under one policy. The share in every window of 10 s is compared with a fluid: requests
    first, the rest levelled up to the limits, for exactly the time in which each wanted the GPU.

    \b
    P95, WORST  distance from the fluid, as a part of the window: 95 of 100
                windows, and the worst
    A %         windows in which every program got its request for the time it
                wanted the GPU, within 0.02: the promise
    C %         of the windows in which a program wanted the GPU throughout,
                those with its request, within 0.02
    USED        GPU time used, as a part of what the fluid uses
    GAIN        points of the GPU that the program with pauses or bad manners
                got beyond the fluid, below 0 it lost; the columns before are
                those of its neighbours then
    WAKE ms     from waking to the first kernel, median and 99 of 100
    CHANGES     grants a second

    A hand-over takes 0.3 ms, a program may have 2 ms queued, and keeps an idle turn for 2 ms while no tenant waits.
    """
    from aliquot_lab.sim.turns.mixes import MISBEHAVIOURS, MIXES
    from aliquot_lab.sim.turns.study import study, table

    groups: dict[str, Sequence[Any]] = {"all": MIXES, "misbehaviours": MISBEHAVIOURS}
    if listing:
        for mix in (*MIXES, *MISBEHAVIOURS):
            click.echo(f"{mix.name:<14} {mix.about}")
        return
    cases = study(chosen(names, groups, "all"), [Turns(way) for way in ways] or list(Turns), seed_list(seed), seconds)
    click.echo(json.dumps({"seconds": seconds, "cases": cases}) if output == "json" else table(cases))


@sim.group(cls=WholeSentences)
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

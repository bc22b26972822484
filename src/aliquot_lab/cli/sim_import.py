"""`aliquot sim import`: the jobs that another system has recorded, as a trace for `aliquot sim run`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aliquot.model.errors import UserError

KINDS = ("pai", "philly", "helios", "sacct", "kueue", "prometheus", "csv")
_FILE = click.Path(path_type=Path)


@click.command("import")
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

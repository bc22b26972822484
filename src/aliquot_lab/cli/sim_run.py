"""`aliquot sim run`: from what was asked to runs, a table and a report."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from aliquot.cli.main import INTERRUPTED
from aliquot.cli.tables import columns
from aliquot.lib.package import version
from aliquot.model.errors import UserError
from aliquot.placement.pool_policy import pool_policy
from aliquot_lab.sim import load, parallel, runs, sizes, study
from aliquot_lab.sim.engine import Discipline, SimSettings
from aliquot_lab.sim.imports.quantities import Unreadable, parse_elapsed
from aliquot_lab.sim.kernel import us
from aliquot_lab.sim.pool import PoolSettings
from aliquot_lab.sim.report.page import page
from aliquot_lab.sim.tables import csv_text
from aliquot_lab.sim.wording import duration, number
from aliquot_lab.sim.workload import Draws, TraceReplay


def run_study(
    policies: Sequence[str], seeds: Sequence[int], *, out: Path, output: str, options: Mapping[str, Any]
) -> int:
    """Do the runs that the command's options ask for, write the folder and print what came of them; the exit status."""
    scenario = _scenario(options)
    try:
        wait_s = parse_elapsed(options["wait_s"])
    except Unreadable as error:
        raise UserError(f"--wait {options['wait_s']}: {error}") from None
    if wait_s is None:
        raise UserError(f"--wait {options['wait_s']}: is no duration; allowed are 10m, 2h and 0")
    goal = sizes.Goal(wait_s, options["wait_at"], options["gpu_hour_price"])
    clusters = sizes.sizes_of(scenario.nodes)
    asked = [task for each in sizes.scenarios(scenario, clusters) for task in runs.tasks(each, policies, seeds)]
    for line in runs.warnings(scenario):
        click.echo(f"aliquot: {line}", err=True)
    if output == "text" and len(clusters) == 1:
        click.echo("\n".join(load.sentences(runs.offered_load(scenario, seeds[0]).facts())))
    if options["where"] is None:
        done: parallel.Finished[Any, Any] = parallel.run_all(runs.run, asked, workers=options["jobs"], title="sim")
    else:
        from aliquot_lab.sim import remote

        done = remote.run_all(options["where"], asked)
    if not done.results:
        return nothing_finished(out)
    swept = sizes.size_facts(done.results, goal) if len(clusters) > 1 else None
    shown = asked if swept is None else [task for task in asked if task.scenario.nodes == sizes.chosen_size(swept)]
    seen = study.Study.of(shown, done, goal.gpu_hour_price, swept)
    facts = study.write_study(out, seen, page, _made())
    _tell(facts, output)
    if not done.complete:
        click.echo(f"aliquot: interrupted; {out} has {len(done.results)} of {len(asked)} runs", err=True)
        return INTERRUPTED
    if output == "text":
        click.echo(f"report: {out / 'report.html'}")
    return 0


def nothing_finished(out: Path) -> int:
    """Report an interrupt before the first run was done, and return its status; nothing is written."""
    click.echo(f"aliquot: interrupted before a run was finished; {out} is not written", err=True)
    return INTERRUPTED


def _scenario(options: Mapping[str, Any]) -> runs.Scenario:
    pool = PoolSettings(pool_policy(options["pool"]), us(options["vgpu_create_s"]), us(options["pod_start_s"]))
    asked_load = options["load"]
    if asked_load is None and options["service_s"] is not None:
        raise UserError(f"--service-s {options['service_s']:g}: gives times to jobs that are drawn; add --load")
    return runs.Scenario(
        nodes=options["nodes"],
        trace=options["trace"],
        settings=SimSettings(Discipline(options["queue"]), pool, options["moves"]),
        replay=TraceReplay(options["from_s"], options["gpu_only"], options["jitter_s"], options["compress"]),
        draws=None
        if asked_load is None
        else Draws(asked_load, options["arrivals"], mean_service_s=options["service_s"]),
        services=str(options["services"] or ""),
        whole=options["whole"],
        warmup=options["warmup"],
        stop_at_last_arrival=options["until_last"],
        timing=options["timing"],
    )


def _tell(facts: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(facts))
        return
    if output == "csv":
        click.echo(csv_table(facts))
        return
    if "sizes" in facts:
        for line in sizes.sentences(facts["sizes"]):
            click.echo(line)
        click.echo(sizes.table(facts["sizes"]))
        click.echo(f"{facts['cluster']['source']}: " + "\n".join(load.sentences(facts["offered"])))
    click.echo(table(facts, columns()))
    if price := cost(facts):
        click.echo(price)


def _made() -> study.Made:
    """The command, the date (that of SOURCE_DATE_EPOCH where it is set) and the version."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    when = datetime.fromtimestamp(int(fixed), UTC) if fixed.isdigit() else datetime.now(UTC)
    return study.Made(shlex.join(["aliquot", *sys.argv[1:]]), f"{when:%Y-%m-%d %H:%M} UTC", version())


ALL_COLUMNS: Final = 10_000
GAP: Final = 2


@dataclass(frozen=True)
class Column:
    """A figure with its title in two lines; of two columns the one with the higher `rank` is left out first."""

    figure: str
    title: tuple[str, str]
    rank: int
    tell: Callable[[float], str]


COLUMNS: Final = (
    Column("wait_mean_s", ("WAIT", "MEAN"), 1, duration),
    Column("wait_p90_s", ("WAIT", "90 %"), 2, duration),
    Column("wait_p99_s", ("WAIT", "99 %"), 4, duration),
    Column("completion_mean_s", ("ARRIVAL TO END", "MEAN"), 6, duration),
    Column("makespan_s", ("MAKESPAN", ""), 5, duration),
    Column("allocation_percent", ("ALLOC %", "ARRIVALS"), 7, "{:,.2f}".format),
    Column("utilisation_percent", ("ALLOC %", "MAKESPAN"), 3, "{:,.2f}".format),
    Column("fragmentation_percent", ("FRAG %", "ARRIVALS"), 8, "{:,.2f}".format),
    Column("active_gpus", ("ACTIVE", "GPUS"), 11, "{:,.2f}".format),
    Column("throughput_per_min", ("JOBS", "A MINUTE"), 10, "{:,.2f}".format),
    Column("waiting_at_end", ("WAITING", "AT END"), 9, "{:,.0f}".format),
)


def table(facts: Mapping[str, Any], width: int = ALL_COLUMNS) -> str:
    """The means over the seeds, no line longer than `width` where that is wide enough for two columns."""
    rows = facts["policies"]
    names = [["POLICY", "", *(row["policy"] for row in rows)]]
    if any(len(row["seeds"]) > 1 for row in rows):
        names.append(["SEEDS", "", *(str(len(row["seeds"])) for row in rows)])
    shown = {
        column: [*column.title, *(column.tell(row["mean"][column.figure]) for row in rows)]
        for column in COLUMNS
    }  # fmt: skip
    left = width - sum(max(map(len, cells)) + GAP for cells in names) + GAP
    kept: set[Column] = set()
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        left -= max(map(len, shown[column])) + GAP
        if left < 0 and len(kept) > 1:
            break
        kept.add(column)
    columns = [cells for column, cells in shown.items() if column in kept]
    lines = []
    for row in range(len(rows) + 2):
        head = [cells[row].ljust(max(map(len, cells))) for cells in names]
        lines.append((" " * GAP).join([*head, *(cells[row].rjust(max(map(len, cells))) for cells in columns)]).rstrip())
    return "\n".join(lines)


def cost(facts: Mapping[str, Any]) -> str:
    """What the cluster costs under each policy; empty where no price was given."""
    price = facts["gpu_hour_price"]
    if price is None:
        return ""
    told = ", ".join(f"{row['policy']} {number(row['cost']['cluster'])}" for row in facts["policies"])
    return f"cost of all GPUs until the last job ends, at {price:g} an hour: {told}"


def csv_table(facts: Mapping[str, Any]) -> str:
    """Every mean of every policy, in seconds, as CSV; the cost too, where a price was given."""
    rows = facts["policies"]
    names = list(dict.fromkeys(name for row in rows for name in row["mean"]))
    priced = facts["gpu_hour_price"] is not None
    cells = [
        [row["policy"], len(row["seeds"]), *(row["mean"].get(name, "") for name in names),
         *([row["cost"]["cluster"]] if priced else [])]
        for row in rows
    ]  # fmt: skip
    return csv_text(["policy", "seeds", *names, *(["cost"] if priced else [])], cells).rstrip("\n")

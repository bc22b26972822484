"""`aliquot top`: the use of the GPUs, with the tenants of each.

The table is of what waits, then the GPUs with their tenants, no line wider than the terminal. A narrow terminal has
shorter bars, then none. Sentences go on in another line, and only names are cut.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from aliquot.cli.calling import ask_engine
from aliquot.cli.options import Amount, output_option
from aliquot.cli.tables import UNBOUNDED, aligned, columns, cut, wrapped
from aliquot.model.quantities import format_milli

if TYPE_CHECKING:
    from aliquot.arbiter.records import Status
    from aliquot.standalone.wire import EngineFacts, RunProcess
    from aliquot.status.tenants import TenantStatus

BAR_CELLS: Final = 22
_LEAST_BAR: Final = 6
_NAME_WIDTH: Final = 14
_LEAST_NAME: Final = 6


@click.command()
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--plain", is_flag=True, help="Refresh a plain table, without keys.")
@click.option("--interval", "interval_s", type=Amount(86_400, least=0.1), default=1.0, show_default=True,
              help="Seconds between refreshes, 0.1 at least.")  # fmt: skip
@output_option
def top(once: bool, plain: bool, interval_s: float, output: str) -> None:
    """Show the use of the GPUs: on a terminal with keys and history, otherwise as one table.

    Example, print one table and exit:
      aliquot top --once
    """
    from aliquot.standalone.paths import RuntimeDir, engine_dir
    from aliquot.standalone.wire import InfoCall, RunningCall, StatusCall

    facts = ask_engine(InfoCall())
    if output == "json":
        status = ask_engine(StatusCall()).status
        click.echo(as_json(facts, status, _waiting(), ask_engine(RunningCall()).processes))
    elif once or not on_screen():
        processes = ask_engine(RunningCall()).processes
        click.echo(render(facts, ask_engine(StatusCall()).status, _waiting(), columns(), processes))
    elif plain or not takes_keys():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(console=Console(), auto_refresh=False, screen=True) as screen:
            while True:
                processes = ask_engine(RunningCall()).processes
                text = render(facts, ask_engine(StatusCall()).status, _waiting(), columns(), processes)
                screen.update(Text(text, no_wrap=True), refresh=True)
                time.sleep(interval_s)
    else:
        from aliquot.cli.top_app import TopApp
        from aliquot.cli.top_source import EnginePoller

        with EnginePoller(RuntimeDir(engine_dir())) as source:
            sys.exit(TopApp(source, interval_s=interval_s).run() or 0)


def on_screen() -> bool:
    """Whether the output goes to a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def takes_keys() -> bool:
    """Whether a person can press keys and the library for an application is installed."""
    from importlib.util import find_spec

    return sys.stdin is not None and sys.stdin.isatty() and find_spec("textual") is not None


def _waiting() -> dict[str, str]:
    """Why each SharePod and run waits that has no place, by name, in order."""
    from aliquot.standalone.wire import PodsCall, RunningCall

    pods = ask_engine(PodsCall()).pods
    runs = ask_engine(RunningCall()).queue
    return {pod.name: pod.message for pod in pods if pod.phase == "Pending"} | {run.name: run.reason for run in runs}


def as_json(
    facts: EngineFacts, status: Status, waiting: Mapping[str, str], processes: Mapping[str, Sequence[RunProcess]]
) -> str:
    """The same facts for programs."""
    import json

    import msgspec

    gpus = []
    measures = {gpu.uuid: gpu for gpu in status.gpus}
    for gpu in facts.gpus:
        entry: dict[str, Any] = msgspec.to_builtins(gpu)
        now = measures.get(gpu.uuid)
        entry["emulated"] = bool(facts.emulate)
        entry["busy"] = now.busy if now else 0.0
        entry["holder"] = now.holder if now else None
        entry["tenants"] = msgspec.to_builtins(now.tenants) if now else []
        for tenant in entry["tenants"]:
            tenant["pids"] = [process.pid for process in processes.get(tenant["name"], ())]
            tenant["containers"] = _containers(processes, tenant["name"])
        gpus.append(entry)
    waits = [{"name": name, "reason": why} for name, why in waiting.items()]
    return json.dumps({"window_ms": status.window_ms, "turns": status.turns, "waiting": waits, "gpus": gpus}, indent=2)


def render(
    facts: EngineFacts,
    status: Status,
    waiting: Mapping[str, str],
    width: int = UNBOUNDED,
    processes: Mapping[str, Sequence[RunProcess]] = MappingProxyType({}),
) -> str:
    """The table as text: what waits, then the GPUs, under each the containers of its tenants."""
    measures = {gpu.uuid: gpu for gpu in status.gpus}
    window_s = status.window_ms / 1000
    window = f"{window_s:g} s"
    blocks = []
    if waiting:
        reasons = [line for name, why in waiting.items() for line in wrapped(f"  {name}  {why}", width)]
        blocks.append([f"{len(waiting)} waiting", *reasons])
    for gpu in facts.gpus:
        measure = measures.get(gpu.uuid)
        tenants = measure.tenants if measure else []
        # Where its first tenant ran later than the window began, `busy` is a part of more than the time in use.
        granted = [tenant.first_grant_ns for tenant in tenants if tenant.first_grant_ns]
        ago_s = (status.now_ns - min(granted, default=0)) / 1e9
        since = f" of {window}, in use for {ago_s:.0f} s" if granted and ago_s < window_s else ""
        used_mib = sum(tenant.present_mib for tenant in tenants)
        name = f"GPU {gpu.index}  {gpu.model}{' (emulated)' if facts.emulate else ''}"
        busy = f"busy {(measure.busy if measure else 0.0) * 100:.0f} %{since}"
        now = f"{busy}   memory {used_mib / 1024:.1f} / {gpu.memory_mib / 1024:.1f} GiB"
        whole = f"{name}   {now}"
        lines = [whole] if len(whole) <= width else [cut(name, width), f"  {now}"]
        where = [(tenant.name, ", ".join(_containers(processes, tenant.name))) for tenant in tenants]
        lines += _tenant_lines(tenants, window, width) if tenants else ["  no tenants"]
        blocks.append([*lines, *(cut(f"  {name} is in {those}", width) for name, those in where if those)])
    meaning = (
        f"busy: charged to all tenants, of {window}; usage: of {window}, or of the time since a tenant came; "
        "│: its limit"
    )
    blocks.append(wrapped(meaning, width))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _containers(processes: Mapping[str, Sequence[RunProcess]], tenant: str) -> list[str]:
    return sorted({process.container for process in processes.get(tenant, ())} - {""})


def _tenant_lines(tenants: Sequence[TenantStatus], window: str, width: int) -> list[str]:
    """The tenants of a GPU, with bars as long as fit or without."""
    memory = [f"{each.memory_used_mib / 1024:.1f} / {each.memory_limit_mib / 1024:.1f} GiB" for each in tenants]
    names = max(_NAME_WIDTH, *(len(each.name) for each in tenants))

    def with_bars(cells: int) -> list[str]:
        usage = f"USAGE ({window})".ljust(cells + 6)
        return [
            f"  {'TENANT':<{names}} REQUEST  LIMIT   {usage}   {'MEMORY':<16} WAITS",
            *(
                f"  {each.name:<{names}}   {format_milli(each.request_milli):<5}   {format_milli(each.limit_milli):<5} "
                f" {bar(each.usage, each.limit_milli, cells)}  {each.usage:.2f}   {size:<16} {each.wait_ms_p50:.0f} ms"
                for each, size in zip(tenants, memory, strict=True)
            ),
        ]

    cells = BAR_CELLS - max(0, max(map(len, with_bars(BAR_CELLS))) - width)
    if cells >= _LEAST_BAR:
        lines = with_bars(cells)
    else:
        rows = [["REQUEST", "LIMIT", "USAGE", "MEMORY", "WAITS"]]
        for each, size in zip(tenants, memory, strict=True):
            shares = [format_milli(each.request_milli), format_milli(each.limit_milli), f"{each.usage:.2f}"]
            rows.append([*shares, size, f"{each.wait_ms_p50:.0f} ms"])
        drawn = list(aligned(rows))
        names = max(_LEAST_NAME, min(max(len(each.name) for each in tenants), width - max(map(len, drawn)) - 4))
        heads = ["TENANT", *(each.name for each in tenants)]
        lines = [f"  {cut(name, names):<{names}}  {line}" for name, line in zip(heads, drawn, strict=True)]
    notes = [f"  {each.wake_text}" for each in tenants if each.wake is not None]
    notes += [f"  {text}" for each in tenants for text in each.memory_texts]
    return [*lines, *(line for text in notes for line in wrapped(text, width))]


def bar(usage: float, limit_milli: int, cells: int = BAR_CELLS) -> str:
    """Usage as a filled bar with a stroke at the limit, of fixed width."""
    filled = min(cells, round(usage * cells))
    drawn = ["█"] * filled + ["░"] * (cells - filled)
    if limit_milli < 1000:
        drawn[min(cells - 1, limit_milli * cells // 1000)] = "│"
    return "".join(drawn)

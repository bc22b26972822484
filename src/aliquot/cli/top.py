"""`aliquot top`: the use of the GPUs, with the tenants of each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.options import Amount, output_option
from aliquot.model.quantities import format_milli

if TYPE_CHECKING:
    from aliquot.arbiter.records import GpuStatus, Status
    from aliquot.standalone.paths import RuntimeDir
    from aliquot.standalone.wire import EngineFacts, RunProcess
    from aliquot.status.tenants import TenantStatus

BAR_CELLS = 22
_NAME_WIDTH = 14


@click.command()
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--plain", is_flag=True, help="Refresh a plain table, without keys.")
@click.option("--interval", "interval_s", type=Amount(86_400, least=0.1), default=1.0, show_default=True,
              help="Seconds between refreshes, 0.1 at least.")  # fmt: skip
@output_option
def top(once: bool, plain: bool, interval_s: float, output: str) -> None:
    """Show the use of the GPUs: on a terminal with keys and history, otherwise as one table."""
    from aliquot.arbiter.client import ArbiterClient
    from aliquot.standalone.client import ask
    from aliquot.standalone.paths import RuntimeDir, runtime_dir
    from aliquot.standalone.wire import Call

    runtime = RuntimeDir(runtime_dir())
    facts = ask(runtime, Call("info")).facts
    assert facts is not None
    with ArbiterClient(runtime.root) as arbiter:
        if output == "json":
            click.echo(
                as_json(facts, arbiter.status(), _waiting(runtime), ask(runtime, Call("running")).processes or {})
            )
        elif once or not on_screen():
            click.echo(render(facts, arbiter.status(), _waiting(runtime)))
        elif plain or not takes_keys():
            _refresh(lambda: render(facts, arbiter.status(), _waiting(runtime)), interval_s)
        else:
            _application(runtime, interval_s)


def on_screen() -> bool:
    """Whether the output goes to a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def takes_keys() -> bool:
    """Whether a person can press keys and the library for an application is installed."""
    from importlib.util import find_spec

    return sys.stdin is not None and sys.stdin.isatty() and find_spec("textual") is not None


def _application(runtime: RuntimeDir, interval_s: float) -> None:
    from aliquot.cli.top_app import TopApp
    from aliquot.cli.top_source import EngineSource

    with EngineSource(runtime) as source:
        sys.exit(TopApp(source, interval_s=interval_s).run() or 0)


def _refresh(draw: Any, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False, screen=True) as screen:
        while True:
            screen.update(Text(draw(), no_wrap=True), refresh=True)
            time.sleep(interval_s)


def _waiting(runtime: RuntimeDir) -> dict[str, str]:
    """Why each SharePod and run waits that has no place, by name, in order."""
    from aliquot.standalone.client import ask
    from aliquot.standalone.wire import Call

    pods = ask(runtime, Call("pods")).pods or []
    runs = ask(runtime, Call("running")).queue or []
    return {pod.name: pod.message for pod in pods if pod.phase == "Pending"} | {run.name: run.reason for run in runs}


def render(facts: EngineFacts, status: Status, waiting: Mapping[str, str]) -> str:
    """The table as text: what waits, then the GPUs."""
    by_uuid = {gpu.uuid: gpu for gpu in status.gpus}
    window = f"{status.window_ms / 1000:g} s"
    blocks = []
    if waiting:
        reasons = [f"  {name}  {why}" for name, why in waiting.items()]
        blocks.append("\n".join([f"{len(waiting)} waiting", *reasons]))
    for gpu in facts.gpus:
        seen = by_uuid.get(gpu.uuid)
        kind = " (emulated)" if facts.emulate else ""
        used = sum(t.memory_used_mib for t in seen.tenants) if seen else 0
        busy = seen.busy if seen else 0.0
        lines = [
            f"GPU {gpu.index}  {gpu.model}{kind}   busy {busy * 100:.0f} %   "
            f"memory {used / 1024:.1f} / {gpu.memory_mib / 1024:.1f} GiB"
        ]
        lines += _tenant_lines(seen, window) if seen and seen.tenants else ["  no tenants"]
        blocks.append("\n".join(lines))
    blocks.append(f"busy: charged to all tenants, of {window}; usage: of {window}, or of the time since a tenant came")
    return "\n\n".join(blocks)


def _tenant_lines(gpu: GpuStatus, window: str) -> list[str]:
    width = max(_NAME_WIDTH, *(len(tenant.name) for tenant in gpu.tenants))
    head = f"  {'TENANT':<{width}} REQUEST  LIMIT   {f'USAGE ({window})':<{BAR_CELLS + 6}}   {'MEMORY':<16} WAITS"
    lines = [head, *(_tenant_line(tenant, width) for tenant in gpu.tenants)]
    return lines + [f"  {t.name:<{width}} wakes: {t.wake.text}" for t in gpu.tenants if t.wake is not None]


def _tenant_line(tenant: TenantStatus, width: int) -> str:
    memory = f"{tenant.memory_used_mib / 1024:.1f} / {tenant.memory_limit_mib / 1024:.1f} GiB"
    return (
        f"  {tenant.name:<{width}}   {format_milli(tenant.request_milli):<5}   {format_milli(tenant.limit_milli):<5} "
        f" {bar(tenant.usage, tenant.limit_milli)}  {tenant.usage:.2f}   {memory:<16} {tenant.wait_ms_p50:.0f} ms"
    )


def bar(usage: float, limit_milli: int) -> str:
    """Usage as a filled bar with a stroke at the limit, of fixed width."""
    filled = min(BAR_CELLS, round(usage * BAR_CELLS))
    cells = ["█"] * filled + ["░"] * (BAR_CELLS - filled)
    if limit_milli < 1000:
        cells[min(BAR_CELLS - 1, limit_milli * BAR_CELLS // 1000)] = "│"
    return "".join(cells)


def as_json(
    facts: EngineFacts, status: Status, waiting: Mapping[str, str], processes: Mapping[str, Sequence[RunProcess]]
) -> str:
    """The same facts for programs."""
    import json

    import msgspec

    models = {gpu.uuid: gpu for gpu in facts.gpus}
    gpus = []
    seen = {gpu.uuid: gpu for gpu in status.gpus}
    for uuid, gpu in models.items():
        entry: dict[str, Any] = msgspec.to_builtins(gpu)
        entry["emulated"] = bool(facts.emulate)
        now = seen.get(uuid)
        entry["busy"] = now.busy if now else 0.0
        entry["holder"] = now.holder if now else None
        entry["tenants"] = msgspec.to_builtins(now.tenants) if now else []
        for tenant in entry["tenants"]:
            tenant["pids"] = [process.pid for process in processes.get(tenant["name"], ())]
        gpus.append(entry)
    waits = [{"name": name, "reason": why} for name, why in waiting.items()]
    known = {"window_ms": status.window_ms, "turns": status.turns, "waiting": waits, "gpus": gpus}
    return json.dumps(known, indent=2)

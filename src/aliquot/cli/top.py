"""`aliquot top`: the use of the GPUs, with the tenants of each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.calling import ask_engine
from aliquot.cli.options import Amount, output_option
from aliquot.cli.tables import columns

if TYPE_CHECKING:
    from aliquot.arbiter.records import Status
    from aliquot.standalone.paths import RuntimeDir
    from aliquot.standalone.wire import EngineFacts, RunProcess


@click.command()
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--plain", is_flag=True, help="Refresh a plain table, without keys.")
@click.option("--interval", "interval_s", type=Amount(86_400, least=0.1), default=1.0, show_default=True,
              help="Seconds between refreshes, 0.1 at least.")  # fmt: skip
@output_option
def top(once: bool, plain: bool, interval_s: float, output: str) -> None:
    """Show the use of the GPUs: on a terminal with keys and history, otherwise as one table."""
    from aliquot.arbiter.client import ArbiterClient
    from aliquot.cli.top_text import render
    from aliquot.standalone.paths import RuntimeDir, runtime_dir
    from aliquot.standalone.wire import InfoCall, RunningCall

    runtime = RuntimeDir(runtime_dir())
    facts = ask_engine(InfoCall())
    with ArbiterClient(runtime.root) as arbiter:
        if output == "json":
            click.echo(as_json(facts, arbiter.status(), _waiting(), ask_engine(RunningCall()).processes))
        elif once or not on_screen():
            click.echo(render(facts, arbiter.status(), _waiting(), columns()))
        elif plain or not takes_keys():
            _refresh(lambda: render(facts, arbiter.status(), _waiting(), columns()), interval_s)
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
    from aliquot.cli.top_source import EnginePoller

    with EnginePoller(runtime) as source:
        sys.exit(TopApp(source, interval_s=interval_s).run() or 0)


def _refresh(draw: Any, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False, screen=True) as screen:
        while True:
            screen.update(Text(draw(), no_wrap=True), refresh=True)
            time.sleep(interval_s)


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

"""`aliquot down`: end the engine that is up."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

import click

from aliquot.cli.calling import ask_engine, short_name
from aliquot.cli.options import Span
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from aliquot.standalone.wire import EngineFacts


@click.command()
@click.option("--timeout", "timeout_s", type=Span(), default="60s", show_default=True, metavar="TIME",
              help="How long to wait for the engine's end: 10m, 90s.")  # fmt: skip
def down(timeout_s: float) -> None:
    """End the engine that is up with everything it runs, and wait until it has ended."""
    from aliquot.standalone.client import NoEngine
    from aliquot.standalone.paths import RuntimeDir, runtime_dir
    from aliquot.standalone.wire import InfoCall, PodsCall, TenantsCall

    runtime = RuntimeDir(runtime_dir())
    try:
        facts = ask_engine(InfoCall())
        engine = os.pidfd_open(facts.pid)
        pods = [short_name(pod.name) for pod in ask_engine(PodsCall()).pods if pod.phase == "Running"]
        tenants = [tenant.name for tenant in ask_engine(TenantsCall()).tenants]
    except (NoEngine, ProcessLookupError):
        click.echo(f"no engine is up at {runtime.root}; there is nothing to end")
        return
    runs = sorted(name for name in tenants if short_name(name) not in pods)
    signal.pidfd_send_signal(engine, signal.SIGTERM)
    if not select.select([engine], [], [], timeout_s)[0]:
        raise AliquotError(
            f"the engine (pid {facts.pid}) has not ended within {timeout_s:g} s; it still ends its programs. "
            f"Wait longer with --timeout, or see {runtime.engine_log}"
        )
    click.echo(_words(facts, pods, runs))


def _words(facts: EngineFacts, pods: list[str], runs: list[str]) -> str:
    """What was ended."""
    parts = [
        f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({', '.join(names)})"
        for what, names in (("sharepod", pods), ("run", runs))
        if names
    ]
    return f"ended the engine at {facts.runtime_dir} (pid {facts.pid}) and {' and '.join(parts) or 'nothing else'}"

"""`aliquot up`: the engine in the foreground."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading

import click

from aliquot.cli.options import emulate_option
from aliquot.model.errors import AliquotError
from aliquot.model.quantities import format_mib


class PortTaken(AliquotError):
    """Another program listens where the metrics were to be."""


@click.command()
@emulate_option
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="Serve Prometheus metrics here.")
@click.option("--window", "window_s", type=click.FloatRange(0.5, 600), default=10.0, show_default=True,
              metavar="SECONDS", help="Time over which shares are kept.")  # fmt: skip
@click.option("--quota", type=click.Choice(["dynamic", "fixed"]), default="dynamic", show_default=True,
              help="How long a grant is: by measured bursts, or always --quota-ms.")  # fmt: skip
@click.option("--quota-ms", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The fixed quota.")
@click.option("--handover", type=click.Choice(["auto", "drain", "overlap"]), default="auto", show_default=True,
              help="Whether the next tenant waits for the last one's running kernels.")  # fmt: skip
@click.option("--fail-policy", type=click.Choice(["pace", "open", "closed"]), default="pace", show_default=True,
              help="What tenants do while the arbiter is away.")  # fmt: skip
@click.option("-f", "--filename", "file", type=click.Path(), help="SharePods to apply at the start.")
def up(
    emulate: str | None,
    port: int | None,
    window_s: float,
    quota: str,
    quota_ms: int,
    handover: str,
    fail_policy: str,
    file: str | None,
) -> None:
    """Serve this machine's GPUs to SharePods until stopped (Ctrl-C, SIGTERM), then end them all."""
    from aliquot.cli.pods import read_text
    from aliquot.standalone.engine import Engine
    from aliquot.standalone.lock import EngineLock
    from aliquot.standalone.paths import RuntimeDir, runtime_dir
    from aliquot.standalone.pods import Pods, read_documents
    from aliquot.standalone.server import EngineServer

    text = "" if file is None else read_text(file)
    if text:
        read_documents(text)
    if port is not None:
        _require_free(port)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    runtime = RuntimeDir(runtime_dir())
    with EngineLock(runtime, wait_s=2.0) as lock:
        if lock is None:
            raise AliquotError(f"an engine is up at {runtime.root} already; use it, or end it first")
        engine = Engine.start(
            emulate, runtime_dir=runtime.root, window_ms=int(window_s * 1000), quota=quota, quota_ms=quota_ms,
            handover=handover, fail_policy=fail_policy, metrics_port=port,
        )  # fmt: skip
        with engine:
            pods = Pods(engine)
            server = EngineServer(engine, pods)
            try:
                _announce(engine, port)
                for line in pods.apply(text) if text else []:
                    click.echo(line)
                while not stopping.wait(1.0):
                    pods.place_waiting()
            finally:
                with contextlib.suppress(BrokenPipeError):
                    click.echo("stopping")
                server.close()
                pods.stop()


def _announce(engine: object, port: int | None) -> None:
    from aliquot.standalone.engine import Engine

    assert isinstance(engine, Engine)
    for gpu in engine.gpus:
        kind = " (emulated)" if engine.emulated else ""
        click.echo(f"GPU {gpu.index}  {gpu.model}{kind}  {format_mib(gpu.memory_mib)}  {gpu.uuid}")
    if port is not None:
        click.echo(f"metrics at http://127.0.0.1:{port}/metrics")
    click.echo(f"ready at {engine.runtime.root}. Give it work: aliquot apply -f FILE")


def _require_free(port: int) -> None:
    """Say so now, in words, rather than let the arbiter fail on it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTaken(f"--port {port}: {(error.strerror or str(error)).lower()}; choose another port") from None

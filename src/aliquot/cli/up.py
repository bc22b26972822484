"""`aliquot up`: the engine in the foreground."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aliquot.cli.options import Amount, emulate_option, not_gpus_option, only_gpus_option
from aliquot.model.errors import AliquotError, UserError
from aliquot.model.quantities import format_mib

if TYPE_CHECKING:
    from aliquot.standalone.engine import Engine
    from aliquot.standalone.lock import EngineLock
    from aliquot.standalone.pods import Pods
    from aliquot.standalone.server import EngineServer

DASHBOARD_PORT: Final = 8765
PORTS_TRIED: Final = 100
MAX_HISTORY_BYTES: Final = 256 << 20
_LISTENING: Final = "0A"
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


@click.command()
@emulate_option
@only_gpus_option
@not_gpus_option
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Serve the dashboard here; 0 is any free port.  [default: 8765, or the next free one]")  # fmt: skip
@click.option("--web/--no-web", default=True, show_default=True, help="Whether to serve the dashboard.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), metavar="PORT", help="Serve Prometheus metrics here.")
@click.option("--window", "window_s", type=Amount(600, least=0.5), default=10.0, show_default=True,
              metavar="SECONDS", help="Time over which shares are kept, 0.5 to 600.")  # fmt: skip
@click.option("--turns", type=click.Choice(["fluid", "kubeshare", "gemini"]), default="fluid", show_default=True,
              help="Whose turn it is: the farthest behind a fluid, or as in those papers.")  # fmt: skip
@click.option("--quota-ms", type=click.IntRange(1, 10_000), default=100, show_default=True,
              help="The longest turn while others wait; with kubeshare every turn.")  # fmt: skip
@click.option("--handover", type=click.Choice(["auto", "drain", "overlap"]), default="auto", show_default=True,
              help="Whether the next tenant waits for the last one's running kernels.")  # fmt: skip
@click.option("--fail-policy", type=click.Choice(["pace", "open", "closed"]), default="pace", show_default=True,
              help="What tenants do while the arbiter is away.")  # fmt: skip
@click.option("--policy", default=None, metavar="NAME",
              help="How GPUs are chosen: binpack, spread, gaia, ... [default: aliquot]")  # fmt: skip
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR",
              help="Where what placement learns is kept over restarts.  [default: ALIQUOT_STATE_DIR, else "
              "/var/lib/aliquot for root, ~/.local/state/aliquot for others]")  # fmt: skip
@click.option("--history", type=click.Path(dir_okay=False), metavar="FILE",
              help="Where the dashboard's history of 30 days is kept; none keeps two hours in memory.  "
              "[default: history.db in the folder of --state-dir]")  # fmt: skip
@click.option("-f", "--filename", "file", type=click.Path(), help="SharePods to apply at the start.")
@click.option(
    "-d", "--detach", is_flag=True, help="Serve in the background; returns when it is ready. See aliquot down."
)
@click.pass_context
def up(context: click.Context, /, detach: bool, **options: Any) -> None:
    """Serve this machine's GPUs to SharePods until stopped (Ctrl-C, SIGTERM, aliquot down), then end them all."""
    from aliquot.cli.calling import read_text
    from aliquot.driver.policies import maker
    from aliquot.placement.machine import DEFAULT_POLICY
    from aliquot.standalone.documents import read_documents

    if detach:
        from aliquot.cli.detach import start_detached

        start_detached(context)
        return
    file = options["file"]
    text = "" if file is None else read_text(file)
    if file is not None:
        read_documents(text, file)
    maker(options["policy"] or DEFAULT_POLICY)  # reject an unknown name before anything starts
    if options["state_dir"] is not None:
        _require_writable(options["state_dir"])
    if options["web"] and options["port"]:
        _require_free("--port", options["port"])
    if options["metrics_port"]:
        _require_free("--metrics-port", options["metrics_port"])
    _serve(text, options)


def _serve(text: str, options: dict[str, Any]) -> None:
    """Serve until a signal comes, beginning with the SharePods of a text.

    Raises:
        AliquotError: another engine is up, or this one cannot start.
    """
    from aliquot.placement.machine import DEFAULT_POLICY
    from aliquot.standalone.engine import Engine
    from aliquot.standalone.lock import EngineLock
    from aliquot.standalone.paths import RuntimeDir, runtime_dir, state_dir

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    runtime = RuntimeDir(runtime_dir())
    with EngineLock(runtime, wait_s=2.0) as lock:
        if lock is None:
            raise AliquotError(f"an engine is up at {runtime.root} already; use it, or end it first: aliquot down")
        named = ("turns", "quota_ms", "handover", "fail_policy", "metrics_port")
        engine = Engine.start(
            options["emulate"], runtime_dir=runtime.root, state_dir=options["state_dir"] or state_dir(),
            policy=options["policy"] or DEFAULT_POLICY, window_ms=int(options["window_s"] * 1000),
            only_gpus=options["only_gpus"] or "", not_gpus=options["not_gpus"] or "",
            **{name: options[name] for name in named},
        )  # fmt: skip
        with engine:
            _attend(engine, lock, text, options, stopping)


def _attend(engine: Engine, lock: EngineLock, text: str, options: dict[str, Any], stopping: threading.Event) -> None:
    from aliquot.standalone.documents import read_documents
    from aliquot.standalone.paths import state_dir
    from aliquot.standalone.pods import Pods
    from aliquot.standalone.roster import Roster, told
    from aliquot.standalone.server import EngineServer

    coming = {spec.full_name for spec in read_documents(text)} if text else set()
    pods = Pods(engine, Roster(engine.runtime.sharepods))
    kept = _history_file(options["history"], options["state_dir"] or state_dir(), emulated=engine.emulated)
    server = EngineServer(engine, pods, history=kept if options["web"] else None)
    try:
        pages = _dashboard(engine, pods, server, options["port"], kept) if options["web"] else contextlib.nullcontext()
        with pages as url:
            lost = told({name: phase for name, phase in pods.lost.items() if name not in coming})
            _announce(engine, url, options["metrics_port"], lost)
            for line in pods.apply(text) if text else []:
                click.echo(line)
            click.echo(f"ready at {engine.runtime.root}. Give it work: aliquot apply -f FILE")
            while not stopping.wait(1.0) and (lock.watch_directory() or engine.tenants):
                pods.place_waiting()
                engine.rest()
    finally:
        with contextlib.suppress(BrokenPipeError):
            click.echo("stopping")
        server.close()
        pods.stop()


@contextlib.contextmanager
def _dashboard(
    engine: Engine, pods: Pods, server: EngineServer, port: int | None, history: Path | None
) -> Iterator[str]:
    """The pages while the engine is up, and GPU-hours for its server; gives the pages' address."""
    from aliquot.standalone.status_source import EngineSource
    from aliquot.status.history import hours_range
    from aliquot.web.app import everyone
    from aliquot.web.history.file import Limits
    from aliquot.web.history.keeping import LongHistory
    from aliquot.web.serve import WebServer

    recorder = LongHistory(history, Limits(max_bytes=MAX_HISTORY_BYTES) if history else None)
    source = EngineSource(engine, pods, recorder).start()
    server.hours = lambda since: source.past.hours(hours_range(since))
    wanted, tries = (DASHBOARD_PORT, PORTS_TRIED) if port is None else (port, 1)
    try:
        with WebServer(everyone(source), port=wanted, tries=tries) as pages:
            yield pages.url
    finally:
        source.close()
        recorder.close()


def _history_file(named: str | None, state_dir: Path, *, emulated: bool) -> Path | None:
    from aliquot.standalone.paths import HISTORY_FILES

    if named == "none":
        return None
    return Path(named).absolute() if named else state_dir / HISTORY_FILES[emulated]


def _announce(engine: Engine, dashboard: str | None, metrics_port: int | None, lost: str) -> None:
    for gpu in engine.gpus:
        kind = " (emulated)" if engine.emulated else ""
        click.echo(f"GPU {gpu.index}  {gpu.model}{kind}  {format_mib(gpu.memory_mib)}  {gpu.uuid}")
    if dashboard:
        click.echo(f"dashboard at {dashboard}")
    if metrics_port is not None:
        click.echo(f"metrics at http://127.0.0.1:{metrics_port}/metrics")
    if lost:
        click.echo(lost)


def _require_writable(folder: Path) -> None:
    """Refuse a folder now in which what placement learns could not be kept.

    Raises:
        UserError: it is no folder, or no file can be made in it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"--state-dir {folder} cannot be written: {reason}; name a folder of yours") from None


def _require_free(option: str, port: int) -> None:
    """Say so now, in words, rather than let the arbiter fail on it.

    Raises:
        PortTaken: another program listens there; the text names it.
    """
    from aliquot.http.listening import PortTaken, listening

    try:
        listening("127.0.0.1", port, called=f"{option} {port}").close()
    except PortTaken:
        if not (who := _listener(port)):
            raise
        raise PortTaken(f"{option} {port} is taken by {who}; choose another port with {option}") from None


def _listener(port: int) -> str:
    """The program that listens on a port, as `python3 (pid 42)`; empty where the kernel does not let us know."""
    wanted = {f"socket:[{inode}]" for table in _TABLES for inode in _inodes(Path(table), port)}
    for process in Path("/proc").iterdir() if wanted else ():
        if not process.name.isdecimal():
            continue
        try:
            descriptors = list((process / "fd").iterdir())
            held = any(os.readlink(descriptor) in wanted for descriptor in descriptors)  # noqa: PTH115 (no path)
            name = (process / "comm").read_text().strip() if held else ""
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        if held:
            return f"{name} (pid {process.name})"
    return ""


def _inodes(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]

"""`aliquot up` and `aliquot down`: the engine, in the foreground or in the background, and its end."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from aliquot.cli.calling import ask_engine, read_text, short_name
from aliquot.cli.options import Amount, Span, emulate_option, not_gpus_option, only_gpus_option, up_recommend_option
from aliquot.model.errors import AliquotError, UserError, in_words
from aliquot.model.quantities import format_mib
from aliquot.standalone.paths import (
    HISTORY_FILES,
    EngineLock,
    RuntimeDir,
    engine_dir,
    machine_dir,
    runtime_dir,
    state_dir,
    way_out,
)

if TYPE_CHECKING:
    from aliquot.standalone.engine import Engine
    from aliquot.standalone.pods import Pods
    from aliquot.standalone.quota import AccountQuotas
    from aliquot.standalone.server import EngineServer

DASHBOARD_PORT: Final = 8765
PORTS_TRIED: Final = 100
MAX_HISTORY_BYTES: Final = 256 << 20
READY: Final = "ready at "
_POLL_S: Final = 0.05
_OWN: Final = "aliquot: "
_LISTENING: Final = "0A"
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


class NotStarted(AliquotError):
    """The engine in the background ended before it was ready."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code  # type: ignore[misc]


@click.command()
@click.option("--system", is_flag=True, help="Serve all accounts of this machine, as root; see --group and --quota.")
@click.option("--group", metavar="NAME", help="With --system: serve this group alone.  [default: every account]")
@click.option("--quota", type=click.Path(), metavar="FILE",
              help="With --system: the most that accounts and groups may hold, as YAML.")  # fmt: skip
@click.option("--print-unit", is_flag=True, help="With --system: print a unit of systemd with these options, and end.")
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
@up_recommend_option
@click.option("-f", "--filename", "file", type=click.Path(), help="SharePods to apply at the start.")
@click.option(
    "-d", "--detach", is_flag=True, help="Serve in the background; returns when it is ready. See aliquot down."
)
@click.pass_context
def up(context: click.Context, /, detach: bool, **options: Any) -> None:
    """Serve this machine's GPUs to SharePods until stopped (Ctrl-C, SIGTERM, aliquot down), then end them all.

    With --system the engine is the machine's: aliquot run, get, top and the other commands of every account find it,
    unless an engine of the account's own is up. Each account reads, changes and ends what is its own.

    Example, two emulated GPUs in the background, the dashboard on port 9000:
      aliquot up -d --emulate h100x2 --port 9000
    """
    from aliquot.driver.policies import maker
    from aliquot.kube.manifest import read_sharepods
    from aliquot.standalone.quota import AccountQuotas

    for option in ("group", "quota", "print_unit"):
        if options[option] and not options["system"]:
            raise UserError(f"--{option.replace('_', '-')} goes with --system; without it the engine serves you alone")
    if options["print_unit"]:
        click.echo(unit(_given(context, but=("print_unit", "detach"))), nl=False)
        return
    runtime = _runtime(system=options["system"], group=options["group"])
    if detach:
        _start_detached(context, runtime)
        return
    file = options["file"]
    text = "" if file is None else read_text(file)
    if file is not None:
        read_sharepods(text, file)
    if options["policy"]:
        maker(options["policy"])  # reject an unknown name before anything starts
    if (folder := options["state_dir"]) is not None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"--state-dir {folder} cannot be written: {reason}; name a folder of yours") from None
    if options["recommend"] != "show" and not options["web"]:
        raise UserError(f"--recommend {options['recommend']} needs what the dashboard records; leave out --no-web")
    if options["web"] and options["port"]:
        _require_free("--port", options["port"])
    if options["metrics_port"]:
        _require_free("--metrics-port", options["metrics_port"])
    quotas = AccountQuotas.read(Path(options["quota"])) if options["quota"] else AccountQuotas()
    _serve(text, options, runtime, quotas)


def _runtime(*, system: bool, group: str | None) -> RuntimeDir:
    """The directory of the engine: of the machine, or of this account.

    Raises:
        UserError: the machine's is for root, or there is no such group.
    """
    if not system:
        return RuntimeDir(runtime_dir())
    if (way := way_out("")) or os.geteuid() != 0:
        raise UserError(
            f"--system serves all accounts and so needs root; {way or 'without it the engine is yours alone'}"
        )
    import grp

    try:
        gid = None if group is None else grp.getgrnam(group).gr_gid
    except KeyError:
        raise UserError(f'--group {group}: there is no group "{group}" on this machine; see: getent group') from None
    os.umask(0o022)
    return RuntimeDir(Path(os.environ.get("RUNTIME_DIRECTORY") or machine_dir()), shared=True, gid=gid)


def _serve(text: str, options: dict[str, Any], runtime: RuntimeDir, quotas: AccountQuotas) -> None:
    """Serve until a signal comes, beginning with the SharePods of a text.

    Raises:
        AliquotError: another engine is up, or this one cannot start.
    """
    from aliquot.standalone.engine import Engine

    with _ending_signals() as signals, EngineLock(runtime, wait_s=2.0) as lock:
        if lock is None:
            raise AliquotError(f"an engine is up at {runtime.root} already; use it, or end it first: aliquot down")
        if options["web"] and options["history"] not in (None, "none"):
            from aliquot.web.history.file import HistoryFile

            try:  # now: later only the dashboard would say that nothing is kept
                HistoryFile(Path(options["history"]).absolute()).close()
            except OSError as error:
                sentence = f"--history cannot be written: {in_words(error)}; name a file of yours, or none"
                raise UserError(sentence) from None
        named = ["turns", "quota_ms", "handover", "fail_policy", "metrics_port"]
        named += ["policy"] if options["policy"] else []
        engine = Engine.start(
            options["emulate"], runtime=runtime, state_dir=options["state_dir"] or state_dir(),
            window_ms=int(options["window_s"] * 1000), only_gpus=options["only_gpus"] or "",
            not_gpus=options["not_gpus"] or "", **{name: options[name] for name in named},
        )  # fmt: skip
        with engine:
            engine.check_quota = quotas.require
            _attend(engine, lock, text, options, signals)


@contextlib.contextmanager
def _ending_signals() -> Iterator[SimpleQueue[int]]:
    """The signals that end an engine, as they come; afterwards they are ignored.

    The queue's `put` may interrupt its own `get`. An Event's `set` would wait for a lock that the interrupted `wait`
    holds. The interpreter restores the actions of signals that have a handler while it ends, and a late signal would
    change the exit status.
    """
    signals: SimpleQueue[int] = SimpleQueue()
    ending = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in ending:
        signal.signal(number, lambda number, _: signals.put(number))
    try:
        yield signals
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_IGN)


def _attend(engine: Engine, lock: EngineLock, text: str, options: dict[str, Any], signals: SimpleQueue[int]) -> None:
    """Serve an engine that has started, until a signal ends it: its socket, its pages and its SharePods."""
    from aliquot.kube.manifest import read_sharepods
    from aliquot.standalone.pods import Pods
    from aliquot.standalone.recommending import Recommending
    from aliquot.standalone.server import EngineServer

    coming = {spec.full_name for spec in read_sharepods(text)} if text else set()
    pods = Pods(engine, Recommending(engine, options["recommend"]), remembers=True)
    history: Path | None = (options["state_dir"] or state_dir()) / HISTORY_FILES[engine.emulated]
    if options["history"]:
        history = None if options["history"] == "none" else Path(options["history"]).absolute()
    server = EngineServer(engine, pods, history=history if options["web"] else None)
    try:
        dashboard: contextlib.AbstractContextManager[str | None] = contextlib.nullcontext()
        if options["web"]:
            dashboard = _dashboard(engine, pods, server, options["port"], history)
        with dashboard as url:
            for gpu in engine.gpus:
                kind = " (emulated)" if engine.emulated else ""
                click.echo(f"GPU {gpu.index}  {gpu.model}{kind}  {format_mib(gpu.memory_mib)}  {gpu.uuid}")
            if url:
                click.echo(f"dashboard at {url}")
            if options["metrics_port"] is not None:
                click.echo(f"metrics at http://127.0.0.1:{options['metrics_port']}/metrics")
            if lost := pods.lost_in_words(coming):
                click.echo(lost)
            for line in pods.apply(text) if text else []:
                click.echo(line)
            click.echo(f"{READY}{engine.runtime.root}. Give it work: aliquot apply -f FILE")
            notify("READY=1")
            while lock.watch_directory() or engine.tenants:
                with contextlib.suppress(Empty):
                    engine.leaves_runs = signals.get(timeout=1.0) == signal.SIGTERM and engine.runtime.shared
                    return
                notify("WATCHDOG=1")
                pods.place_waiting()
                pods.recommending.follow(pods.resize)
                engine.rest()
    finally:
        notify("STOPPING=1")
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
    from aliquot.web.accounts import AccountDoor
    from aliquot.web.app import WebServer
    from aliquot.web.history.file import Limits
    from aliquot.web.history.keeping import LongHistory

    recorder = LongHistory(history, Limits(max_bytes=MAX_HISTORY_BYTES) if history else None)
    source = EngineSource(engine, pods, recorder).start()
    server.facts, pods.recommending.facts, engine.recommends = source, source, True
    wanted, tries = (DASHBOARD_PORT, PORTS_TRIED) if port is None else (port, 1)
    door = AccountDoor(source, server) if engine.runtime.shared else None
    try:
        with WebServer(door or (lambda _: source), port=wanted, tries=tries, signing_in=door) as pages:
            server.dashboard = lambda account: pages.url + (door.link(account) if door else "")
            yield pages.url
    finally:
        source.close()
        recorder.close()


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
    sockets = set()
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for row in (line.split() for line in Path(table).read_text().splitlines()[1:]):
                if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{row[9]}]")
    for process in Path("/proc").iterdir() if sockets else ():
        if not process.name.isdecimal():
            continue
        try:
            descriptors = list((process / "fd").iterdir())
            if any(os.readlink(descriptor) in sockets for descriptor in descriptors):  # noqa: PTH115 (no path)
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:  # it has ended meanwhile, or is another user's
            continue
    return ""


def _given(context: click.Context, *, but: Collection[str]) -> list[str]:
    """The options of the command line, but for those."""
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or name in but or not isinstance(option, click.Option):
            continue
        value = context.params[name]
        if option.is_flag:
            words.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            words += [option.opts[0], str(value)]
    return words


def _of_root(root: Path) -> str:
    return f"the machine's engine at {root} is root's to end: {way_out('sudo aliquot down')}"


def _start_detached(context: click.Context, runtime: RuntimeDir) -> None:
    """Start the command of this context without --detach, in a session of its own, and print what it says when ready.

    A signal that ends this command before then, as Ctrl-C, ends the engine too.

    Raises:
        NotStarted: it ended before it was ready; its last sentence says why.
    """
    from aliquot.standalone.client import NoEngine, ask
    from aliquot.standalone.wire import InfoCall

    words = _given(context, but=("detach",))
    runtime.create()
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda number, _: signals.append(number))
    with runtime.engine_log.open("ab") as log:
        start = log.tell()
        stdin = None if context.params["file"] == "-" else subprocess.DEVNULL
        argv = [sys.executable, "-m", "aliquot.cli", "up", *words]
        process = subprocess.Popen(argv, stdin=stdin, stdout=log, stderr=log, start_new_session=True)
    while True:
        status = process.poll()
        if signals:
            process.terminate()
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C does not wait for its end
            process.wait()
            raise SystemExit(128 + signals[0])
        with runtime.engine_log.open("rb") as source:
            source.seek(start)
            lines = source.read().decode(errors="replace").splitlines()
        with contextlib.suppress(NoEngine):  # another that starts at this moment has the same log
            if any(line.startswith(READY) for line in lines) and ask(runtime, InfoCall()).pid == process.pid:
                break
        if status is not None:
            why = next((line.removeprefix(_OWN) for line in reversed(lines) if line.startswith(_OWN)), "")
            raise NotStarted(
                why or f"the engine ended with status {status} at its start; see {runtime.engine_log}", status or 1
            )
        time.sleep(_POLL_S)
    for line in lines:
        if not line.startswith(READY):
            click.echo(line)
    click.echo(f"{READY}{runtime.root}, pid {process.pid}. Its log: {runtime.engine_log}. End it: aliquot down")


def unit(words: Sequence[str]) -> str:
    """The unit by which systemd starts `aliquot up` with these words at boot."""
    command = [sys.executable, "-m", "aliquot.cli", "up", *words]
    template = Path(__file__).with_name("aliquot.service").read_text("utf-8")
    return template.format(command=shlex.join(command).replace("%", "%%"))


def notify(state: str) -> None:
    """Say `READY=1`, `WATCHDOG=1` or `STOPPING=1` to the service manager; nothing where none waits for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


@click.command()
def dashboard() -> None:
    """Print the address of the dashboard of the engine that is up.

    Of the machine's engine it is a link that signs your account in: it works once, for a minute, in a browser of this
    machine that is yours. You see events of what is your own then, and its logs, and can end it.

    Example, the link that signs you in:
      aliquot dashboard
    """
    from aliquot.standalone.wire import DashboardCall

    click.echo(ask_engine(DashboardCall()).lines[0])


@click.command()
@click.option("--timeout", "timeout_s", type=Span(), default="60s", show_default=True, metavar="TIME",
              help="How long to wait for the engine's end: 10m, 90s.")  # fmt: skip
def down(timeout_s: float) -> None:
    """End the engine that is up with everything it runs, and wait until it has ended.

    Example, give programs five minutes to end:
      aliquot down --timeout 5m
    """
    from aliquot.standalone.client import NoEngine, ask, free_gpus
    from aliquot.standalone.wire import InfoCall, PodsCall, TenantsCall

    runtime = RuntimeDir(runtime_dir())
    try:
        facts = ask(runtime, InfoCall())
        engine = os.pidfd_open(facts.pid)
        pods = [short_name(pod.name) for pod in ask(runtime, PodsCall()).pods if pod.phase == "Running"]
        tenants = [tenant.name for tenant in ask(runtime, TenantsCall()).tenants]
    except (NoEngine, ProcessLookupError):
        if (machine := engine_dir()) != runtime.root:
            raise AliquotError(f"no engine of your own is up at {runtime.root}; {_of_root(machine)}") from None
        click.echo(f"no engine is up at {runtime.root}; {way_out(free_gpus(runtime))}")
        return
    runs = sorted(name for name in tenants if short_name(name) not in pods)
    # The machine's engine leaves its runs to the next one where a service manager stops it.
    try:
        signal.pidfd_send_signal(engine, signal.SIGINT if facts.system else signal.SIGTERM)
    except PermissionError:
        raise AliquotError(_of_root(runtime.root)) from None
    if not select.select([engine], [], [], timeout_s)[0]:
        raise AliquotError(
            f"the engine (pid {facts.pid}) has not ended within {timeout_s:g} s; it still ends its programs. "
            f"Wait longer with --timeout, or see {runtime.engine_log}"
        )
    parts = [
        f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({', '.join(names)})"
        for what, names in (("sharepod", pods), ("run", runs))
        if names
    ]
    with_it = " and ".join(parts) or "nothing else"
    click.echo(f"ended the engine at {facts.runtime_dir} (pid {facts.pid}) and {with_it}")

"""`aliquot apply, describe, delete, logs, exec`: SharePods of the engine that is up."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from aliquot.cli.calling import arbiter_status, ask_engine, full_name, read_text, selected, short_name
from aliquot.cli.completion import sharepod_names
from aliquot.cli.forms import show
from aliquot.cli.options import Span, output_option
from aliquot.cli.tables import memory_of
from aliquot.model.ages import format_age
from aliquot.model.errors import AliquotError, UserError, printable
from aliquot.model.quantities import format_milli

if TYPE_CHECKING:
    from aliquot.standalone.wire import LogsCall, PodFacts


ENFORCED: Final = {
    "never": "never (whole GPUs, the bare driver)",
    "memory": "memory (whole GPUs, no limit on time)",
    "all": "all",
}


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[FILE]...")
@click.option("-f", "--filename", "files", multiple=True, type=click.Path(), help="YAML with SharePods; - is stdin.")
@click.option("--restart", is_flag=True, help="Restart changed SharePods that run.")
def apply(paths: tuple[str, ...], files: tuple[str, ...], restart: bool) -> None:
    """Create or update SharePods from files, with -f or without.

    New SharePods start, unchanged ones stay. One that runs is resized in place where only request, limit and memory of
    its part of a GPU have changed. Any other change needs a new start: it is refused, with what would be lost, unless
    --restart is given. Logs and events are kept.

    Example, the SharePods of a file:
      aliquot apply -f examples/neighbours.yaml
    """
    from aliquot.kube.manifest import read_sharepods
    from aliquot.standalone.wire import ApplyCall

    if not (given := [*files, *paths]):
        raise UserError("apply needs a file: aliquot apply -f FILE; - is stdin")
    texts = [(file, read_text(file)) for file in given]
    for file, text in texts:
        read_sharepods(text, file)  # the user's mistakes need no engine to be found
    for _, text in texts:
        for line in ask_engine(ApplyCall(text, restart)).lines:
            click.echo(line)


@click.command()
@click.argument("name", shell_complete=sharepod_names)
@click.option("-n", "--namespace", default="", metavar="NAME", help="Its namespace. [default: default]")
@output_option
def describe(name: str, namespace: str, output: str) -> None:
    """Show details of one SharePod.

    Example, one SharePod with its events:
      aliquot describe research/notebook
    """
    from aliquot.standalone.wire import PodsCall

    pod = ask_engine(PodsCall(full_name(name, namespace))).pods[0]
    show(output, msgspec.to_builtins(pod), lambda: _description(pod))


def _description(pod: PodFacts) -> Iterator[str]:
    labels = ", ".join(f"{key}={value}" for key, value in pod.labels.items())
    wake = ""
    if pod.wake_us:  # the promise, and what was measured while it runs
        from aliquot.model.wake import format_wake

        status = arbiter_status()
        tenants = [tenant for gpu in status.gpus for tenant in gpu.tenants] if status else []
        texts = [tenant.wake.text for tenant in tenants if tenant.name == pod.name and tenant.wake is not None]
        wake = texts[0] if texts else format_wake(pod.wake_us)
    rows = [
        ("Name", pod.name),
        *([("Labels", labels)] if labels else []),
        ("Phase", pod.phase + (f" ({pod.reason or pod.message})" if pod.reason or pod.message else "")),
        *(("GPU", f"{gpu}  {uuid}") for gpu, uuid in zip(pod.gpus, pod.gpu_uuids, strict=True)),
        *([] if pod.gpus else [("GPU", "none yet")]),
        ("Request", format_milli(pod.request_milli)),
        ("Limit", format_milli(pod.limit_milli)),
        ("Memory", memory_of(pod)),
        ("Enforced", ENFORCED[pod.enforce]),
        *([("Wakes in", wake)] if wake else []),
        ("Age", format_age(pod.age_s)),
    ]
    for label, value in rows:
        yield f"{label + ':':<12}{printable(value)}"
    yield "Containers:"
    for c in pod.containers:
        last = "" if c.exit_status is None else f", last ended with {c.exit_status}"
        pid = f", pid {c.pid}" if c.pid else ""
        reason = f" ({c.reason})" if c.reason else ""
        yield f"  {c.name}: {c.state}{reason}{pid}, {c.restarts} restarts{last}"
    yield "Events:"
    for event in pod.events:
        yield f"  {printable(event)}"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=sharepod_names)
@click.option("-f", "--filename", "files", multiple=True, type=click.Path(), help="End the SharePods of this file.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="End those with these labels: app=web,!debug.")
@click.option("--all", "everything", is_flag=True, help="End all of the namespace.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Their namespace. [default: default]")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="With --all or -l: in every namespace.")
def delete(
    names: tuple[str, ...], files: tuple[str, ...], selector: str, everything: bool, namespace: str, everywhere: bool
) -> None:
    """End SharePods and forget them with their logs: by name, of a file, by labels, or all of a namespace.

    Example, everything that a file started:
      aliquot delete -f examples/neighbours.yaml
    """
    ways = [bool(names), bool(files), bool(selector), everything]
    if sum(ways) != 1:
        raise UserError("delete takes names, files with -f, labels with -l, or --all; give one of them")
    if everywhere and (namespace or not (selector or everything)):
        raise UserError("-A goes with --all or -l, and without -n")
    if names:
        words = [w for w in names if w not in ("sharepod", "sharepods", "pod", "pods", "sp", "po")] or list(names)
        ended = [full_name(name, namespace) for name in words]
    elif files:
        from aliquot.kube.manifest import read_sharepods

        ended = [pod.full_name for file in files for pod in read_sharepods(read_text(file), file)]
    else:
        ended = selected(selector, "" if everywhere else namespace or "default")
    from aliquot.standalone.wire import DeleteCall

    for name in ended:
        for line in ask_engine(DeleteCall(name)).lines:
            click.echo(line)
    if not ended:
        click.echo("no sharepods to delete" + ("" if everywhere else f" in namespace {namespace or 'default'}"))


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=sharepod_names)
@click.option("-c", "--container", default="", help="Which container. [default: the first]")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the program has ended.")
@click.option("--tail", type=click.IntRange(-1), metavar="LINES", help="Only the last lines. [default: all]")
@click.option("--since", type=Span(), metavar="TIME", help="Only what is not older: 10m, 1h30m, 90s.")
@click.option("-p", "--previous", is_flag=True, help="The output of the run before the last start.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Of the SharePods with these labels.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Their namespace. [default: default]")
@click.option("--prefix", is_flag=True, help="Begin each line with the SharePod's name, as is done for several.")
def logs(
    names: tuple[str, ...], container: str, follow: bool, tail: int | None, since: float | None, previous: bool,
    selector: str, namespace: str, prefix: bool,
) -> None:  # fmt: skip
    """Show the output of SharePods.

    Example, the last lines of a SharePod, then what comes:
      aliquot logs --tail 20 -f notebook
    """
    from aliquot.standalone.wire import LogCut, LogsCall

    if bool(names) == bool(selector):
        raise UserError("name SharePods, or choose them with -l: aliquot logs NAME")
    if previous and follow:
        raise UserError("--previous is what a run printed that has ended; it cannot be followed with -f")
    wanted = [full_name(name, namespace) for name in names] or selected(selector, namespace)
    if not wanted:
        raise UserError(f'no sharepod has the labels "{selector}"; list them: aliquot get sharepods -o wide')
    cut = LogCut(None if tail == -1 else tail, since, previous)
    calls = [LogsCall(name, container, follow, cut) for name in wanted]
    errors: list[AliquotError] = []

    def follow_one(call: LogsCall) -> None:
        try:
            _show_log(call, marked=True)
        except AliquotError as error:
            errors.append(error)

    if follow and len(calls) > 1:
        threads = [threading.Thread(target=follow_one, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return
    for call in calls:
        _show_log(call, marked=prefix or len(calls) > 1)


class _MarkedLines:
    """Prints pieces of output as whole lines, each with a mark before it."""

    _lock = threading.Lock()

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._rest = ""

    def __call__(self, piece: str, nl: bool = False) -> None:
        """One piece; a line that is not finished waits for the next piece."""
        *lines, self._rest = (self._rest + piece).split("\n")
        with self._lock:
            for line in lines:
                click.echo(f"{self._mark}{line}")

    def end(self) -> None:
        """Print a last line without an end."""
        if self._rest:
            self("\n")


def _show_log(call: LogsCall, *, marked: bool) -> None:
    """Print the output of one SharePod as it comes."""
    from aliquot.standalone.client import EngineConnection
    from aliquot.standalone.paths import RuntimeDir, engine_dir

    lines = _MarkedLines(f"[{short_name(call.name)}] ") if marked else None
    put: Callable[..., None] = lines or click.echo
    with EngineConnection(RuntimeDir(engine_dir())) as connection:
        for reply in connection.answers(call):
            for piece in reply.lines:
                put(piece, nl=False)
            sys.stdout.flush()
    if lines is not None:
        lines.end()


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-c", "--container", default="", help="Which container. [default: the first]")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Its namespace. [default: default]")
@click.option("-i", "--stdin", is_flag=True, hidden=True, help="As kubectl has it: standard input always goes through.")
@click.option("-t", "--tty", is_flag=True, hidden=True, help="As kubectl has it: a terminal is always the command's.")
@click.option("-v", "--verbose", is_flag=True, help="Report progress on stderr.")
@click.argument("name", shell_complete=sharepod_names)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND...")
def exec(
    container: str, namespace: str, stdin: bool, tty: bool, verbose: bool, name: str, command: tuple[str, ...]
) -> int:
    """Run COMMAND in the place of a SharePod's container, or of a run by its name; exits with the command's status.

    It has the container's environment and folder, sees the same GPU, and what it uses is charged to the same share. It
    is ended with the container.

    Example, a shell in the place of a SharePod:
      aliquot exec notebook -- bash
    """
    from aliquot.standalone.client import EngineConnection
    from aliquot.standalone.paths import RuntimeDir, engine_dir
    from aliquot.standalone.runner import original_environment, run_command
    from aliquot.standalone.wire import ExecCall

    if command[0].startswith("-") and "--" in command[1:]:  # options between the name and the command, as in kubectl
        start = command.index("--")
        given = ["--container", container, "--namespace", namespace, *command[:start], name, *command[start:]]
        return int(exec.main(given, standalone_mode=False))
    command = command[1:] if command[0] == "--" else command
    with EngineConnection(RuntimeDir(engine_dir())) as connection:
        place = connection.ask(ExecCall(full_name(name, namespace), name, container))
        env = place.env or original_environment()
        if place.env and "TERM" in os.environ:
            env = env | {"TERM": os.environ["TERM"]}
        sys.stderr.flush()
        return run_command(
            place, command, env, mode="auto", verbose=verbose, engine_gone=connection.wait_until_lost,
            cwd=Path(place.cwd) if place.cwd else None,
        )  # fmt: skip

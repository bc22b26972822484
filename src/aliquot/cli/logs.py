"""`aliquot logs`: what SharePods print."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from aliquot.cli.calling import full_name, selected, short_name
from aliquot.cli.completion import sharepod_names
from aliquot.cli.options import Span
from aliquot.model.errors import AliquotError, UserError

if TYPE_CHECKING:
    from aliquot.standalone.wire import LogsCall


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
    """Show the output of SharePods."""
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
    marked = prefix or len(calls) > 1
    try:
        if follow and len(calls) > 1:
            _together(calls)
        else:
            for call in calls:
                _show(call, _Marked(f"[{short_name(call.name)}] ") if marked else click.echo)
    except KeyboardInterrupt:
        return


class _Marked:
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


def _show(call: LogsCall, put: Callable[..., None]) -> None:
    from aliquot.standalone.client import EngineConnection
    from aliquot.standalone.paths import RuntimeDir, runtime_dir

    with EngineConnection(RuntimeDir(runtime_dir())) as connection:
        for reply in connection.answers(call):
            for piece in reply.lines:
                put(piece, nl=False)
            sys.stdout.flush()
    if isinstance(put, _Marked):
        put.end()


def _together(calls: Sequence[LogsCall]) -> None:
    """Follow several at once, each in a thread; the first error is raised when all have ended."""
    errors: list[AliquotError] = []

    def show(call: LogsCall) -> None:
        try:
            _show(call, _Marked(f"[{short_name(call.name)}] "))
        except AliquotError as error:
            errors.append(error)

    threads = [threading.Thread(target=show, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

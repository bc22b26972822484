"""`aliquot up --detach`: the same command in the background, waited for until it is ready."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from aliquot.model.errors import AliquotError
from aliquot.standalone.paths import RuntimeDir, runtime_dir

READY: Final = "ready at "
_POLL_S: Final = 0.05
_OWN: Final = "aliquot: "


class NotStarted(AliquotError):
    """The engine in the background ended before it was ready."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code  # type: ignore[misc]


def start_detached(context: click.Context) -> None:
    """Start the command of this context without --detach, in a session of its own, and print what it says.

    Raises:
        NotStarted: it ended before it was ready.
    """
    runtime = RuntimeDir(runtime_dir())
    runtime.create()
    argv = [sys.executable, "-m", "aliquot.cli", "up", *_words(context)]
    with runtime.engine_log.open("ab") as log:
        start = log.tell()
        stdin = None if context.params["file"] == "-" else subprocess.DEVNULL
        process = subprocess.Popen(argv, stdin=stdin, stdout=log, stderr=log, start_new_session=True)
    shown = _until_ready(process, runtime.engine_log, start)
    for line in shown:
        if not line.startswith(READY):
            click.echo(line)
    click.echo(f"{READY}{runtime.root}, pid {process.pid}. Its log: {runtime.engine_log}. End it: aliquot down")


def _words(context: click.Context) -> list[str]:
    """The options that were given, as they are written."""
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or name == "detach" or not isinstance(option, click.Option):
            continue
        value = context.params[name]
        if option.is_flag:
            words.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            words += [option.opts[0], str(value)]
    return words


def _until_ready(process: subprocess.Popen[bytes], log: Path, start: int) -> list[str]:
    """What the engine has printed when it is ready.

    Raises:
        NotStarted: it ended before; its last sentence says why.
    """
    while True:
        ended = process.poll()
        with log.open("rb") as source:
            source.seek(start)
            lines = source.read().decode(errors="replace").splitlines()
        if any(line.startswith(READY) for line in lines):
            return lines
        if ended is not None:
            why = next((line.removeprefix(_OWN) for line in reversed(lines) if line.startswith(_OWN)), "")
            raise NotStarted(why or f"the engine ended with status {ended} at its start; see {log}", ended or 1)
        time.sleep(_POLL_S)

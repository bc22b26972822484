"""`aliquot run`: one command with a part of a GPU."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import click

from aliquot.cli.calling import UnreadableFile, read_text
from aliquot.cli.options import Quantity, Span, read_request, request_options
from aliquot.driver.injection import MODES, Mode
from aliquot.model.errors import UserError, one_line
from aliquot.model.ids import TenantName, tenant_name
from aliquot.model.quantities import MILLI

_GPU_NAMES: Final = r"(?:[0-9]+|GPU-[0-9a-fA-F-]{36})(?:,(?:[0-9]+|GPU-[0-9a-fA-F-]{36}))*"


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@request_options
@click.option("--inject", type=click.Choice(MODES), default="auto", show_default=True, help="How CUDA is intercepted.")
@click.option(
    "--name", type=Quantity("name", tenant_name), metavar="TEXT", help="The tenant's name. [default: run-PID]"
)
@click.option("--wait", is_flag=True, help="Wait for room instead of being refused; Ctrl-C leaves the queue.")
@click.option("--timeout", "timeout_s", type=Span(), metavar="TIME",
              help="End the command after this time: 10m, 1h30m; the exit status is then 124.")  # fmt: skip
@click.option("-e", "--env", "variables", multiple=True, metavar="NAME[=VALUE]",
              help="Set a variable, or pass on the one that has this name here; repeatable.")  # fmt: skip
@click.option("--env-file", "env_files", multiple=True, type=click.Path(), help="Set the variables of a file.")
@click.option("--cwd", type=click.Path(), metavar="DIR", help="The folder in which the command is started.")
@click.option("--container", type=click.Choice(["docker", "podman"]),
              help="Give the share to a container: COMMAND is what this tool's run takes, with the image.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Report progress on stderr.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND...")
def run(
    inject: Mode,
    name: TenantName | None,
    wait: bool,
    timeout_s: float | None,
    variables: tuple[str, ...],
    env_files: tuple[str, ...],
    cwd: str | None,
    container: str | None,
    verbose: bool,
    command: tuple[str, ...],
    **wanted: Any,
) -> int:
    """Run COMMAND with a part of a GPU; ends as the command ends.

    An engine is started when none is up, and ends with its last run. Processes that the command leaves behind go on,
    but those that use its GPU are ended. After --timeout, or when this program is killed, all of them are ended.

    Example, a third of a GPU, up to two thirds while others are idle, with 4 GiB of its memory:
      aliquot run --gpu-request .3 --gpu-limit .6 --gpu-mem 4Gi -- python train.py
    """
    from aliquot.standalone.client import lease
    from aliquot.standalone.paths import RuntimeDir, engine_dir, runtime_dir
    from aliquot.standalone.runner import TIMED_OUT, original_environment, run_command
    from aliquot.standalone.wire import LeaseCall

    request, cpu_bind = read_request(wanted), wanted["cpu_bind"] or 0
    if container:
        _refuse_detached(container, command)
    who = name or tenant_name(f"run-{os.getpid()}")
    chosen = _variables(variables, env_files)
    folder = None if cwd is None else Path(cwd).absolute()
    if folder is not None and not folder.is_dir():
        raise UserError(f"--cwd {cwd} is not a folder; name one that exists")
    tell = partial(click.echo, err=True)
    call = LeaseCall(who, request, cpu_bind, wait, bool(container))
    emulate: str | None = wanted["emulate"]
    connection, place = lease(
        RuntimeDir(runtime_dir() if emulate else engine_dir()), call, emulate=emulate,
        waits=lambda reason: tell(f"aliquot: waits: {reason}. Ctrl-C leaves the queue"),
    )  # fmt: skip
    try:
        # The variable that chooses GPUs elsewhere chooses none here, unless it happens to name those of the place.
        own = None if request.gpu or "CUDA_VISIBLE_DEVICES" in chosen else os.environ.get("CUDA_VISIBLE_DEVICES")
        if own is not None and own not in (place.variables.get("CUDA_VISIBLE_DEVICES"), place.visible_devices):
            gpu = own if re.fullmatch(_GPU_NAMES, own) else "UUID|INDEX"
            unread = f"CUDA_VISIBLE_DEVICES={one_line(own)} is not read by aliquot run"
            tell(f"aliquot: {unread}; name a GPU with --gpu {gpu}")
        if verbose:
            limit = MILLI if request.limit_milli is None else request.limit_milli
            tell(f"aliquot: tenant {place.name} on {place.visible_devices}, limit {limit / MILLI:.2f}")
        sys.stderr.flush()
        resumes = place.name if place.resumes else ""
        if container:
            passed = [word for variable in chosen for word in ("--env", variable)]  # values are not for ps to see
            command = (container, "run", *place.options, *passed, *command)
        status = run_command(
            place, command, original_environment() | chosen, mode="container" if container else inject, verbose=verbose,
            engine_gone=partial(connection.wait_until_lost, resumes), cwd=folder, timeout_s=timeout_s,
            visible_devices=chosen.get("CUDA_VISIBLE_DEVICES"),
        )  # fmt: skip
        # What a command left behind that ran out of time is ended as it was, and nothing is said of it.
        if not (status == TIMED_OUT and timeout_s):
            for line in connection.say_ended():
                tell(f"aliquot: {line}")
        return status
    finally:
        connection.close()


def _refuse_detached(tool: str, command: tuple[str, ...]) -> None:
    """Refuse a container that goes on without the run, whose share ends with it.

    Raises:
        UserError: the sentence has the way out.
    """
    options = takewhile(lambda word: word.startswith("-"), command)
    if any(re.fullmatch(r"-[diPqt]*d[diPqt]*|--detach(=true)?", word) for word in options):
        raise UserError(
            f"--container {tool} runs in the foreground; for a container that goes on: aliquot share create"
        )


def _variables(given: tuple[str, ...], files: tuple[str, ...]) -> dict[str, str]:
    """The variables of files, then those given one by one; a name alone takes the value it has here, if it has one.

    Raises:
        UserError: a variable without a name, or a file that cannot be read.
    """
    values: dict[str, str] = {}
    for file in files:
        try:
            text = read_text(file)
        except UnreadableFile as error:
            raise UserError(f"--env-file {error}") from None
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                values |= _variable(line.strip(), f"--env-file {file} line {number}")
    for text in given:
        values |= _variable(text, "--env")
    return values


def _variable(text: str, where: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not name or any(letter.isspace() for letter in name) or "\0" in text:
        raise UserError(f'{where} "{text:.60}" is no variable; write NAME=VALUE')
    if not equals and name not in os.environ:
        click.echo(f"aliquot: {where} {name:.60} is not set here; the command runs without it", err=True)
        return {}
    return {name: value if equals else os.environ[name]}

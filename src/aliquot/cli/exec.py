"""`aliquot exec`: another program in the place of one that runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from aliquot.cli.calling import full_name
from aliquot.cli.completion import sharepod_names


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
    """
    from aliquot.standalone.client import EngineConnection
    from aliquot.standalone.paths import RuntimeDir, runtime_dir
    from aliquot.standalone.runner import original_environment, run_command
    from aliquot.standalone.wire import ExecCall

    command = command[1:] if command[0] == "--" else command
    with EngineConnection(RuntimeDir(runtime_dir())) as connection:
        place = connection.ask(ExecCall(full_name(name, namespace), name, container))
        env = place.env or original_environment()
        if place.env and "TERM" in os.environ:
            env = env | {"TERM": os.environ["TERM"]}
        sys.stderr.flush()
        return run_command(
            place, command, env, mode="auto", verbose=verbose, engine_gone=connection.wait_until_lost,
            cwd=Path(place.cwd) if place.cwd else None,
        )  # fmt: skip

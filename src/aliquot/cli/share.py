"""`aliquot share`: parts of GPUs by name, for the containers of docker and podman."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import click

from aliquot.cli.calling import ask_engine
from aliquot.cli.lazy import WholeSentences
from aliquot.cli.options import output_option, read_request, request_options

READ_BY_ALL: Final = "/etc/cdi"
"""Where docker and podman look for devices without being told."""


@click.group(cls=WholeSentences)
def share() -> None:
    """Make parts of GPUs for docker and podman, by name; list, delete.

    A share is a tenant like that of `aliquot run`, without a program of its own: a container that is given the device
    aliquot.dev/share=NAME has it. A second container with the same device shares the share. Of an account that uses
    the machine's engine the device is aliquot.dev/share=NAME.ACCOUNT.

    Example, a third of a GPU for containers, as aliquot.dev/share=train:
      aliquot share create train --gpu-request .3 --gpu-mem 4Gi
    """


@share.command()
@click.argument("name")
@request_options
@click.option("--rm", is_flag=True, help="End the share with its container. [default: it stays until it is deleted]")
def create(name: str, rm: bool, **wanted: Any) -> None:
    """Make a share, and print how a container gets it.

    An engine is started when none is up, and ends with its last run and share.
    """
    from aliquot.standalone.client import first_answer
    from aliquot.standalone.paths import RuntimeDir, engine_dir, runtime_dir
    from aliquot.standalone.wire import ShareCall

    call = ShareCall(name, read_request(wanted), wanted["cpu_bind"] or 0, rm)
    emulate: str | None = wanted["emulate"]
    runtime = RuntimeDir(runtime_dir() if emulate else engine_dir())
    connection, made = first_answer(runtime, call, emulate=emulate)
    connection.close()
    facts = made.shares[0]
    click.echo(f"share/{facts.tenant.name} created on GPU {','.join(map(str, facts.tenant.gpus))}")
    folder = str(Path(facts.spec).parent)
    if folder == READ_BY_ALL:
        click.echo(f"docker run --device {facts.device} IMAGE")
        click.echo(f"podman run --device {facts.device} IMAGE")
    else:
        click.echo(f"podman --cdi-spec-dir {shlex.quote(folder)} run --device {facts.device} IMAGE")
        click.echo(f"podman run $(aliquot share options {name}) IMAGE  # before podman 5.5")


@share.command("list")
@output_option
def list_(output: str) -> None:
    """List the shares of the engine that is up, and the containers that have them."""
    import msgspec

    from aliquot.cli.forms import show
    from aliquot.cli.tables import aligned, columns, ended_lines, tenant_table
    from aliquot.standalone.wire import SharesCall

    shares = ask_engine(SharesCall()).shares
    tenants = [facts.tenant for facts in shares]
    if shares or output == "json":
        lines = [*aligned(tenant_table(tenants), width=columns()), *ended_lines(tenants, columns())]
        show(output, msgspec.to_builtins(shares), lambda: lines)
    else:
        click.echo("no shares; make one: aliquot share create NAME --gpu-request .3", err=True)


@share.command()
@click.argument("name")
def options(name: str) -> None:
    """Print the options of docker run and podman run that give a share without its device.

    For what does not read its CDI file: podman before 5.5 of an account that is not root, docker without CDI.
    """
    from aliquot.standalone.wire import SharesCall

    click.echo(" ".join(ask_engine(SharesCall(name)).shares[0].options))


@share.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="End the processes that have it.")
def delete(name: str, force: bool) -> None:
    """Delete a share; one that a container has is refused without --force."""
    from aliquot.standalone.wire import EndShareCall

    for line in ask_engine(EndShareCall(name, force)).lines:
        click.echo(line)

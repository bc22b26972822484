"""`aliquot park, unpark, move, yield, acquire`: GPU memory of what is idle, for others in the meantime."""

from __future__ import annotations

from functools import partial

import click
import msgspec

from aliquot.cli.calling import ask_engine, full_name, short_name
from aliquot.cli.completion import sharepod_names
from aliquot.cli.forms import show
from aliquot.cli.options import Span, output_option
from aliquot.model.quantities import format_mib

_NAMESPACE = click.option("-n", "--namespace", default="", metavar="NAME", help="Its namespace. [default: default]")


@click.command()
@click.argument("name", shell_complete=sharepod_names)
@_NAMESPACE
@output_option
def park(name: str, namespace: str, output: str) -> None:
    """Take the GPU memory of an idle SharePod, or of a run by its name, into the host's memory.

    Its programs go on, and their next call that needs the GPU brings the memory back, once there is room. The time
    that it asked for stays its own.

    Example, free the memory of an idle notebook:
      aliquot park research/notebook
    """
    _move(name, namespace, output, back=False)


@click.command()
@click.argument("name", shell_complete=sharepod_names)
@_NAMESPACE
@output_option
def unpark(name: str, namespace: str, output: str) -> None:
    """Bring the GPU memory of a parked SharePod or run back, as its next call of the GPU would.

    Example, and have it back before its next cell runs:
      aliquot unpark research/notebook
    """
    _move(name, namespace, output, back=True)


@click.command()
@click.argument("name", shell_complete=sharepod_names)
@click.option("--gpu", required=True, metavar="UUID|INDEX", help="The GPU to take it to; of the same model.")
@_NAMESPACE
@output_option
def move(name: str, gpu: str, namespace: str, output: str) -> None:
    """Take a SharePod, or a run by its name, to another GPU while it runs.

    It must be movable (aliquot run --movable). Its programs wait while its memory is copied, and go on there.

    Example, empty GPU 0 for a program that needs all of it:
      aliquot move research/notebook --gpu 1
    """
    _move(name, namespace, output, gpu=gpu)


@click.command(name="yield")
def yield_() -> None:
    """Say that the run or SharePod this is called in needs no GPU until further notice.

    Nothing is moved while all fit. Where others need its memory it is parked at once, before those that are idle.

    Example, let others have the memory while data is prepared:
      aliquot yield
    """
    from aliquot.standalone.phases import say

    click.echo(f"{say(needs=False, on_wait=partial(click.echo, err=True))} has yielded its GPU")


@click.command()
@click.option("--timeout", "timeout_s", type=Span(), metavar="TIME",
              help="Fail after this time: 30s, 10m. [default: wait until it is there]")  # fmt: skip
def acquire(timeout_s: float | None) -> None:
    """Say that the run or SharePod this is called in needs its GPU, and wait until its memory is there.

    Example, and have it back for the next epoch:
      aliquot acquire
    """
    from aliquot.standalone.phases import say

    said = set[str]()

    def on_wait(reason: str) -> None:
        if reason not in said:
            said.add(reason)
            click.echo(reason, err=True)

    click.echo(f"{say(needs=True, timeout_s=timeout_s, on_wait=on_wait)} has its GPU")


def _move(name: str, namespace: str, output: str, *, back: bool = False, gpu: str = "") -> None:
    from aliquot.standalone.wire import ParkCall

    full = full_name(name, namespace)
    moved = ask_engine(ParkCall(full, full if namespace else name, back, gpu))
    shown = short_name(moved.name) if moved.resource == "sharepod" else moved.name
    done = f"moved to GPU {moved.gpu}" if gpu else "is back" if back else "parked"
    show(
        output,
        msgspec.to_builtins(moved),
        lambda: iter([f"{moved.resource}/{shown} {done}: {format_mib(moved.memory_mib)}"]),
    )

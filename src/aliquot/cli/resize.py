"""`aliquot resize`: another share of a GPU for what runs already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from aliquot.cli.calling import ask_engine, full_name, short_name
from aliquot.cli.completion import sharepod_names
from aliquot.cli.forms import show
from aliquot.cli.options import Milli, memory_limit_option, memory_option, output_option
from aliquot.cli.tables import size_change
from aliquot.model.errors import UserError
from aliquot.model.quantities import Memory, format_mib

if TYPE_CHECKING:
    from aliquot.standalone.wire import Resized


@click.command()
@click.argument("name", shell_complete=sharepod_names)
@click.option("--gpu-request", type=Milli(), help="Guaranteed fraction of its GPU, below 1. [default: as it is]")
@click.option("--gpu-limit", type=Milli(), help="Maximum while others are idle. [default: as it is]")
@memory_option("GPU memory: 4Gi, 4096 (MiB), 25%. [default: as it is]")
@memory_limit_option("Beyond --gpu-mem memory is lent up to this; none, if it is the same. [default: as it is]")
@click.option("--dry-run", is_flag=True, help="Say whether it fits, and change nothing.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Its namespace. [default: default]")
@output_option
def resize(
    name: str, gpu_request: int | None, gpu_limit: int | None, gpu_mem: Memory | None,
    gpu_mem_limit: Memory | None, dry_run: bool, namespace: str, output: str,
) -> None:  # fmt: skip
    """Change the share of a SharePod, or of a run by its name, while it runs.

    A larger share is decided like a new request on the same GPU, and refused with what would fit. A smaller one is free
    for others at once, its memory as the program frees it: no allocation that was granted is taken back.

    Example, half a GPU and 6 GiB from now on, if there is room:
      aliquot resize research/notebook --gpu-request .5 --gpu-mem 6Gi
    """
    from aliquot.standalone.wire import ResizeCall

    if gpu_request is None and gpu_limit is None and gpu_mem is None and gpu_mem_limit is None:
        raise UserError("resize needs a new size: --gpu-request, --gpu-limit, --gpu-mem or --gpu-mem-limit")
    full = full_name(name, namespace)
    call = ResizeCall(full, full if namespace else name, gpu_request, gpu_limit, gpu_mem, gpu_mem_limit, dry_run)
    resized = ask_engine(call)
    show(output, msgspec.to_builtins(resized), lambda: _told(resized))


def _told(resized: Resized) -> Iterator[str]:
    done = "fits (dry run)" if resized.dry_run else "resized"
    pending = f"; {format_mib(resized.pending_mib)} more until it is freed" if resized.pending_mib else ""
    before, after = resized.max_memory_mib
    if before or after:
        before = before or resized.before.memory_mib
        pending = f", lent up to {format_mib(before)} -> {format_mib(after)}{pending}"
    if resized.lent_mib > max(0, after - resized.after.memory_mib):
        pending += f"; {format_mib(resized.lent_mib)} are lent until they are given or called back"
    name = short_name(resized.name) if resized.resource == "sharepod" else resized.name
    yield f"{resized.resource}/{name} {done}: {size_change(resized.before, resized.after)}{pending}"

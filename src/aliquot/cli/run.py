"""`aliquot run`: one command with a part of a GPU."""

from __future__ import annotations

import os
import sys

import click

from aliquot.cli.options import Milli, Size, device_options, emulate_option, enforce_option, wake_option
from aliquot.driver.cores import nearest_cores
from aliquot.driver.injection import MODES, Mode
from aliquot.model.errors import UserError
from aliquot.model.ids import tenant_name
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import Enforce, GpuRequest, checked


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option(
    "--gpu-request", type=Milli(), default="1", show_default=True, help="Guaranteed part of a GPU: 0.3, 300m."
)
@click.option("--gpu-limit", type=Milli(), help="Maximum while others are idle. [default: the whole GPU]")
@click.option("--gpu-mem", type=Size(), help="GPU memory: 4Gi, 4096 (MiB), 25%. [default: the request's fraction]")
@click.option("--gpu", default="", metavar="UUID|INDEX", help="Which GPU. [default: chosen by the placement policy]")
@device_options
@enforce_option
@wake_option
@click.option("--cpu-bind", type=click.IntRange(1), metavar="N", help="Run on the N CPU cores nearest to the GPU.")
@emulate_option
@click.option("--inject", type=click.Choice(MODES), default="auto", show_default=True, help="How CUDA is intercepted.")
@click.option("--name", help="The tenant's name. [default: run-PID]")
@click.option("-v", "--verbose", is_flag=True, help="Report progress on stderr.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND...")
def run(
    gpu_request: int,
    gpu_limit: int | None,
    gpu_mem: Memory | None,
    gpu: str,
    gpu_model: str,
    mixed_models: bool,
    gpu_id: str,
    affinity: str,
    anti_affinity: str,
    exclusion: str,
    enforce: Enforce | None,
    wake: int | None,
    cpu_bind: int | None,
    emulate: str | None,
    inject: Mode,
    name: str | None,
    verbose: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND with a part of a GPU; ends as the command ends.

    An engine is started when none is up, and ends with its last run.
    """
    from aliquot.standalone.client import lease
    from aliquot.standalone.machine import check_spec
    from aliquot.standalone.paths import RuntimeDir, runtime_dir
    from aliquot.standalone.runner import original_environment, run_command
    from aliquot.standalone.wire import Ask, Call

    checked(
        GpuRequest(gpu_request, gpu_limit, gpu_mem, enforce=enforce, wake_us=wake or 0),
        request_name="--gpu-request", limit_name="--gpu-limit", enforce_name="--enforce", wake_name="--wake",
    )  # fmt: skip
    if enforce == "never" and cpu_bind:
        raise UserError("--cpu-bind is done by the library that --enforce never leaves out; write --enforce memory")
    who = tenant_name(name if name is not None else f"run-{os.getpid()}")
    if emulate:
        check_spec(emulate)
    if cpu_bind:
        nearest_cores(cpu_bind)  # refused here, before an engine is started for it
    ask = Ask(
        gpu_request, gpu_limit, gpu=gpu, cpu_bind=cpu_bind or 0, model=gpu_model, gpu_id=gpu_id, affinity=affinity,
        anti_affinity=anti_affinity, exclusion=exclusion, enforce=enforce, mixed=mixed_models, wake_us=wake or 0,
    ).with_memory(gpu_mem)  # fmt: skip
    call = Call("lease", name=who, ask=ask, pid=os.getpid())
    connection, place = lease(RuntimeDir(runtime_dir()), call, emulate=emulate)
    try:
        if verbose:
            limit = gpu_limit if gpu_limit is not None else MILLI
            click.echo(f"aliquot: tenant {place.name} on {place.visible_devices}, limit {limit / MILLI:.2f}", err=True)
        sys.stderr.flush()
        status = run_command(
            place, command, original_environment(), mode=inject, verbose=verbose, engine_gone=connection.wait_until_lost
        )
        connection.say_ended()
        return status
    finally:
        connection.close()

"""`aliquot explain`: why a request waits, what would make it fit, or why it is placed where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.calling import ask_engine, read_text
from aliquot.cli.completion import sharepod_names
from aliquot.cli.forms import show
from aliquot.cli.options import (
    Milli,
    device_options,
    emulate_option,
    gpu_request,
    memory_option,
    output_option,
    wake_option,
)
from aliquot.model.errors import UserError

if TYPE_CHECKING:
    from aliquot.model.requests import GpuRequest


@click.command()
@click.argument("name", required=False, default="", shell_complete=sharepod_names)
@click.option("-f", "--filename", "file", type=click.Path(), help="The SharePods of this file; - is stdin.")
@click.option("--gpu-request", type=Milli(), help="A request that you think of: 0.3, 30%, 300m, 2.5.")
@click.option("--gpu-limit", type=Milli(), help="Its limit.")
@memory_option("Its GPU memory: 4Gi, 4096 (MiB), 25%.")
@click.option("--gpu", default="", metavar="UUID|INDEX[,...]", help="Only this GPU, or one of these: 0,2.")
@device_options
@wake_option
@emulate_option
@click.option(
    "--books", "ledger_file", type=click.Path(), help="A cluster whose ledger was saved as JSON, in place of an engine."
)
@click.option("--policy", default="", metavar="NAME", help="With these two: how GPUs are chosen. [default: aliquot]")
@output_option
def explain(
    name: str,
    file: str | None,
    emulate: str | None,
    ledger_file: str | None,
    policy: str,
    output: str,
    **wanted: Any,
) -> None:
    """Explain a SharePod or tenant by NAME, the SharePods of a file, or a request that you think of.

    Without any of them: every SharePod and run that waits. The running engine answers; with --emulate an empty machine
    is used, with --books a saved cluster.

    Example, why a SharePod waits:
      aliquot explain research/notebook
    """
    if sum((bool(name), file is not None, wanted["gpu_request"] is not None)) > 1:
        raise UserError("explain one thing at a time: a name, a file with -f, or a request with --gpu-request")
    extra = next((option for option, value in wanted.items() if value), "")
    if extra and wanted["gpu_request"] is None:
        raise UserError(f"--{extra.replace('_', '-')} is of a request that you think of: add --gpu-request")
    if emulate and ledger_file:
        raise UserError("explain on one thing at a time: an emulated machine with --emulate, or a cluster with --books")
    if policy and not emulate and not ledger_file:
        raise UserError(f"--policy {policy}: a running engine has its own policy; add --emulate or --books")
    requests: list[tuple[str, GpuRequest]] | None = None
    if wanted["gpu_request"] is not None:
        requests = [("the request", gpu_request(wanted))]
    elif file is not None:
        from aliquot.kube.manifest import read_sharepods

        requests = [(pod.full_name, pod.request) for pod in read_sharepods(read_text(file), file)]
    if emulate or ledger_file:
        from aliquot.standalone.explaining import explained, explained_on
        from aliquot.standalone.machine import imagined_ledger, saved_cluster

        if not requests:
            where = f"--emulate {emulate} is an empty machine" if emulate else "--books has no waiting request"
            raise UserError(f"{where}; give a request (--gpu-request 0.5) or a file (-f)")
        if ledger_file:
            decider = saved_cluster(read_text(ledger_file), f"--books {ledger_file}", policy)
            explanations = [explained_on(decider, who, one) for who, one in requests]
        else:
            machine = imagined_ledger(emulate or "", policy)
            explanations = [explained(machine, who, one) for who, one in requests]
    else:
        from aliquot.standalone.wire import ExplainCall

        subject = name.removeprefix("sharepod/")
        calls = [ExplainCall(subject)] if requests is None else [ExplainCall(who, one) for who, one in requests]
        explanations = [one for call in calls for one in ask_engine(call).explanations]
    lines = [line for one in explanations for line in one.lines] or ["nothing waits"]
    show(output, [{"name": one.name, **one.facts} for one in explanations], lambda: lines)

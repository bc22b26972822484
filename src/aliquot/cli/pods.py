"""`aliquot apply, get, describe, delete, logs`: SharePods of the engine that is up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aliquot.cli.completion import sharepod_names
from aliquot.cli.options import output_option
from aliquot.model.errors import UserError
from aliquot.model.quantities import format_mib, format_milli

if TYPE_CHECKING:
    from aliquot.standalone.wire import Call, GpuFacts, PodFacts, Reply


ENFORCED: Final = {
    "never": "never (whole GPUs, the bare driver)",
    "memory": "memory (whole GPUs, no limit on time)",
    "all": "all",
}


class UnreadableFile(UserError):
    """The file that was named cannot be read."""


def read_text(file: str) -> str:
    """The text of a file; `-` is stdin.

    Raises:
        UnreadableFile: it does not exist, may not be read, or is not text.
    """
    if file == "-" and sys.stdin is None:
        raise UnreadableFile("- cannot be read: standard input is closed")
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except UnicodeDecodeError:
        raise UnreadableFile(f"{file} is not readable as YAML: it is not UTF-8 text") from None
    except OSError as error:
        raise UnreadableFile(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _ask(call: Call) -> Reply:
    from aliquot.standalone.client import ask
    from aliquot.standalone.paths import RuntimeDir, runtime_dir

    return ask(RuntimeDir(runtime_dir()), call)


def _call(verb: str, **fields: Any) -> Call:
    from aliquot.standalone.wire import Call

    return Call(verb, **fields)


@click.command()
@click.option("-f", "--filename", "file", required=True, type=click.Path(), help="YAML with SharePods; - is stdin.")
@click.option("--restart", is_flag=True, help="Restart changed SharePods that run.")
def apply(file: str, restart: bool) -> None:
    """Create or update SharePods from a file.

    New SharePods start, unchanged ones stay. A changed SharePod that runs has to be restarted: it is refused, with what
    would be lost, unless --restart is given. Its logs and events are kept.
    """
    from aliquot.standalone.pods import read_documents

    text = read_text(file)
    read_documents(text, file)  # the user's mistakes need no engine to be found
    for line in _ask(_call("apply", text=text, restart=restart)).lines or []:
        click.echo(line)


@click.command()
@click.argument("what", type=click.Choice(["sharepods", "sharepod", "tenants", "gpus"]), default="sharepods")
@click.argument("name", required=False, default="")
@output_option
def get(what: str, name: str, output: str) -> None:
    """List sharepods, tenants or gpus."""
    if what.startswith("sharepod"):
        pods = _ask(_call("pods", name=name)).pods or []
        _print(output, pods, lambda: _pod_table(pods))
    elif what == "tenants":
        tenants = _ask(_call("tenants")).tenants or []
        _print(output, tenants, lambda: _tenant_table(tenants))
    else:
        gpus = _ask(_call("gpus")).gpus or []
        _print(output, gpus, lambda: _gpu_table(gpus))


@click.command()
@click.argument("name", shell_complete=sharepod_names)
@output_option
def describe(name: str, output: str) -> None:
    """Show details of one SharePod."""
    pod = (_ask(_call("pods", name=name.removeprefix("sharepod/"))).pods or [])[0]
    if output == "json":
        click.echo(_json(pod))
        return
    rows = [
        ("Name", pod.name),
        ("Phase", pod.phase + (f" ({pod.reason or pod.message})" if pod.reason or pod.message else "")),
        *(("GPU", f"{gpu}  {uuid}") for gpu, uuid in zip(pod.gpus, pod.gpu_uuids, strict=True)),
        *([] if pod.gpus else [("GPU", "none yet")]),
        ("Request", format_milli(pod.request_milli)),
        ("Limit", format_milli(pod.limit_milli)),
        ("Memory", _memory(pod)),
        ("Enforced", ENFORCED[pod.enforce]),
        *([("Wakes in", _wake(pod))] if pod.wake_us else []),
        ("Age", f"{pod.age_s:.0f} s"),
    ]
    for label, value in rows:
        click.echo(f"{label + ':':<12}{value}")
    click.echo("Containers:")
    for c in pod.containers:
        last = "" if c["exit_status"] is None else f", last ended with {c['exit_status']}"
        pid = f", pid {c['pid']}" if c["pid"] else ""
        reason = f" ({c['reason']})" if c["reason"] else ""
        click.echo(f"  {c['name']}: {c['state']}{reason}{pid}, {c['restarts']} restarts{last}")
    click.echo("Events:")
    for event in pod.events:
        click.echo(f"  {event}")


def _wake(pod: PodFacts) -> str:
    """Its promise, and what was measured while it runs."""
    from aliquot.arbiter.client import ArbiterClient, ArbiterError
    from aliquot.model.wake import format_wake
    from aliquot.standalone.paths import runtime_dir

    try:
        with ArbiterClient(runtime_dir(), timeout_s=2.0) as client:
            status = client.status()
    except (ArbiterError, OSError):
        return format_wake(pod.wake_us)
    found = [t.wake.text for gpu in status.gpus for t in gpu.tenants if t.name == pod.name and t.wake is not None]
    return found[0] if found else format_wake(pod.wake_us)


@click.command()
@click.argument("name", required=False, default="", shell_complete=sharepod_names)
@click.option("-f", "--filename", "file", type=click.Path(), help="End the SharePods of this file.")
def delete(name: str, file: str | None) -> None:
    """End a SharePod and forget it with its logs."""
    from aliquot.standalone.pods import read_documents

    if bool(name) == bool(file):
        raise UserError("name one SharePod, or a file with -f: aliquot delete NAME")
    names = [name.removeprefix("sharepod/")]
    if file is not None:
        names = [pod.full_name for pod in read_documents(read_text(file), file)]
    for each in names:
        for line in _ask(_call("delete", name=each)).lines or []:
            click.echo(line)


@click.command()
@click.argument("name", shell_complete=sharepod_names)
@click.option("-c", "--container", default="", help="Which container. [default: the first]")
@click.option("-f", "--follow", is_flag=True, help="Follow the output.")
def logs(name: str, container: str, follow: bool) -> None:
    """Show the output of a SharePod."""
    from aliquot.standalone.client import EngineConnection
    from aliquot.standalone.paths import RuntimeDir, runtime_dir

    call = _call("logs", name=name.removeprefix("sharepod/"), container=container, follow=follow)
    try:
        with EngineConnection(RuntimeDir(runtime_dir())) as connection:
            for reply in connection.replies(call):
                for piece in reply.lines or []:
                    click.echo(piece, nl=False)
    except KeyboardInterrupt:
        return


def _pod_table(pods: list[PodFacts]) -> list[list[str]]:
    table = [["NAME", "STATUS", "GPU", "REQUEST", "LIMIT", "MEMORY", "RESTARTS", "AGE"]]
    for pod in pods:
        table.append(
            [
                pod.name,
                pod.reason or pod.phase,
                ",".join(map(str, pod.gpus)) or "-",
                format_milli(pod.request_milli),
                format_milli(pod.limit_milli),
                _memory(pod),
                str(pod.restarts),
                f"{pod.age_s:.0f} s",
            ]
        )
    return table


def _memory(pod: PodFacts) -> str:
    """What it has, or what it requested while it waits."""
    return format_mib(pod.memory_mib) if pod.gpus else pod.requested_memory or "-"


def _tenant_table(tenants: list[dict[str, Any]]) -> list[list[str]]:
    table = [["TENANT", "GPU", "REQUEST", "LIMIT", "MEMORY", "INJECTION"]]
    for tenant in tenants:
        for piece in tenant["slices"]:
            shares = [format_milli(piece["request_milli"]), format_milli(piece["limit_milli"])]
            memory = format_mib(piece["memory_mib"])
            table.append([tenant["name"], piece["gpu"], *shares, memory, tenant["injection"] or "-"])
    return table


def _gpu_table(gpus: list[GpuFacts]) -> list[list[str]]:
    """Each GPU with its class of links to the others, and under it its tenants."""
    table = [["GPU", "MODEL", "SHARES", "MEMORY", "NEAREST", "LABELS", "UUID"]]
    for gpu in gpus:
        held = f"{format_milli(1000 - gpu.free_milli)} of 1.00"
        memory = f"{(gpu.memory_mib - gpu.free_mib) / 1024:.1f} / {format_mib(gpu.memory_mib)}"
        labels = " ".join(f"{kind}={value}" for kind, value in gpu.labels.items()) or "-"
        table.append([str(gpu.index), gpu.model, held, memory, _nearest(gpu), labels, gpu.uuid])
        for tenant in gpu.tenants:
            size = format_mib(tenant["memory_mib"])
            share = format_milli(tenant["request_milli"])
            table.append(["", f"  {tenant['name']}", f"  {share}", f"  {size}", "", "", ""])
    return table


def _nearest(gpu: GpuFacts) -> str:
    """The class of its best link and the GPUs at its end, as in `NV2 1,3`."""
    from aliquot.topology import link_cost

    others = [(link_cost(label), label, g) for g, label in enumerate(gpu.links) if label != "X"]
    if not others:
        return "-"
    best = min(others)[1]
    return f"{best} {','.join(str(g) for _, label, g in others if label == best)}"


def _print(output: str, facts: Any, table: Any) -> None:
    if output == "json":
        click.echo(_json(facts))
        return
    rows = table()
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _json(facts: Any) -> str:
    import msgspec

    return json.dumps(msgspec.to_builtins(facts), indent=2)

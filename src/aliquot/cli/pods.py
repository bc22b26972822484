"""`aliquot apply, describe, delete`: SharePods of the engine that is up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click
import msgspec

from aliquot.cli.calling import arbiter_status, ask_engine, full_name, read_text, selected
from aliquot.cli.completion import sharepod_names
from aliquot.cli.forms import show
from aliquot.cli.options import output_option
from aliquot.cli.tables import memory_of
from aliquot.model.ages import format_age
from aliquot.model.errors import UserError
from aliquot.model.quantities import format_milli

if TYPE_CHECKING:
    from aliquot.standalone.wire import PodFacts


ENFORCED: Final = {
    "never": "never (whole GPUs, the bare driver)",
    "memory": "memory (whole GPUs, no limit on time)",
    "all": "all",
}


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[FILE]...")
@click.option("-f", "--filename", "files", multiple=True, type=click.Path(), help="YAML with SharePods; - is stdin.")
@click.option("--restart", is_flag=True, help="Restart changed SharePods that run.")
def apply(paths: tuple[str, ...], files: tuple[str, ...], restart: bool) -> None:
    """Create or update SharePods from files, with -f or without.

    New SharePods start, unchanged ones stay. A changed SharePod that runs has to be restarted: it is refused, with what
    would be lost, unless --restart is given. Its logs and events are kept.
    """
    from aliquot.standalone.documents import read_documents
    from aliquot.standalone.wire import ApplyCall

    if not (given := [*files, *paths]):
        raise UserError("apply needs a file: aliquot apply -f FILE; - is stdin")
    texts = [(file, read_text(file)) for file in given]
    for file, text in texts:
        read_documents(text, file)  # the user's mistakes need no engine to be found
    for _, text in texts:
        for line in ask_engine(ApplyCall(text, restart)).lines:
            click.echo(line)


@click.command()
@click.argument("name", shell_complete=sharepod_names)
@click.option("-n", "--namespace", default="", metavar="NAME", help="Its namespace. [default: default]")
@output_option
def describe(name: str, namespace: str, output: str) -> None:
    """Show details of one SharePod."""
    from aliquot.standalone.wire import PodsCall

    pod = ask_engine(PodsCall(full_name(name, namespace))).pods[0]
    show(output, msgspec.to_builtins(pod), lambda: _description(pod))


def _description(pod: PodFacts) -> Iterator[str]:
    labels = ", ".join(f"{key}={value}" for key, value in pod.labels.items())
    rows = [
        ("Name", pod.name),
        *([("Labels", labels)] if labels else []),
        ("Phase", pod.phase + (f" ({pod.reason or pod.message})" if pod.reason or pod.message else "")),
        *(("GPU", f"{gpu}  {uuid}") for gpu, uuid in zip(pod.gpus, pod.gpu_uuids, strict=True)),
        *([] if pod.gpus else [("GPU", "none yet")]),
        ("Request", format_milli(pod.request_milli)),
        ("Limit", format_milli(pod.limit_milli)),
        ("Memory", memory_of(pod)),
        ("Enforced", ENFORCED[pod.enforce]),
        *([("Wakes in", _wake(pod))] if pod.wake_us else []),
        ("Age", format_age(pod.age_s)),
    ]
    for label, value in rows:
        yield f"{label + ':':<12}{value}"
    yield "Containers:"
    for c in pod.containers:
        last = "" if c.exit_status is None else f", last ended with {c.exit_status}"
        pid = f", pid {c.pid}" if c.pid else ""
        reason = f" ({c.reason})" if c.reason else ""
        yield f"  {c.name}: {c.state}{reason}{pid}, {c.restarts} restarts{last}"
    yield "Events:"
    for event in pod.events:
        yield f"  {event}"


def _wake(pod: PodFacts) -> str:
    """Its promise, and what was measured while it runs."""
    from aliquot.model.wake import format_wake

    status = arbiter_status()
    tenants = [tenant for gpu in status.gpus for tenant in gpu.tenants] if status else []
    found = [tenant.wake.text for tenant in tenants if tenant.name == pod.name and tenant.wake is not None]
    return found[0] if found else format_wake(pod.wake_us)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=sharepod_names)
@click.option("-f", "--filename", "files", multiple=True, type=click.Path(), help="End the SharePods of this file.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="End those with these labels: app=web,!debug.")
@click.option("--all", "everything", is_flag=True, help="End all of the namespace.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Their namespace. [default: default]")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="With --all or -l: in every namespace.")
def delete(
    names: tuple[str, ...], files: tuple[str, ...], selector: str, everything: bool, namespace: str, everywhere: bool
) -> None:
    """End SharePods and forget them with their logs: by name, of a file, by labels, or all of a namespace."""
    ways = [bool(names), bool(files), bool(selector), everything]
    if sum(ways) != 1:
        raise UserError("delete takes names, files with -f, labels with -l, or --all; give one of them")
    if everywhere and (namespace or not (selector or everything)):
        raise UserError("-A goes with --all or -l, and without -n")
    if names:
        words = [w for w in names if w not in ("sharepod", "sharepods", "pod", "pods", "sp", "po")] or list(names)
        ended = [full_name(name, namespace) for name in words]
    elif files:
        ended = _of_files(files)
    else:
        ended = selected(selector, "" if everywhere else namespace or "default")
    from aliquot.standalone.wire import DeleteCall

    for each in ended:
        for line in ask_engine(DeleteCall(each)).lines:
            click.echo(line)
    if not ended:
        click.echo("no sharepods to delete" + ("" if everywhere else f" in namespace {namespace or 'default'}"))


def _of_files(files: tuple[str, ...]) -> list[str]:
    from aliquot.standalone.documents import read_documents

    return [pod.full_name for file in files for pod in read_documents(read_text(file), file)]

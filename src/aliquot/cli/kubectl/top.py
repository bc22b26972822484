"""`kubectl aliquot top`: the use of the cluster's GPUs, live on a terminal, otherwise as one table."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

import click

from aliquot.cli.forms import show
from aliquot.cli.kubectl import facts
from aliquot.cli.kubectl.options import agent_port_option, form_option, target_options
from aliquot.cli.kubectl.scene import Target, read_scene
from aliquot.cli.options import Amount
from aliquot.cli.tables import aligned
from aliquot.cli.top import on_screen, takes_keys
from aliquot.model.quantities import MILLI, format_mib, format_milli

BAR: Final = 20
MEND: Final = "kubectl aliquot doctor says what to do"


@click.command()
@agent_port_option
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--interval", "interval_s", type=Amount(86_400, least=0.2), default=2.0, show_default=True,
              help="Seconds between refreshes on a terminal, 0.2 at least.")  # fmt: skip
@target_options
@form_option
@click.pass_context
def top(context: click.Context, agent_port: int, once: bool, interval_s: float, target: Target, form: str) -> None:
    """Show the pods' shares of the GPUs and their use, by node.

    On a terminal it refreshes, with keys and history, as `aliquot top` does; elsewhere, with --once or -o it is printed
    once. Every namespace is shown unless -n names one. Shares come from the pods' plans; use is queried from
    the nodes' agents, and is "-" where none answers, with the reason under the table.
    """
    source = context.get_parameter_source("form")
    asked = source is not None and source is not click.core.ParameterSource.DEFAULT
    if not (once or asked) and on_screen() and takes_keys():
        _application(target, agent_port, interval_s)
    _print(target, agent_port, form)


def _application(target: Target, agent_port: int, interval_s: float) -> None:
    from aliquot.cli.kubectl.top_source import WatchedCluster
    from aliquot.cli.top_app import TopApp

    with WatchedCluster(target, agent_port) as source:
        source()  # errors are printed before the screen changes
        status = TopApp(source, interval_s=interval_s).run()
    sys.exit(status or 0)


def _print(target: Target, agent_port: int, form: str) -> None:
    from aliquot.cli.kubectl.usage import read_usage

    scene = target.run(read_scene(target))
    used = target.run(read_usage(target, scene, agent_port))
    told = facts.gpus(scene)
    only = "" if target.everywhere else target.namespace
    for gpu in told:
        for one in gpu["residents"]:
            now = used.of(gpu["node"], gpu["uuid"], one["tenant"])
            one |= {
                "usage": None if now is None else now.usage_milli / MILLI,
                "memory_used_mib": None if now is None else now.memory_used_mib,
            }
    shown = [
        {**g, "residents": mine}
        for g in told
        if (mine := [r for r in g["residents"] if not only or r["tenant"].startswith(f"{only}/")]) or not only
    ]
    show(form, shown, lambda: [*lines(shown, told), *(["", *used.unknown(), MEND] if used.silent else [])])


def lines(shown: list[dict[str, Any]], everything: list[dict[str, Any]]) -> Iterable[str]:
    """The table: nodes, their GPUs, the tenants of each; GPUs without tenants in one line."""
    promised = sum(MILLI - g["free_milli"] for g in everything)
    idle = sum(g["free_milli"] == MILLI for g in everything)
    yield f"{len(everything)} GPUs, {format_milli(promised)} of them promised, {idle} wholly free"
    for node, gpus in groupby(shown, key=lambda g: str(g["node"])):
        yield ""
        yield from _node_lines(node, list(gpus))


def _node_lines(node: str, gpus: list[dict[str, Any]]) -> Iterable[str]:
    models = ", ".join(sorted({g["model"] for g in gpus}))
    yield f"{node}  {models}"
    for g in gpus:
        if g["residents"]:
            compute, memory = facts.reserved(g)
            yield f"GPU {g['index']}  {compute}  memory {memory}"
            head = ["  TENANT", "REQUEST", "LIMIT", "OF THE GPU".ljust(BAR), "USAGE", "MEMORY", "USED"]
            yield from aligned([head, *map(_row, g["residents"])], right=(1, 2, 4, 5, 6))
    free = [str(g["index"]) for g in gpus if not g["residents"]]
    if free:
        yield f"GPU {', '.join(free)}  no tenants"


def _row(r: dict[str, Any]) -> list[str]:
    request, limit = r["request_milli"], r["limit_milli"]
    usage = "-" if r["usage"] is None else f"{r['usage']:.2f}"
    used = "-" if r["memory_used_mib"] is None else format_mib(r["memory_used_mib"])
    shares = [format_milli(request), format_milli(limit), _bar(request, limit)]
    return [f"  {r['tenant']}", *shares, usage, format_mib(r["memory_mib"]), used]


def _bar(request_milli: int, limit_milli: int) -> str:
    """Full blocks up to the request, light ones up to the limit."""
    full, most = round(BAR * request_milli / MILLI), round(BAR * limit_milli / MILLI)
    return ("█" * full + "░" * (most - full)).ljust(BAR)

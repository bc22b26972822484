"""`kubectl aliquot top`: the use of the cluster's GPUs, live on a terminal, otherwise as one table."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

import click

from aliquot.cli.forms import show
from aliquot.cli.kubectl.scene import Target, agent_port_option, form_option, name_of, read_scene, target_options
from aliquot.cli.options import Amount
from aliquot.cli.tables import aligned, columns, reserved, wrapped
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
    """Show the shares of pods and claims of the GPUs and their use, by node.

    On a terminal it refreshes, with keys and history, as `aliquot top` does; elsewhere, with --once or -o it is printed
    once. Every namespace is shown unless -n names one. Shares come from the pods' plans and from ResourceClaims; use is
    queried from the nodes' agents, and is "-" where none answers, with the reason under the table.

    Example, the GPUs that one namespace uses, once:
      kubectl aliquot top -n research --once
    """
    source = context.get_parameter_source("form")
    asked = source is not None and source is not click.core.ParameterSource.DEFAULT
    if not (once or asked) and on_screen() and takes_keys():
        from aliquot.cli.kubectl.top_source import WatchedCluster
        from aliquot.cli.top_app import TopApp

        with WatchedCluster(target, agent_port) as watched:
            watched()  # errors are printed before the screen changes
            status = TopApp(watched, interval_s=interval_s).run()
        sys.exit(status or 0)
    from aliquot.cli.kubectl.services import read_usage

    scene = target.run(read_scene(target))
    used = target.run(read_usage(target, scene, agent_port))
    gpus = scene.gpus()
    only = "" if target.everywhere else target.namespace
    for gpu in gpus:
        for one in gpu["residents"]:
            now = used.of(gpu["node"], gpu["uuid"], one["tenant"], scene.ledger.claim_of(one["tenant"]))
            one |= {
                "usage": None if now is None else now.usage_milli / MILLI,
                "memory_used_mib": None if now is None else now.memory_used_mib,
                "memory_lent_mib": None if now is None else now.memory_lent_mib,
                "notes": [] if now is None else now.memory_texts,
            }
    shown = [
        {**g, "residents": mine}
        for g in gpus
        if (mine := [r for r in g["residents"] if not only or r["tenant"].startswith(f"{only}/")]) or not only
    ]
    show(form, shown, lambda: [*lines(shown, gpus), *(["", *used.unknown(), MEND] if used.silent else [])])


def lines(shown: list[dict[str, Any]], everything: list[dict[str, Any]]) -> Iterable[str]:
    """The table: nodes, their GPUs, the tenants of each; GPUs without tenants in one line.

    A tenant's bar has full blocks up to its request and light ones up to its limit.
    """
    promised = sum(MILLI - g["free_milli"] for g in everything)
    idle = sum(g["free_milli"] == MILLI for g in everything)
    yield f"{len(everything)} GPUs, {format_milli(promised)} of them promised, {idle} wholly free"
    for node, own in groupby(shown, key=lambda g: str(g["node"])):
        gpus = list(own)
        yield ""
        yield f"{node}  {', '.join(sorted({g['model'] for g in gpus}))}"
        for g in gpus:
            if not g["residents"]:
                continue
            compute, memory = reserved(g["free_milli"], g["memory_mib"], g["free_mib"])
            yield f"GPU {g['index']}  {compute}  memory {memory}"
            rows = [["  TENANT", "REQUEST", "LIMIT", "OF THE GPU".ljust(BAR), "USAGE", "MEMORY", "USED"]]
            for r in g["residents"]:
                request, limit = r["request_milli"], r["limit_milli"]
                full = round(BAR * request / MILLI)
                bar = ("█" * full + "░" * (round(BAR * limit / MILLI) - full)).ljust(BAR)
                usage = "-" if r["usage"] is None else f"{r['usage']:.2f}"
                used = "-" if r["memory_used_mib"] is None else format_mib(r["memory_used_mib"])
                shares = [format_milli(request), format_milli(limit), bar]
                rows.append([f"  {name_of(r)}", *shares, usage, format_mib(r["memory_mib"]), used])
            yield from aligned(rows, right=(1, 2, 4, 5, 6), width=columns())
            for note in [note for r in g["residents"] for note in r["notes"]]:
                yield from wrapped(f"  {note}", columns())
        if free := [str(g["index"]) for g in gpus if not g["residents"]]:
            yield f"GPU {', '.join(free)}  no tenants"

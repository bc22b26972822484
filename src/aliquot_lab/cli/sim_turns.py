"""`aliquot sim turns`: what each turn policy gives to programs that share a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from aliquot.cli.options import Amount, output_option
from aliquot.model.errors import UserError
from aliquot.tokens import Turns
from aliquot_lab.sim.seeds import seed_list

LEAST_S = 16


def chosen(names: Sequence[str], groups: dict[str, Sequence[Any]], default: str) -> list[Any]:
    """The mixes of these names, of the default group where there is none.

    Raises:
        UserError: a name that is neither a mix nor a group.
    """
    known = {mix.name: mix for group in groups.values() for mix in group}
    found: dict[str, Any] = {}
    for name in names or (default,):
        if name in groups:
            found.update({mix.name: mix for mix in groups[name]})
        elif name in known:
            found[name] = known[name]
        else:
            raise UserError(f"--mix {name!r} is not known; there are {', '.join([*groups, *known])}")
    return list(found.values())


@click.command()
@click.option("--mix", "names", multiple=True, metavar="NAME", help="A mix, or all, or misbehaviours. [default: all]")
@click.option("--turns", "ways", type=click.Choice([way.value for way in Turns]), multiple=True,
              help="Only these ways of taking turns; may be given again. [default: each]")  # fmt: skip
@click.option("--seed", default="1", show_default=True, metavar="A..B", help="Seeds: 1, 1..5 or 1,3.")
@click.option(
    "--seconds", type=Amount(100_000, least=LEAST_S), default=60, show_default=True, help="Time of each, 16 at least."
)
@click.option("--list", "listing", is_flag=True, help="Describe the mixes.")
@output_option
def turns(names: tuple[str, ...], ways: tuple[str, ...], seed: str, seconds: float, listing: bool, output: str) -> None:
    """What programs that share a GPU get, by turn policy: in virtual time, with the arbiter's own policies.

    Each row is a mix of programs under one policy. The share in every window of 10 s is compared with a fluid: requests
    first, the rest levelled up to the limits, for exactly the time in which each wanted the GPU.

    \b
    P95, WORST  distance from the fluid, as a part of the window: 95 of 100
                windows, and the worst
    A %         windows in which every program got its request for the time it
                wanted the GPU, within 0.02: the promise
    C %         of the windows in which a program wanted the GPU throughout,
                those with its request, within 0.02
    USED        GPU time used, as a part of what the fluid uses
    GAIN        points of the GPU that the program with pauses or bad manners
                got beyond the fluid, below 0 it lost; the columns before are
                those of its neighbours then
    WAKE ms     from waking to the first kernel, median and 99 of 100
    CHANGES     grants a second

    A hand-over takes 0.3 ms, a program may have 2 ms queued, and keeps an idle turn for 2 ms while no tenant waits.
    """
    from aliquot_lab.sim.turns.mixes import MISBEHAVIOURS, MIXES
    from aliquot_lab.sim.turns.study import study, table

    groups: dict[str, Sequence[Any]] = {"all": MIXES, "misbehaviours": MISBEHAVIOURS}
    if listing:
        for mix in (*MIXES, *MISBEHAVIOURS):
            click.echo(f"{mix.name:<14} {mix.about}")
        return
    cases = study(chosen(names, groups, "all"), [Turns(way) for way in ways] or list(Turns), seed_list(seed), seconds)
    click.echo(json.dumps({"seconds": seconds, "cases": cases}) if output == "json" else table(cases))

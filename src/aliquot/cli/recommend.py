"""`aliquot recommend`: what workloads ask for, what they used, and what they should ask for."""

from __future__ import annotations

import click

from aliquot.cli.calling import ask_engine
from aliquot.cli.forms import show
from aliquot.cli.options import output_option, since_option
from aliquot.cli.tables import recommended, recommended_lines


@click.command()
@click.argument("name", required=False, default="")
@since_option
@output_option
def recommend(name: str, since: str, output: str) -> None:
    """Recommend request, limit and memory for everything that has a share, or for NAME alone, from what was used.

    The request follows what 95 of 100 minutes used, the memory the most that was held, each with a margin. A share
    that fits stays, and an hour must be recorded.

    Example, what a SharePod should ask for, from the last day:
      aliquot recommend notebook --since 24h
    """
    import msgspec

    from aliquot.standalone.wire import RecommendCall

    found = recommended(ask_engine(RecommendCall(since)).found, name)
    show(output, msgspec.to_builtins(found), lambda: recommended_lines(found))

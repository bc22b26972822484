"""`kubectl aliquot recommend`: the recommendations of the cluster's dashboard, as `aliquot recommend` prints them."""

from __future__ import annotations

import click
import msgspec

from aliquot.cli.forms import show
from aliquot.cli.kubectl.scene import Target, form_option, target_options
from aliquot.cli.kubectl.services import dashboard_options, read_past
from aliquot.cli.options import since_option
from aliquot.cli.tables import recommended, recommended_lines
from aliquot.status import Recommendations


@click.command()
@click.argument("name", required=False, default="")
@target_options
@form_option
@since_option
@dashboard_options
def recommend(name: str, target: Target, form: str, since: str, dashboard: str, token: str) -> None:
    """Recommend request, limit and memory for everything that has a share, or for NAME alone, from what was used.

    Of all namespaces that you may see, unless -n names one. The request follows what 95 of 100 minutes used, the memory
    the most that was held, each with a margin. A share that fits stays, and an hour must be recorded.

    Example, what the workloads of a namespace should ask for:
      kubectl aliquot recommend -n research
    """
    answer = target.run(read_past(target, "recommendations", Recommendations, since, dashboard, token))
    found = recommended(answer, name, "" if target.everywhere else target.namespace)
    show(form, msgspec.to_builtins(found), lambda: recommended_lines(found))

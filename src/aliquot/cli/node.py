"""`aliquot node`: the agent of one node of a Kubernetes cluster."""

from __future__ import annotations

import click

from aliquot.cli.options import emulate_option, not_gpus_option, only_gpus_option, otlp_option
from aliquot.cli.settings import settings_options
from aliquot.node.settings import NodeSettings


@click.command()
@settings_options(
    NodeSettings,
    "an agent",
    emulate=emulate_option,
    only_gpus=only_gpus_option,
    not_gpus=not_gpus_option,
    otlp_endpoint=otlp_option,
)
def node(settings: NodeSettings) -> None:
    """Serve this node's GPUs to the pods that were planned on it."""
    from aliquot.node.agent import serve

    serve(settings)

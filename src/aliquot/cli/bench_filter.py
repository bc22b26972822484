"""`aliquot bench filter`: how long the extender takes to answer kube-scheduler."""

from __future__ import annotations

import json

import click


@click.command("filter")
@click.option("--case", "cases", multiple=True, metavar="NODES/PODS", default=("1000/4000", "5000/20000"))
@click.option("--asks", type=click.IntRange(20), default=300, show_default=True, help="Measured requests per case.")
@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def filter_(cases: tuple[str, ...], asks: int, output: str) -> None:
    """Milliseconds of filter and prioritize over HTTP with JSON, by nodes and pods in the ledger."""
    from aliquot.bench.filter import filter_times

    sizes = []
    for case in cases:
        nodes, _, pods = case.partition("/")
        if not (nodes.isdigit() and pods.isdigit() and int(nodes)):
            raise click.BadParameter(f"{case!r} is not NODES/PODS, as in 1000/4000", param_hint="--case")
        sizes.append((int(nodes), int(pods)))
    figures = filter_times(tuple(sizes), asks)
    if output == "json":
        click.echo(json.dumps(figures))
        return
    for found in figures["cases"]:
        click.echo("  ".join(f"{name} {value}" for name, value in found.items()))

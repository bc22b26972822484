"""`kubectl aliquot topo NODE`: how the GPUs of a node are connected, and which are free."""

from __future__ import annotations

import click

from aliquot.cli.kubectl.scene import ClusterScene, Target, form_option, read_scene, target_options
from aliquot.cli.topo import TopologyPicture, show_topology
from aliquot.model.errors import UserError
from aliquot.placement.sentences import text_of


@click.command()
@click.argument("node")
@click.option("--best", metavar="N", type=int, help="Name the best N free GPUs and what remains.")
@target_options
@form_option
def topo(node: str, best: int | None, target: Target, form: str) -> None:
    """Show how the GPUs of NODE are connected and how much of them is free.

    Costs are of a pair, lower is nearer. The best set is the one whose pairs cost least in all.

    Example, which two free GPUs of a node to take together:
      kubectl aliquot topo node-a --best 2
    """
    show_topology(picture_of(target.run(read_scene(target)), node), best, form)


def picture_of(scene: ClusterScene, node: str) -> TopologyPicture:
    """A node's GPUs as `aliquot topo` draws them.

    Raises:
        UserError: the node does not exist, has no known GPUs, or does not report how they are connected.
    """
    cluster = scene.ledger.cluster
    if node not in {n.metadata.name for n in scene.nodes}:
        raise UserError(f'there is no node "{node}"; list them: kubectl get nodes')
    if node not in cluster.index:
        more = "" if node in scene.ledger.faulty else "; is aliquot node running there?"
        raise UserError(f'node "{node}" {text_of(scene.ledger.absent(node))}{more}')
    number = cluster.index[node]
    spec = cluster.spec(number)
    if spec.topology is None:
        raise UserError(f'node "{node}" does not report how its GPUs are connected')
    free = tuple(max(0, cluster.free_milli.item(number, g)) for g in range(len(spec.gpus)))
    return TopologyPicture(f"node {node}", spec.topology, free, tuple(d.model for d in spec.gpus))

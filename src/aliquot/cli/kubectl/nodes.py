"""`kubectl aliquot nodes`: which nodes to add for the pods that wait, of which type and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import click

from aliquot.cli.forms import show
from aliquot.cli.kubectl.scene import ClusterScene, Target, form_option, read_scene, target_options
from aliquot.kube.claims import claims_ask
from aliquot.kube.dialects import read
from aliquot.kube.names import GATE
from aliquot.kube.requests import BadPod
from aliquot.model.errors import UserError
from aliquot.model.requests import BadRequest
from aliquot.placement.entries import NodeSpec
from aliquot.scheduler.new_nodes import NewNodesTrial, WaitingPod
from aliquot.scheduler.verdicts import closed_nodes
from aliquot.standalone.machine import imagined_ledger

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"


@click.command()
@click.option(
    "--type", "given", multiple=True, metavar="NAME=GPUS", help="A type that can be had. [default: those of the nodes]"
)
@target_options
@form_option
def nodes(given: tuple[str, ...], target: Target, form: str) -> None:
    """Show which nodes to add for the pods that wait for shares, of which type and how many, if need be from zero.

    The answer has the fewest GPUs, then the fewest nodes, then the type that was named first. Pods that have room now
    need none. CPU, memory and selectors of new nodes are not judged, nor are pods behind gates of others.

    Example, where the cluster has no GPU yet:
      kubectl aliquot nodes -A --type small=v100 --type big=h100x8
    """
    types: dict[str, NodeSpec] = {}
    for each in given:
        name, _, gpus = each.partition("=")
        if not name or not gpus or name in types:
            raise UserError(f'--type "{each}": write NAME=GPUS with another name for each type, such as small=v100x4')
        types[name] = imagined_ledger(gpus).spec
    scene = target.run(read_scene(target))
    facts = needed(scene, types or types_of(scene))
    show(form, facts, lambda: lines_of(facts))


def types_of(scene: ClusterScene) -> dict[str, NodeSpec]:
    """The instance types of the cluster's nodes, as the first node of each has them; a UserError if there is none."""
    cluster, types = scene.ledger.cluster, dict[str, NodeSpec]()
    for node in scene.nodes:
        kind, number = node.metadata.labels.get(INSTANCE_TYPE, ""), cluster.index.get(node.metadata.name)
        if kind and number is not None:
            types.setdefault(kind, cluster.spec(number))
    if not types:
        raise UserError(f"no node with GPUs has the label {INSTANCE_TYPE}; name a type: --type big=h100x8")
    return types


def needed(scene: ClusterScene, types: Mapping[str, NodeSpec]) -> dict[str, Any]:
    """The new nodes by type, the pods on each, those that have room now, and those that fit on no node of any type."""
    pods, wrong = waiting_pods(scene)
    found = NewNodesTrial(scene.ledger, types, pods).best()
    count = Counter(kind for kind, _ in found.added)
    return {
        "waiting": len(pods) + len(wrong),
        "add": {kind: count[kind] for kind in types if count[kind]},
        "nodes": [{"type": kind, "pods": names} for kind, names in found.added],
        "room_now": found.here,
        "nowhere": wrong | found.nowhere,
    }


def waiting_pods(scene: ClusterScene) -> tuple[list[WaitingPod], dict[str, list[str]]]:
    """The pods of the namespace that wait for shares, and what is wrong with requests that cannot be read."""
    pods: list[WaitingPod] = []
    wrong: dict[str, list[str]] = {}
    closed: dict[str, frozenset[str]] = {}
    for pod in scene.pods:
        gated = any(gate.name != GATE for gate in pod.spec.scheduling_gates)
        if pod.spec.node_name or pod.ended or pod.metadata.deletion_timestamp or gated or not scene.here(pod):
            continue
        unmet = [claim for claim in scene.claims if claim.name_in(pod) and claim.status.allocation is None]
        try:
            asks = [ask for ask in (read(pod), claims_ask(unmet, pod.metadata.uid)) if ask is not None]
        except (BadPod, BadRequest) as error:
            wrong[pod.metadata.key] = [str(error)]
            continue
        if asks:
            ask = replace(asks[0], containers=tuple(part for one in asks for part in one.containers))
            alike = repr((pod.metadata.annotations, pod.spec))  # pods of one controller are judged once
            if alike not in closed:
                closed[alike] = frozenset(closed_nodes(scene.ledger, ask, pod, scene.nodes, scene.pods)())
            pods.append(WaitingPod(pod.metadata.key, ask, closed[alike]))
    return pods, wrong


def lines_of(facts: Mapping[str, Any]) -> Iterable[str]:
    """The answer as people read it."""
    waiting = facts["waiting"]
    if not waiting:
        yield "no pod waits for a share"
        return
    add = ", ".join(f"{count} x {kind}" for kind, count in facts["add"].items()) or "no node"
    yield f"{waiting} pod{'s wait' if waiting > 1 else ' waits'}: add {add}"
    for node, names in facts["room_now"].items():
        yield f"{node} has room now for {', '.join(names)}"
    for key, why in facts["nowhere"].items():
        yield f"no node helps {key}: {'; '.join(why)}"

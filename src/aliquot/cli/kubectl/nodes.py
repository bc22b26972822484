"""`kubectl aliquot nodes`: which nodes to add for the pods that wait, of which type and how many.

It is a trial on nodes that are not there yet, all of them empty. The answer has the fewest GPUs, then the fewest nodes.
Pods are placed largest first, each on the fullest GPU that holds it, and a node is opened when none fits (best fit
decreasing). What is large is decided by compute, by memory, by the larger of both or by their sum: each is tried, with
each type preferred. CPU and memory of nodes are the autoscaler's to count.

Source: Panigrahy, Talwar, Uyeda, Wieder, "Heuristics for Vector Bin Packing", 2011.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import click
import numpy as np
from msgspec import structs

from aliquot.cli.forms import show
from aliquot.cli.kubectl.scene import ClusterScene, Target, form_option, read_scene, target_options
from aliquot.kube.claims import claims_ask
from aliquot.kube.dialects import read
from aliquot.kube.names import GATE
from aliquot.kube.requests import BadPod, PodAsk
from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI
from aliquot.model.requests import BadRequest
from aliquot.placement.decide import Decider
from aliquot.placement.entries import NodeSpec
from aliquot.placement.policy import policy
from aliquot.scheduler.allocations import Allocation
from aliquot.scheduler.ledger import Ledger, NodeFull
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


@dataclass(frozen=True)
class WaitingPod:
    """A pod without a node, by `namespace/name`; `closed` are nodes that Kubernetes does not allow for it."""

    key: str
    ask: PodAsk
    closed: frozenset[str] = frozenset()


@dataclass
class NewNodes:
    """Pods by the node of the cluster that has room (`here`), by new node with its type (`added`), and those that fit
    `nowhere`, with the reason for each type."""

    here: dict[str, list[str]] = field(default_factory=dict)
    added: list[tuple[str, list[str]]] = field(default_factory=list)
    nowhere: dict[str, list[str]] = field(default_factory=dict)


class NewNodesTrial:
    """A ledger of its own with a cordoned node of each type for each pod; an attempt opens some and cordons them."""

    def __init__(self, ledger: Ledger, types: Mapping[str, NodeSpec], pods: Sequence[WaitingPod]) -> None:
        self._ledger, self._cluster = ledger, ledger.cluster
        ledger.decider = Decider(ledger.cluster, policy("binpack"), quotas=ledger.decider.quotas)
        self._gpus = {kind: len(spec.gpus) for kind, spec in types.items()}
        self._spares: dict[str, list[str]] = {}
        for kind, spec in types.items():
            self._spares[kind] = [f"{kind}/new-{number}" for number in range(len(pods))]
            for name in self._spares[kind]:
                gpus = tuple(structs.replace(gpu, uuid=GpuUuid(f"{name}/{gpu.index}")) for gpu in spec.gpus)
                ledger.add_empty_node(replace(spec, name=name, gpus=gpus))
                self._cluster.set_cordoned(name)
        mib = max((gpu.memory_mib for spec in types.values() for gpu in spec.gpus), default=1)
        self._pods: list[tuple[WaitingPod, float, float]] = []
        for pod in sorted(pods, key=lambda pod: pod.key):
            asks = [unit.ask for unit in pod.ask.units(ledger.known)]
            memory = sum(ask.least_memory(mib) for ask in asks) / mib
            self._pods.append((pod, sum(ask.milli for ask in asks) / MILLI, memory))

    def best(self) -> NewNodes:
        """The most pods placed, on the fewest GPUs, on the fewest nodes."""
        orders: list[list[WaitingPod]] = []
        for size in (lambda c, _: c, lambda _, m: m, max, lambda c, m: c + m):
            order = [pod for pod, *_ in sorted(self._pods, key=lambda each: -size(*each[1:]))]
            if order not in orders:
                orders.append(order)
        choices = [sorted(self._gpus, key=lambda kind: kind != preferred) for preferred in self._gpus] or [[]]
        found = [self._attempt(order, kinds) for order in orders for kinds in choices]
        return min(found, key=lambda a: (len(a.nowhere), sum(self._gpus[kind] for kind, _ in a.added), len(a.added)))

    def _attempt(self, order: Sequence[WaitingPod], kinds: Sequence[str]) -> NewNodes:
        """What comes of this order of pods and types."""
        result, held, opened = NewNodes(), list[Allocation](), dict[str, list[WaitingPod]]()
        for pod in order:
            allocation, why = self._room(pod), list[str]()
            for kind in kinds if allocation is None else ():
                spare = next(name for name in self._spares[kind] if name not in opened)
                try:
                    (allocation,) = self._open(spare, [pod])
                    opened[spare] = []
                    break
                except NodeFull as full:
                    why.append(str(full))
            if allocation is None:
                result.nowhere[pod.key] = why
                continue
            held.append(allocation)
            if allocation.node in opened:
                opened[allocation.node].append(pod)
            else:
                result.here.setdefault(allocation.node, []).append(pod.key)
        self._close(opened, held)
        result.added = [(self._smallest(name, pods), [pod.key for pod in pods]) for name, pods in opened.items()]
        return result

    def _room(self, pod: WaitingPod) -> Allocation | None:
        """A place on an open node: of those that hold all of the pod, on the one that placement prefers."""
        decider, namespace = self._ledger.decider, pod.ask.namespace
        units = pod.ask.units(self._ledger.known)
        nodes = np.flatnonzero(np.logical_and.reduce([decider.feasible(unit.ask, namespace) for unit in units]))
        nodes = nodes[decider.together(units, nodes, namespace)[1]]
        scores = decider.scores(units[0].ask, namespace)[nodes]
        for number in nodes[np.argsort(-scores, kind="stable")].tolist():
            name = self._cluster.spec(number).name
            if name not in pod.closed:
                with suppress(NodeFull):
                    return self._ledger.allocate(pod.ask, name, 0.0)
        return None

    def _smallest(self, name: str, pods: Sequence[WaitingPod]) -> str:
        """The type with the fewest GPUs that holds the pods of a new node."""
        own = name.rpartition("/")[0]
        for kind in sorted(self._gpus, key=self._gpus.__getitem__):
            spare = self._spares[kind][-1]
            if self._gpus[kind] >= self._gpus[own]:
                break
            with suppress(NodeFull):
                self._close([spare], self._open(spare, pods))
                return kind
        return own

    def _open(self, name: str, pods: Sequence[WaitingPod]) -> list[Allocation]:
        """Let a spare node take pods and place these there; NodeFull, and nothing changed, if it does not hold them."""
        held: list[Allocation] = []
        self._cluster.set_cordoned(name, False)
        try:
            for pod in pods:
                held.append(self._ledger.allocate(pod.ask, name, 0.0))
        except NodeFull:
            self._close([name], held)
            raise
        return held

    def _close(self, names: Iterable[str], held: Iterable[Allocation]) -> None:
        for allocation in held:
            self._ledger.forget(allocation)
        for name in names:
            self._cluster.set_cordoned(name)

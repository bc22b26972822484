"""Why a pod is placed where it is, or why it waits and what would make it fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import format_mib, format_milli
from aliquot.model.wake import format_wake
from aliquot.placement.asks import Ask
from aliquot.placement.books import Placement
from aliquot.placement.changes import Suggestion, changes
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import NEVER, Decider
from aliquot.placement.policy import Policy
from aliquot.placement.quota import Quotas
from aliquot.placement.reasons import Code, Infeasible, UnmetConstraint, Verdict
from aliquot.placement.wakes import obstacle

_CHANGES_SHOWN: Final = 3
_NODES_SHOWN: Final = 8
_DEVICES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """What was found for one ask.

    With a `placement` it fits, and `why` says in sentences why there. Without, `verdicts` has what stands against it
    on every node and device, and `changes` what would let it in, the smallest first.
    """

    ask: Ask
    policy: str
    placement: Placement | None
    why: tuple[str, ...] = ()
    nodes_fitting: int = 0
    nodes: int = 0
    verdicts: tuple[Verdict, ...] = ()
    changes: tuple[Suggestion, ...] = ()

    @property
    def nearest(self) -> Suggestion | None:
        """The smallest change that would make it fit."""
        return self.changes[0] if self.changes else None

    def lines(self, name: str) -> list[str]:
        """The explanation as a person reads it, the answer first; `name` is what is explained."""
        if self.placement is not None:
            return [f"{name} fits{self._where()}: asks {wish(self.ask)}.", *(f"  {line}" for line in self.why)]
        count = f"none of {self.nodes} nodes has" if self.nodes != 1 else f"node {self.verdicts[0].node} does not have"
        lines = [f"{name} waits: asks {wish(self.ask)}, {count} that much free.", *_table(self.verdicts)]
        for number, change in enumerate(self.changes[:_CHANGES_SHOWN]):
            lines.append(f"{'Nearest' if number == 0 else 'Or'}: {change.text}.")
        return lines if self.changes else [*lines, "Nothing smaller than another request would make it fit."]

    def facts(self) -> dict[str, Any]:
        """The same as data for JSON."""
        return {
            "fits": self.placement is not None,
            "policy": self.policy,
            "asks": wish(self.ask),
            "placement": None if self.placement is None else _placement_facts(self.placement),
            "why": list(self.why),
            "nodes": self.nodes,
            "nodes_fitting": self.nodes_fitting,
            "verdicts": [_verdict_facts(verdict) for verdict in self.verdicts],
            "changes": [_change_facts(change) for change in self.changes],
        }

    def _where(self) -> str:
        assert self.placement is not None
        return f" on {self.placement.node}" if not self.placement.slices else ""


def explain(
    cluster: Cluster, ask: Ask, policy: Policy, quotas: Quotas | None = None, namespace: str = ""
) -> PlacementExplanation:
    """Explain a request under a policy, which is started fresh on this cluster; nothing is changed."""
    return explain_with(Decider(cluster, policy, quotas=quotas), ask, namespace)


def elsewhere_now(where: str) -> str:
    """Why something is not where it would be placed now; `where` names that place."""
    return f"asked now, it would go to {where}: the tenants, or what was learned of future requests, have changed"


def explain_with(decider: Decider, ask: Ask, namespace: str = "") -> PlacementExplanation:
    """Explain a request with an existing decider; nothing is changed, nothing is learned."""
    found = explain_fitting(decider, ask, namespace)
    return found or explain_waiting(decider, ask, decider.cluster.copy(), namespace)


def explain_fitting(decider: Decider, ask: Ask, namespace: str = "") -> PlacementExplanation | None:
    """The place of a request that fits, and why; None for one that does not."""
    found = decider.decide(ask, namespace, again=True)
    if isinstance(found, Infeasible):
        return None
    scores = decider.scores(ask, namespace)
    why = tuple(_why(decider, ask, found, scores))
    nodes = len(decider.cluster.index)
    return PlacementExplanation(ask, decider.policy.name, found, why, int((scores != NEVER).sum()), nodes)


def explain_waiting(decider: Decider, ask: Ask, trial: Cluster, namespace: str = "") -> PlacementExplanation:
    """Why an ask waits; takes long where there are many nodes.

    `trial` is a copy of the decider's ledger, which is written into meanwhile and is as before afterwards; of the
    decider itself only its quotas and its policy's name are read.
    """
    verdicts = Infeasible(trial, ask, decider.quotas, namespace).reasons()
    ways = changes(trial, ask, verdicts, decider.quotas, namespace)
    nodes = len(trial.index)
    return PlacementExplanation(ask, decider.policy.name, None, nodes=nodes, verdicts=verdicts, changes=tuple(ways))


def wish(ask: Ask) -> str:
    """What is asked, in words."""
    parts = []
    if ask.devices:
        few = f"{ask.whole} GPU{'s' * (ask.whole != 1)}" if not ask.rest_milli else f"{format_milli(ask.milli)} GPU"
        parts.append(few + (f" of model {' or '.join(ask.models)}" if ask.models else ""))
        if ask.devices > 1:
            parts[-1] += " close to each other"
    if ask.gpu_mib:
        parts.append(f"{format_mib(ask.gpu_mib)} of GPU memory")
    elif ask.gpu_mem_ppm:
        parts.append(f"{ask.gpu_mem_ppm / 10_000:g}% of a GPU's memory")
    if ask.cpu_milli:
        parts.append(f"{ask.cpu_milli / 1000:g} CPU")
    if ask.memory_mib:
        parts.append(f"{format_mib(ask.memory_mib)} of memory")
    if ask.wake_us:
        parts.append(f"to wake in {format_wake(ask.wake_us)}")
    labels = ask.labels
    named = {"affinity": labels.affinity, "anti-affinity": labels.anti_affinity, "exclusion": labels.exclusion}
    named |= {"vGPU": ask.gpu_id, "GPU": ask.gpu_uuid}
    parts += [f'{kind} "{value}"' for kind, value in named.items() if value]
    return ", ".join(parts) or "nothing"


def _why(decider: Decider, ask: Ask, placement: Placement, scores: IntArray) -> Iterator[str]:
    cluster, policy = decider.cluster, decider.policy
    number = cluster.index[placement.node]
    for piece in placement.slices:
        g = cluster.uuids[piece.gpu][1]
        free, free_mib = cluster.free_milli.item(number, g), cluster.free_mib.item(number, g)
        yield (
            f"GPU {cluster.spec(number).gpus[g].index} of {placement.node}: {format_milli(free)} unreserved now, "
            f"{format_milli(free - piece.request_milli)} after; {format_mib(free_mib)} now, "
            f"{format_mib(free_mib - piece.memory_mib)} after"
        )
        if ask.wake_us and (unsure := obstacle(cluster, (number, g), ask.wake_us, certain=True)) is not None:
            yield f"whether it wakes in time is not certain yet: kernels of {unsure.tenant} were not measured"
    yield from _links(cluster, placement, number)
    because = getattr(policy, "because", "")
    if because:
        yield f"{policy.name} takes {because}"
    fitting = np.flatnonzero(scores != NEVER)
    own = int(scores[number])
    others = [int(node) for node in fitting if node != number]
    if not others:
        yield f"no other of {len(cluster.index)} nodes has room" if len(cluster.index) > 1 else "it is the only node"
        return
    best = max(others, key=lambda node: (int(scores[node]), -int(cluster.rank[node])))
    next_best = f"{cluster.spec(best).name} with {int(scores[best])}"
    yield f"{len(fitting)} of {len(cluster.index)} nodes have room; score {own}, next best {next_best}"


def _links(cluster: Cluster, placement: Placement, number: int) -> Iterator[str]:
    topology = cluster.spec(number).topology
    gpus = [cluster.uuids[piece.gpu][1] for piece in placement.slices]
    if topology is None or len(gpus) < 2:
        return
    found = Counter(topology.links[a][b] for i, a in enumerate(gpus) for b in gpus[i + 1 :])
    yield "links between them: " + ", ".join(f"{count} x {label}" for label, count in sorted(found.items()))


def _table(verdicts: tuple[Verdict, ...]) -> list[str]:
    """Nodes with the same obstacle in one line; devices where there are few nodes."""
    if len(verdicts) == 1:
        return _one_node(verdicts[0])
    groups: dict[str, list[str]] = {}
    for verdict in verdicts:
        groups.setdefault(_summary(verdict), []).append(verdict.node)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    rows = [(f"{len(names)} nodes" if len(names) > 1 else names[0], text) for text, names in ordered[:_NODES_SHOWN]]
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    hidden = sum(len(names) for _, names in ordered[_NODES_SHOWN:])
    return [*lines, f"  and {hidden} more nodes"] if hidden else lines


def _one_node(verdict: Verdict) -> list[str]:
    devices = [f"  GPU {reason.gpu:<5}{_note(reason)}" for reason in verdict.devices if reason]
    counted = verdict.reason is not None and verdict.reason.code in (Code.NODE_GPUS, Code.NODE_FEW_GPUS)
    if verdict.reason is None or (counted and devices):
        return devices
    return [f"  {verdict.node}  {_note(verdict.reason)}", *devices]


def _summary(verdict: Verdict) -> str:
    reason = verdict.reason
    if reason is None:
        return "has room"
    counts = Counter(device.text for device in verdict.devices if device and device.lasting >= reason.lasting)
    of_devices = reason.code in (Code.NODE_GPUS, Code.NODE_FEW_GPUS)
    if not of_devices or not counts or (reason.lasting and counts.total() < len(verdict.devices)):
        return _note(reason)
    devices = [f"{count} x {text}" if count > 1 else text for text, count in counts.most_common(_DEVICES_SHOWN)]
    more = f" and {len(counts) - _DEVICES_SHOWN} more" if len(counts) > _DEVICES_SHOWN else ""
    first = f"{reason.text}: " if reason.code is Code.NODE_GPUS and reason.asked > 1 else ""
    return f"{first}{'; '.join(devices)}{more}{'  (cannot change)' if reason.lasting else ''}"


def _note(reason: UnmetConstraint | None) -> str:
    if reason is None:
        return ""
    return f"{reason.text}{'  (cannot change)' if reason.lasting else ''}"


def _placement_facts(placement: Placement) -> dict[str, Any]:
    slices = [
        {"gpu": s.gpu, "request_milli": s.request_milli, "limit_milli": s.limit_milli, "memory_mib": s.memory_mib}
        for s in placement.slices
    ]
    return {"node": placement.node, "slices": slices}


def _reason_facts(reason: UnmetConstraint | None) -> dict[str, Any] | None:
    if reason is None:
        return None
    return {
        "code": reason.code.value, "text": reason.text, "asked": reason.asked, "have": reason.have,
        "lasting": reason.lasting,
    }  # fmt: skip


def _verdict_facts(verdict: Verdict) -> dict[str, Any]:
    devices = [{"gpu": g, "reason": _reason_facts(reason)} for g, reason in enumerate(verdict.devices)]
    return {"node": verdict.node, "reason": _reason_facts(verdict.reason), "devices": devices}


def _change_facts(change: Suggestion) -> dict[str, Any]:
    return {
        "kind": change.kind, "node": change.node, "text": change.text, "ends": list(change.ends),
        "asks": wish(change.ask), "size_milli": change.size_milli,
    }  # fmt: skip

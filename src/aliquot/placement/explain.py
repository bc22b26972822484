"""Why a pod is placed where it is, or why it waits and what would make it fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Ask
from aliquot.placement.changes import changes
from aliquot.placement.cluster import Cluster
from aliquot.placement.codes import (
    Alternatives,
    Links,
    PlacedBecause,
    Preference,
    Room,
    Suggestion,
    UnmeasuredKernels,
    UnmetConstraint,
    Verdict,
)
from aliquot.placement.decide import NEVER, Decider
from aliquot.placement.entries import Placement
from aliquot.placement.fits import obstacle
from aliquot.placement.reasons import Infeasible
from aliquot.placement.sentences import (
    FITS,
    PlaceReason,
    because,
    gpus,
    moved,
    not_counted,
    place_reasons,
    suggestion,
    text_of,
    waiting,
    wish,
)

NOWHERE: Final[Mapping[str, str]] = MappingProxyType({})
_CHANGES_SHOWN: Final = 3
_PLACES_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """What was found for one ask.

    With a `placement` it fits, and `why` says why there. Without, `verdicts` has what stands against it
    on every node and device, and `changes` what would let it in, the smallest first. A tenant that has a place already
    has the indices of its GPUs in `held`; `placement` is then where it would be placed now, on the GPUs in `now`.
    Nodes in `barred` are not counted, for the reason given there.
    """

    ask: Ask
    policy: str
    placement: Placement | None
    why: tuple[PlacedBecause, ...] = ()
    nodes_fitting: int = 0
    nodes: int = 0
    verdicts: tuple[Verdict, ...] = ()
    changes: tuple[Suggestion, ...] = ()
    held: tuple[int, ...] = ()
    now: tuple[int, ...] = ()
    node: str = ""
    barred: Mapping[str, str] = field(default_factory=dict)

    @property
    def ways(self) -> list[str]:
        """What would let it in, a line for each change, the smallest first; none for what has room or a place."""
        if self.held or self.placement is not None or not self.nodes:
            return []
        if not self.changes:
            return ["Nothing smaller than another request would make it fit."]
        shown = self.changes[:_CHANGES_SHOWN]
        return [f"{'Nearest' if number == 0 else 'Or'}: {suggestion(change)}." for number, change in enumerate(shown)]

    @property
    def nearest(self) -> str:
        """The smallest change that would make it fit, in words; empty where there is none or none is needed."""
        return suggestion(self.changes[0]) if self.changes else ""

    @property
    def account(self) -> list[str]:
        """Why something that has a place is where it is, or is no longer what would be chosen."""
        if self.held and self.held != self.now and self.now:
            return [moved(self.now)]
        return [because(reason, held=bool(self.held)) for reason in self.why]

    @property
    def place_reasons(self) -> list[PlaceReason]:
        """What stands against it, place by place."""
        return place_reasons(self.verdicts) if self.placement is None and not self.held else []

    def headline(self, name: str, *, fits: str = FITS) -> str:
        """The answer in one sentence; `name` is what is explained, `fits` the verb for a request that has room."""
        if self.held:
            return f"{name} is on {gpus(self.held)} of {self.node}: asks {wish(self.ask)}."
        if self.placement is None and self.barred and not self.nodes:
            return f"{name} waits: Kubernetes allows none of the {len(self.barred)} nodes with GPUs for it"
        if self.placement is None:
            return waiting(name, self.ask, self.verdicts)
        where = f" on {self.placement.node}" if not self.placement.slices else ""
        return f"{name} {fits}{where}: asks {wish(self.ask)}."

    def lines(self, name: str, *, fits: str = FITS) -> list[str]:
        """The explanation as a person reads it, the answer first."""
        lines = [self.headline(name, fits=fits)]
        if self.held or self.placement is not None:
            lines += [f"  {line}" for line in self.account]
        reasons = self.place_reasons
        width = max((len(reason.where) for reason in reasons[:_PLACES_SHOWN]), default=0)
        for reason in reasons[:_PLACES_SHOWN]:
            lines.append(f"  {reason.where:<{width}}  {reason.text}{'  (cannot change)' if reason.lasting else ''}")
        if hidden := sum(reason.places for reason in reasons[_PLACES_SHOWN:]):
            lines.append(f"  and {hidden} more")
        return [*lines, *self.ways, *not_counted(self.barred)]

    def facts(self) -> dict[str, Any]:
        """The same as data for JSON."""
        placement = None
        if self.placement is not None:
            fields = ("gpu", "request_milli", "limit_milli", "memory_mib")
            slices = [{field: getattr(piece, field) for field in fields} for piece in self.placement.slices]
            placement = {"node": self.placement.node, "slices": slices}
        verdicts = [
            {
                "node": verdict.node,
                "reason": _reason_facts(verdict.reason),
                "devices": [{"gpu": g, "reason": _reason_facts(reason)} for g, reason in enumerate(verdict.devices)],
            }
            for verdict in self.verdicts
        ]
        changes = [
            {
                "kind": change.kind, "node": change.node, "text": suggestion(change),
                "ends": [tenant.name for tenant in change.ends],
                "asks": wish(change.ask), "size_milli": change.size_milli,
            }
            for change in self.changes
        ]  # fmt: skip
        return {
            "fits": self.placement is not None, "policy": self.policy, "asks": wish(self.ask), "placement": placement,
            "why": self.account, "nodes": self.nodes, "nodes_fitting": self.nodes_fitting, "verdicts": verdicts,
            "changes": changes,
        } | ({"placed_on": list(self.held)} if self.held else {})  # fmt: skip


def explain_with(
    decider: Decider, ask: Ask, namespace: str = "", barred: Mapping[str, str] = NOWHERE
) -> PlacementExplanation:
    """Explain a request with an existing decider; nothing is changed, nothing is learned.

    `barred` are nodes that the request may not go to, and why; they are not counted.
    """
    found = explain_fitting(decider, ask, namespace, barred)
    return found or explain_waiting(decider, ask, decider.cluster.copy(), namespace, barred)


def explain_fitting(
    decider: Decider, ask: Ask, namespace: str = "", barred: Mapping[str, str] = NOWHERE
) -> PlacementExplanation | None:
    """The place of a request that fits, and why; None for one that does not."""
    cluster = decider.cluster
    scores = decider.scores(ask, namespace)
    closed = [cluster.index[name] for name in barred if name in cluster.index]
    scores[closed] = NEVER
    fitting = np.flatnonzero(scores != NEVER)
    if closed and not len(fitting):
        return None
    if closed:
        best = max(fitting.tolist(), key=lambda node: (int(scores[node]), -int(cluster.rank[node])))
        found = decider.place_on(ask, cluster.spec(best).name, namespace)
    else:
        found = decider.decide(ask, namespace, again=True)
    if isinstance(found, Infeasible):
        return None
    why = tuple(_why(decider, ask, found, scores, len(closed)))
    nodes = len(cluster.index) - len(closed)
    return PlacementExplanation(ask, decider.policy.name, found, why, len(fitting), nodes, barred=barred)


def explain_waiting(
    decider: Decider, ask: Ask, trial: Cluster, namespace: str = "", barred: Mapping[str, str] = NOWHERE
) -> PlacementExplanation:
    """Why an ask waits; takes long where there are many nodes.

    `trial` is a copy of the decider's ledger, which is written into meanwhile and is as before afterwards; of the
    decider itself only its quotas and its policy's name are read.
    """
    if barred:
        trial = trial.copy()
        for name in barred:
            if name in trial.index:
                trial.remove_node(name)
    verdicts = Infeasible(trial, ask, decider.quotas, namespace).reasons()
    ways = changes(trial, ask, verdicts, decider.quotas, namespace)
    nodes = len(trial.index)
    return PlacementExplanation(
        ask, decider.policy.name, None, nodes=nodes, verdicts=verdicts, changes=tuple(ways), barred=barred
    )


def _why(decider: Decider, ask: Ask, placement: Placement, scores: IntArray, barred: int) -> Iterator[PlacedBecause]:
    cluster, policy = decider.cluster, decider.policy
    number = cluster.index[placement.node]
    for piece in placement.slices:
        g = cluster.uuids[piece.gpu][1]
        yield Room(
            placement.node,
            cluster.spec(number).gpus[g].index,
            cluster.free_milli.item(number, g),
            cluster.free_mib.item(number, g),
            piece.request_milli,
            piece.memory_mib,
        )
        if ask.wake_us and (unsure := obstacle(cluster, (number, g), ask.wake_us, certain=True)) is not None:
            yield UnmeasuredKernels(unsure.tenant)
    topology = cluster.spec(number).topology
    gpus = [cluster.uuids[piece.gpu][1] for piece in placement.slices]
    if topology is not None and len(gpus) > 1:
        counts = Counter(topology.links[a][b] for i, a in enumerate(gpus) for b in gpus[i + 1 :])
        yield Links(tuple(sorted(counts.items())))
    if takes := getattr(policy, "because", ""):
        yield Preference(policy.name, takes)
    fitting = np.flatnonzero(scores != NEVER)
    others = [int(node) for node in fitting if node != number]
    best = max(others, key=lambda node: (int(scores[node]), -int(cluster.rank[node])), default=None)
    next_best = cluster.spec(best).name if best is not None else ""
    yield Alternatives(len(cluster.index) - barred, len(fitting), next_best)


def _reason_facts(reason: UnmetConstraint | None) -> dict[str, Any] | None:
    if reason is None:
        return None
    return {
        "code": reason.code.value, "text": text_of(reason), "asked": reason.asked, "have": reason.have,
        "lasting": reason.lasting,
    }  # fmt: skip

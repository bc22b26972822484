"""The decider: which node and which devices an ask gets under a policy.

Scores are remembered by shape, in the order of ranks, so that a decision is a look for the largest number: the first
of equals has the smallest rank. What changed since a shape was last seen is found by the versions of the nodes and is
all that is scored again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.model.requests import Slice
from aliquot.placement.asks import Ask, PlacementUnit, Shape
from aliquot.placement.cluster import Cluster, Holding, Placement
from aliquot.placement.fits import (
    PodTrial,
    Rules,
    bounds,
    fitting_nodes,
    hold_rest,
    hold_whole,
    one_model_each,
    rules_for,
)
from aliquot.placement.policy import LabelAware, Policy
from aliquot.placement.quota import NO_QUOTAS, Quotas
from aliquot.placement.reasons import Infeasible

NEVER: Final = np.iinfo(np.int64).min
"""The score of a node that does not fit."""
MEMO_BYTES: Final = 64 << 20
NODE_BYTES: Final = 25
"""Of one shape on one node."""


class _Memo:
    """One shape on every node: `fits`, by index, and `scores`, in the order of ranks.

    `fitted` and `scored` are the versions of the nodes that they were made from.
    """

    __slots__ = ("epoch", "fits", "fitted", "scored", "scores")

    def __init__(self, nodes: int, epoch: int) -> None:
        self.fits = np.zeros(nodes, dtype=np.bool_)
        self.fitted = np.full(nodes, -1, dtype=np.int64)
        self.scores = np.full(nodes, NEVER)
        self.scored = np.full(nodes, -1, dtype=np.int64)
        self.epoch = epoch


class Decider:
    """Decides for one cluster under one policy; commits nothing unless asked to.

    `quotas` rule out the models of which a namespace may have no more.
    """

    def __init__(self, cluster: Cluster, policy: Policy, seed: int = 0, quotas: Quotas = NO_QUOTAS) -> None:
        self.cluster = cluster
        self.policy = policy
        self.quotas = quotas
        self._memos: dict[Shape, _Memo] = {}
        self._layout = -1
        self._order = np.arange(0)
        self._place_in_order = np.arange(0)
        self._label_scores = policy.ask_scores if isinstance(policy, LabelAware) else None
        policy.start(cluster, seed)
        self._look_at_layout()

    def decide(self, ask: Ask, namespace: str = "", *, again: bool = False) -> Placement | Infeasible:
        """The place of the request, or why it has none; `again` for a repeated one, so that it is not counted twice.

        The placement can be reserved at once; ties fall to the smallest rank.
        """
        if not again:
            self.policy.arrived(ask.shape)
        ranked = self._remembered(ask.shape)
        for rules in self._choices(ask, namespace):
            if self.policy.stable and rules is None and (ask.plain or self._label_scores is None):
                place = int(ranked.argmax()) if len(ranked) else 0
                if len(ranked) and ranked.item(place) != NEVER:
                    return self._place(ask, self._order.item(place), None)
            else:
                nodes, scores = self._scored(ask, ranked, rules)
                if len(nodes):
                    return self._place(ask, nodes.item(int(scores.argmax())), rules)
        return Infeasible(self.cluster, ask, self.quotas, namespace)

    def feasible(self, ask: Ask, namespace: str = "") -> BoolArray:
        """Which nodes could take the ask now: bool [N]; asks the policy for nothing, whose scores may take long."""
        fits = self._fit(ask.shape).fits.copy()
        nodes = np.flatnonzero(fits)
        fits[nodes] = self._kept(ask.shape, nodes, self._rules(ask, namespace))
        return fits

    def together(
        self, units: Sequence[PlacementUnit], nodes: IntArray, namespace: str = ""
    ) -> tuple[BoolArray, BoolArray]:
        """`together.bounds`, within quota: nodes on which the units fit together, and those on which they may."""
        surely, maybe = bounds(self.cluster, units, nodes, lambda ask: self._rules(ask, namespace))
        if self.quotas.closed(self.cluster, namespace, *(unit.ask for unit in units)):
            surely[:] = False  # what the first ones take may leave too little for the others
        return surely, maybe

    def place_together(
        self,
        units: Sequence[PlacementUnit],
        node: str,
        namespace: str = "",
        refused: Callable[[PlacementUnit], None] = lambda _: None,
    ) -> list[Placement] | None:
        """A placement for each of the units if all fit on the node; otherwise None.

        The ledger is unchanged afterwards; `refused` is called with what did not fit while the others are still in it.
        """

        def place_on(ask: Ask) -> Placement | None:
            placed = self.place_on(ask, node, namespace)
            return None if isinstance(placed, Infeasible) else placed

        for choice in one_model_each(self.cluster, units, node):
            trial = PodTrial(self.cluster, node, namespace, place_on)
            with self.cluster.trial():
                unplaced = next((unit for unit in choice if not trial.place(unit, last=unit is choice[-1])), None)
                if unplaced is None:
                    return trial.placements
                refused(unplaced)
        return None

    def scores(self, ask: Ask, namespace: str = "") -> IntArray:
        """The policy's score of every node for the ask, `NEVER` where it does not fit: int64 [N].

        Nodes where a promise of waking is certain score above those where it is not.
        """
        found = np.full(len(self.cluster.rank), NEVER)
        ranked, raised = self._remembered(ask.shape), 0
        for rules in reversed(self._choices(ask, namespace)):
            nodes, scores = self._scored(ask, ranked, rules)
            if len(nodes):
                found[nodes] = scores + raised
                raised = int(scores.max() - scores.min()) + 1
        return found

    def place_on(self, ask: Ask, node: str, namespace: str = "") -> Placement | Infeasible:
        """The devices the ask would get on one node that others chose, or why it cannot go there."""
        number = self.cluster.node_index(node)
        one = np.array([number], dtype=np.int64)
        if fitting_nodes(self.cluster, ask.shape, one).any():
            for rules in self._choices(ask, namespace):
                if self._kept(ask.shape, one, rules).any():
                    return self._place(ask, number, rules)
        return Infeasible(self.cluster, ask, self.quotas, namespace)

    def commit(self, tenant: str, placement: Placement, ask: Ask) -> None:
        """Reserve a placement.

        Raises:
            LedgerError: it does not fit any more.
            QuotaExceeded: the tenant's namespace may have no more of these.
        """
        self.quotas.require(self.cluster, tenant, placement, ask)
        self.cluster.reserve(tenant, placement, ask)

    def release(self, tenant: str) -> Holding | None:
        """Give a tenant's devices back, and let the policy know."""
        holding = self.cluster.release(tenant)
        if holding is not None:
            self.policy.departed(holding.ask.shape)
        return holding

    # Inside

    def _look_at_layout(self) -> None:
        """Nodes were added or removed: sort again, and drop cached results."""
        cluster = self.cluster
        self._layout = cluster.layout
        self._order = np.lexsort((np.arange(len(cluster.rank)), cluster.rank))
        self._place_in_order = np.empty_like(self._order)
        self._place_in_order[self._order] = np.arange(len(self._order))
        self._memos.clear()

    def _rules(self, ask: Ask, namespace: str, *, certain: bool = False) -> Rules | None:
        return rules_for(self.cluster, ask, self.quotas.closed(self.cluster, namespace, ask), certain=certain)

    def _choices(self, ask: Ask, namespace: str) -> list[Rules | None]:
        """The rules, and before them those under which a promise of waking is certain to be kept."""
        rules = self._rules(ask, namespace)
        return [self._rules(ask, namespace, certain=True), rules] if ask.wake_us else [rules]

    def _fit(self, shape: Shape) -> _Memo:
        """What is remembered of a shape, with the nodes that it fits brought up to date."""
        cluster = self.cluster
        if self._layout != cluster.layout:
            self._look_at_layout()
        memo = self._memos.get(shape)
        if memo is None:
            nodes = len(cluster.rank)
            while self._memos and len(self._memos) * nodes * NODE_BYTES > MEMO_BYTES:
                del self._memos[next(iter(self._memos))]
            memo = self._memos[shape] = _Memo(nodes, self.policy.epoch)
        changed = np.flatnonzero(memo.fitted != cluster.version)
        if len(changed):
            memo.fits[changed] = fitting_nodes(cluster, shape, changed)
            memo.fitted[changed] = cluster.version[changed]
        return memo

    def _remembered(self, shape: Shape) -> IntArray:
        """Scores of all nodes for a shape, in the order of ranks, brought up to date.

        `NEVER` where the shape does not fit; of a policy that is not stable 0 where it fits.
        """
        policy, memo = self.policy, self._fit(shape)
        if policy.stable and memo.epoch != policy.epoch:
            memo.scored[:] = -1
            memo.epoch = policy.epoch
        changed = np.flatnonzero(memo.scored != memo.fitted)
        if len(changed):
            fits = memo.fits[changed]
            fresh = np.where(fits, 0, NEVER)
            if policy.stable:
                nodes = changed[fits]
                if len(nodes):
                    fresh[fits] = policy.scores(shape, nodes)
            memo.scores[self._place_in_order[changed]] = fresh
            memo.scored[changed] = memo.fitted[changed]
        return memo.scores

    def _scored(self, ask: Ask, ranked: IntArray, rules: Rules | None) -> tuple[IntArray, IntArray]:
        """Nodes that fit, by rank, and their scores."""
        places = np.flatnonzero(ranked != NEVER)
        nodes = self._order[places]
        if rules is not None:
            kept = self._kept(ask.shape, nodes, rules)
            nodes, places = nodes[kept], places[kept]
        if not len(nodes):
            return nodes, places
        if self._label_scores is not None and not (ask.plain and rules is None):
            return nodes, np.asarray(self._label_scores(ask, nodes, rules))
        return nodes, ranked[places] if self.policy.stable else self.policy.scores(ask.shape, nodes)

    def _kept(self, shape: Shape, nodes: IntArray, rules: Rules | None) -> BoolArray:
        """Which of the nodes that fit still fit with the devices that labels, names and quota leave: bool [n]."""
        if rules is None:
            return np.ones(len(nodes), dtype=np.bool_)
        row = np.full(len(self.cluster.rank), -1)
        row[rules.nodes] = np.arange(len(rules.nodes))
        rows = row[nodes]
        ruled = rows >= 0
        kept = np.full(len(nodes), not rules.only)
        kept[ruled] = fitting_nodes(self.cluster, shape, nodes[ruled], rules.allowed[rows[ruled]])
        return kept

    def _place(self, ask: Ask, node: int, rules: Rules | None) -> Placement:
        """The slices on a node that fits."""
        cluster = self.cluster
        spec = cluster.spec(node)
        if not ask.devices:
            return Placement(spec.name)
        shape = ask.shape
        gpus = range(len(spec.gpus)) if rules is None else rules.left_on(node, len(spec.gpus))
        if shape.models:
            mask = cluster.model_mask(shape.models)
            gpus = [g for g in gpus if mask[cluster.model.item(node, g)]]
        if shape.whole:
            fitting = sorted({*hold_whole(cluster, shape, node, gpus), *hold_rest(cluster, shape, node, gpus)})
        else:
            fitting = hold_rest(cluster, shape, node, gpus)
        chosen = self.policy.choose(ask, node, fitting)
        assert len(chosen) == ask.devices and set(chosen) <= set(fitting), f"{self.policy.name} chose {chosen}"
        pieces = []
        for number, g in enumerate(chosen):
            whole = number < ask.whole
            milli = MILLI if whole else ask.rest_milli
            limit = MILLI if whole else ask.ceiling_milli - ask.whole * MILLI
            memory = ask.slice_memory(spec.gpus[g].memory_mib, whole=whole)
            pieces.append(Slice(spec.gpus[g].uuid, milli, limit, memory))
        return Placement(spec.name, tuple(pieces))

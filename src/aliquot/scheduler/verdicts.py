"""The nodes that can take a pod now, the reasons of the others, and a score for each.

All nodes are judged at once on the columns of the placement cluster. A reason is the same for all nodes of a kind,
because kube-scheduler counts equal reasons in its event ("3 does not have a GPU with 0.30 free"). The exact
account per device is `aliquot explain`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.kube.eligible import barred
from aliquot.kube.objects import Node, Pod
from aliquot.kube.requests import PodAsk
from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.placement.asks import PlacementUnit
from aliquot.placement.codes import Code, UnmetConstraint
from aliquot.placement.decide import NEVER
from aliquot.placement.fits import one_model
from aliquot.placement.reasons import node_reasons
from aliquot.placement.sentences import text_of
from aliquot.scheduler.ledger import UNKNOWN_NODE, Ledger

BEST: Final = 10
NEXT: Final = 9
FITS: Final = 0
LASTS: Final = 1
"""The bit of a code whose reason no eviction would take away."""
UNKNOWN: Final = LASTS
TOGETHER: Final = 2
"""The codes of the two reasons that come first in every list: see `_reasons`."""
MAX_PLACEMENTS: Final = 512
"""How many asks one call places for trial, 0.2 ms each, on nodes where the columns do not tell whether all asks of a
pod fit at once. Nodes for which that is not enough are refused, and the pod's next call begins with them. A pod of two
containers has 256 nodes tried: kube-scheduler, too, is content with some of the nodes of a large cluster."""


@dataclass(frozen=True)
class Verdicts:
    """Of the nodes that were asked about: those that fit, and the reasons why the others do not, by name."""

    fitting: list[str]
    failed: dict[str, str]
    unresolvable: dict[str, str]


@dataclass(frozen=True)
class Judged:
    """A code for each node that was asked about, int32 [n]: `FITS`, or `index of a reason << 1 | LASTS`.

    `again` is added to each sentence about what others hold (see `Wording`).
    """

    codes: NDArray[np.int32]
    reasons: list[UnmetConstraint]
    again: str = ""

    def sentence(self, code: int) -> str:
        """Why nodes of this code do not fit."""
        return f"{text_of(self.reasons[code >> 1])}{'' if lasting(code) else self.again}"


def verdicts(ledger: Ledger, ask: PodAsk, names: Sequence[str]) -> Verdicts:
    """What becomes of each of these nodes; no eviction would help on `unresolvable` ones."""
    judged = judge(ledger, ask, indices_of(ledger, names), names.__getitem__)
    codes = judged.codes.tolist()
    sentences = {code: judged.sentence(code) for code in {*codes} - {FITS}}
    found = Verdicts([name for name, code in zip(names, codes, strict=True) if code == FITS], {}, {})
    for name, code in zip(names, codes, strict=True):
        if code != FITS:
            (found.unresolvable if lasting(code) else found.failed)[name] = sentences[code]
    return found


def closed_nodes(
    ledger: Ledger, ask: PodAsk, pod: Pod, nodes: Iterable[Node], pods: Iterable[Pod]
) -> Callable[[], dict[str, str]]:
    """Nodes with GPUs that Kubernetes does not allow for a pod, and why; `nodes` and `pods` are all of the cluster.

    The ledger is read now; what is returned does the rest, in any thread.
    """
    known, every = [node for node in nodes if node.metadata.name in ledger.cluster.index], list(pods)
    fitting = verdicts(ledger, ask, list(ledger.cluster.index)).fitting
    return lambda: barred(pod, known, every, fitting)


def fits_now(ledger: Ledger, ask: PodAsk, node: str = "") -> bool:
    """Whether the ledger has room for the pod now, on that node where one is given."""
    names = [node] if node else [spec.name for spec in ledger.cluster.nodes]
    return bool((judge(ledger, ask, indices_of(ledger, names), names.__getitem__).codes == FITS).any())


def lasting(code: int) -> bool:
    """Whether no eviction would help."""
    return bool(code & LASTS)


def judge(ledger: Ledger, ask: PodAsk, numbers: IntArray, name: Callable[[int], str]) -> Judged:
    """What becomes of the nodes of these indices, -1 for unknown ones; `name` tells that of a place in `numbers`."""
    units = ask.units(ledger.known)
    namespace, cluster = ask.namespace, ledger.cluster
    each = [ledger.decider.feasible(unit.ask, namespace) for unit in units]
    fits = np.array(np.logical_and.reduce(each))
    untried = np.arange(0)
    if len(units) > 1:
        fits, untried = _together(ledger, ask, units, fits, numbers)
    for allocation in ledger.allocations.get(ask.uid, []):
        fits[cluster.index.get(allocation.node, [])] = True  # what the pod has there already is its room
    by_node, reasons = _reasons(ledger, units, each, fits, namespace)
    unknown = numbers < 0
    if len(untried):
        by_node[untried] = len(reasons) << 1
        reasons.append(UnmetConstraint(Code.POD_UNTRIED, asked=len(units)))
    codes = by_node[numbers] if len(by_node) else np.zeros(len(numbers), dtype=np.int32)
    codes[unknown] = UNKNOWN
    for place in np.flatnonzero(unknown).tolist() if ledger.faulty else ():
        if name(place) in ledger.faulty:
            reasons.append(ledger.absent(name(place)))
            codes[place] = (len(reasons) - 1) << 1 | LASTS
    return Judged(codes, reasons)


def indices_of(ledger: Ledger, names: Sequence[str]) -> IntArray:
    """The indices of these nodes, -1 for those that are not in the ledger."""
    return np.fromiter(map(ledger.cluster.index.get, names, repeat(-1)), dtype=np.int64, count=len(names))


def scores(ledger: Ledger, ask: PodAsk, numbers: IntArray, *, near: bool = False) -> NDArray[np.int32]:
    """10 for the node that placement would choose, 9 and less for the others: int32 [n] for nodes of these indices.

    kube-scheduler has ten steps only. So that the choice survives them, the best node alone has the tenth. `near` is
    for pods whose author prefers some nodes: then all others that fit have 9, one step below, which counts less.
    """
    unit = ask.units(ledger.known)[0]
    cluster = ledger.cluster
    found = np.zeros(len(numbers), dtype=np.int32)
    own = [allocation.node for allocation in ledger.allocations.get(ask.uid, [])]
    held = [cluster.index[node] for node in own if node in cluster.index]
    if (kept := np.isin(numbers, held)).any():
        found[kept] = BEST
        return found
    values = ledger.decider.scores(unit.ask, ask.namespace)
    here = values[numbers] if len(values) else np.full(len(numbers), NEVER)
    known = (numbers >= 0) & (here != NEVER)
    if not known.any():
        return found
    most, least = int(here[known].max()), int(here[known].min())
    best = np.flatnonzero(known & (here == most))
    first = best[cluster.rank[numbers[best]].argmin()]
    found[known] = NEXT
    if most > least and not near:
        # In floats: scores may be as large as int64, and a tenth of the way need not be exact.
        part = (here[known].astype(np.float64) - least) / (float(most) - least)
        found[known] = (NEXT * part).astype(np.int32)
    found[first] = BEST
    return found


def _together(
    ledger: Ledger, ask: PodAsk, units: Sequence[PlacementUnit], fits: BoolArray, numbers: IntArray
) -> tuple[BoolArray, IntArray]:
    """Where all asks of a pod fit at once, and the nodes that were not tried: see `MAX_PLACEMENTS`."""
    namespace = ask.namespace
    nodes = np.unique(numbers[(numbers >= 0) & fits[numbers]])
    surely, maybe = ledger.decider.together(units, nodes, namespace)
    fits = np.zeros_like(fits)
    fits[nodes[surely]] = True
    unclear = nodes[maybe & ~surely]
    unclear = np.roll(unclear, -np.searchsorted(unclear, ledger.next_tried.pop(ask.uid, 0)))
    count = max(1, MAX_PLACEMENTS // len(units))
    for number in unclear[:count].tolist():
        node = ledger.cluster.spec(number).name
        fits[number] = ledger.decider.place_together(units, node, namespace) is not None
    if len(unclear) > count:
        ledger.next_tried[ask.uid] = unclear.item(count)
    return fits, unclear[count:]


def _reasons(
    ledger: Ledger, units: Sequence[PlacementUnit], each: Sequence[BoolArray], fits: BoolArray, namespace: str
) -> tuple[NDArray[np.int32], list[UnmetConstraint]]:
    """The code of every node, int32 [N], and the reasons: of the largest request that does not fit alone, but for one
    that no eviction would help."""
    cluster, decider = ledger.cluster, ledger.decider
    reasons = [UNKNOWN_NODE, UnmetConstraint(Code.POD_TOGETHER)]
    codes = np.full(len(fits), TOGETHER, dtype=np.int32)
    for unit, alone in zip(units, each, strict=True):
        fine = alone | fits
        if fine.all():
            continue
        closed = decider.quotas.closed(cluster, namespace, unit.ask)
        mixed = decider.feasible(unit.ask.but(mixed=True), namespace) if one_model(cluster, unit.ask) else None
        found = node_reasons(cluster, unit.ask, fine, closed, mixed)
        own = np.array(
            [n << 1 | reason.lasting for n, reason in enumerate(found.reasons, len(reasons))], dtype=np.int32
        )
        chosen = (found.which >= 0) & ((codes == TOGETHER) | (codes & LASTS == 0) & (own & LASTS == LASTS)[found.which])
        codes[chosen] = own[found.which[chosen]]
        reasons += found.reasons
    codes[fits] = FITS
    return codes, reasons

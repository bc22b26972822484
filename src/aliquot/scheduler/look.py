"""Which nodes could take a pod now, why the others could not, and how good each is.

All nodes are judged at once on the columns of the placement cluster. A reason is one of a few sentences, the same for
all nodes of a kind, because kube-scheduler counts equal reasons in its event ("3 does not have a GPU with 0.30
unreserved"). The exact account per device is `aliquot explain`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.kube.requests import PlacementUnit, PodAsk
from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.model.ids import split_key
from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.placement.asks import Ask
from aliquot.placement.decide import NEVER
from aliquot.scheduler.books import Books
from aliquot.scheduler.fitting import fit

BEST: Final = 10
NEXT: Final = 9
FITS: Final = 0
UNKNOWN: Final = 1
UNKNOWN_NODE: Final = "has no GPUs that Aliquot knows of"


@dataclass(frozen=True)
class Verdicts:
    """`failed` and `never` are reasons by name for those that were asked about."""

    fitting: list[str]
    failed: dict[str, str]
    never: dict[str, str]


@dataclass(frozen=True)
class Judged:
    """A code for each node that was asked about, int32 [n]: `FITS`, or twice the number of a sentence.

    One more when no eviction would help.
    """

    codes: NDArray[np.int32]
    sentences: list[str]

    def sentence(self, code: int) -> str:
        """Why nodes of this code do not fit."""
        return self.sentences[code >> 1]

    def reworded(self) -> Judged:
        """The same in other words."""
        return Judged(self.codes, [f"{sentence} now" for sentence in self.sentences])


def verdicts(books: Books, ask: PodAsk, names: Sequence[str]) -> Verdicts:
    """What becomes of each of these nodes; `never` are those that no eviction would help."""
    judged = judge(books, ask, numbers_of(books, names), names.__getitem__)
    codes = judged.codes.tolist()
    found = Verdicts([name for name, code in zip(names, codes, strict=True) if code == FITS], {}, {})
    for name, code in zip(names, codes, strict=True):
        if code != FITS:
            (found.never if lasting(code) else found.failed)[name] = judged.sentence(code)
    return found


def lasting(code: int) -> bool:
    """Whether no eviction would help."""
    return bool(code & 1)


def judge(books: Books, ask: PodAsk, numbers: IntArray, name: Callable[[int], str]) -> Judged:
    """What becomes of the nodes of these indices, -1 for unknown ones; `name` tells that of a place in `numbers`."""
    seats = ask.seats(books.known)
    namespace = split_key(ask.key)[0]
    cluster = books.cluster
    each = [books.decider.feasible(seat.ask, namespace) for seat in seats]
    fits = np.array(np.logical_and.reduce(each))
    if len(seats) > 1:
        fits = _together(books, seats, fits, namespace, numbers)
    for hold in books.holds.get(ask.uid, []):
        fits[cluster.index.get(hold.node, [])] = True  # what the pod has there already is its room
    by_node, sentences = _reasons(books, seats, each, fits, namespace)
    unknown = numbers < 0
    codes = by_node[numbers] if len(by_node) else np.zeros(len(numbers), dtype=np.int32)
    codes[unknown] = UNKNOWN
    for place in np.flatnonzero(unknown).tolist() if books.faulty else ():
        if (fault := books.faulty.get(name(place))) is not None:
            sentences.append(fault)
            codes[place] = 2 * (len(sentences) - 1) + 1
    return Judged(codes, sentences)


def numbers_of(books: Books, names: Sequence[str]) -> IntArray:
    """The indices of these nodes, -1 for those that are not in the books."""
    return np.fromiter(map(books.cluster.index.get, names, repeat(-1)), dtype=np.int64, count=len(names))


def scores(books: Books, ask: PodAsk, numbers: IntArray, *, near: bool = False) -> NDArray[np.int32]:
    """10 for the node that placement would choose, 9 and less for the others: int32 [n] for nodes of these indices.

    kube-scheduler has ten steps only. So that the choice survives them, the best node alone has the tenth. `near` is
    for pods whose author prefers some nodes: then all others that fit have 9, one step below, which counts less.
    """
    seat = ask.seats(books.known)[0]
    cluster = books.cluster
    found = np.zeros(len(numbers), dtype=np.int32)
    held = [cluster.index[hold.node] for hold in books.holds.get(ask.uid, []) if hold.node in cluster.index]
    if (kept := np.isin(numbers, held)).any():
        found[kept] = BEST
        return found
    values = books.decider.scores(seat.ask, split_key(ask.key)[0])
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
    books: Books, seats: Sequence[PlacementUnit], fits: BoolArray, namespace: str, numbers: IntArray
) -> BoolArray:
    """Where all asks of a pod fit at once. Nodes with an idle GPU for each need no trial."""
    cluster = books.cluster
    devices = sum(seat.ask.devices for seat in seats)
    free = all(seat.ask.plain and not seat.ask.models for seat in seats) and not cluster.labels.exclusive
    roomy = fits & (cluster.idle_count >= devices) & free & _all_hold(books, seats)
    roomy[sorted(cluster.mixed)] = False
    known = numbers[numbers >= 0]
    for number in known[fits[known] & ~roomy[known]].tolist():
        fits[number] = tried(books, seats, cluster.spec(number).name, namespace)
    return fits


def _all_hold(books: Books, seats: Sequence[PlacementUnit]) -> BoolArray:
    """Nodes all of whose devices have the memory that any of the asks wants on an idle one."""
    most = max(seat.ask.gpu_mib for seat in seats)
    sizes = books.cluster.size_mib
    return np.asarray(np.where(sizes >= 0, sizes >= most, True).all(axis=1))


def tried(books: Books, seats: Sequence[PlacementUnit], node: str, namespace: str) -> bool:
    """Whether the asks fit on the node together; the books are as before afterwards."""
    return fit(books.decider, seats, node, namespace) is not None


def _reasons(
    books: Books, seats: Sequence[PlacementUnit], each: Sequence[BoolArray], fits: BoolArray, namespace: str
) -> tuple[NDArray[np.int32], list[str]]:
    """The code of every node, int32 [N], and the sentences."""
    cluster = books.cluster
    sentences = [UNKNOWN_NODE, "the containers fit alone but not together"]
    told = np.ones(len(fits), dtype=np.int32)
    never = cluster.gpu_count == 0
    for seat, alone in zip(seats, each, strict=True):
        wanting = _suited(books, seat.ask) < max(seat.ask.devices, 1)
        never |= wanting
        failing = ~(alone | fits)
        if not failing.any():
            continue
        now = failing & ~wanting
        quota, closed = _by_quota(books, seat.ask, namespace)
        for chosen, text in (
            (failing & wanting, _sentence(seat.ask, lasting=True, open_=True)),
            (now & ~cluster.open, _sentence(seat.ask, lasting=False, open_=False)),
            (now & cluster.open & ~closed, _sentence(seat.ask, lasting=False, open_=True)),
            (now & cluster.open & closed, quota),
        ):
            told[chosen] = len(sentences)
            sentences.append(text)
    told[cluster.gpu_count == 0] = len(sentences)
    sentences.append("has no GPU")
    return np.where(fits, FITS, 2 * told + never).astype(np.int32), sentences


def _by_quota(books: Books, ask: Ask, namespace: str) -> tuple[str, BoolArray]:
    """Why the namespace may have no more, and the nodes that have devices for the ask only of such models: bool [N]."""
    cluster, quotas = books.cluster, books.decider.quotas
    reasons = quotas.closed_reasons(cluster, namespace, ask) if quotas is not None else {}
    if not reasons:
        return "", np.zeros(len(cluster.open), dtype=np.bool_)
    numbers = [number for number, model in enumerate(cluster.models) if model in reasons]
    left = _suited(books, ask, but=numbers)
    return next(iter(reasons.values())), left < max(ask.devices, 1)


def _suited(books: Books, ask: Ask, but: Sequence[int] = ()) -> NDArray[np.int64]:
    """How many devices of each node could serve the ask if they were empty, but for those of some models: [N]."""
    cluster = books.cluster
    good = (cluster.size_mib >= 0) & ~np.isin(cluster.model, but) if but else cluster.size_mib >= 0
    if ask.models:
        good = good & cluster.model_mask(ask.models)[cluster.model]
    if ask.gpu_mib and ask.devices == 1:
        good = good & (cluster.size_mib >= ask.gpu_mib)
    if ask.gpu_uuid:
        named = np.zeros_like(good)
        for uuid in ask.gpu_uuid.split(","):
            if (cell := cluster.uuids.get(uuid.strip())) is not None:
                named[cell] = True
        good = good & named
    if ask.devices < 2 or ask.mixed or not cluster.mixed:
        return np.asarray(good.sum(axis=1))
    kinds = [(good & (cluster.model == number)).sum(axis=1) for number in range(len(cluster.models))]
    return np.asarray(np.max(kinds, axis=0))


def _sentence(ask: Ask, *, lasting: bool, open_: bool) -> str:
    if lasting:
        wanted = []
        if ask.models:
            wanted.append(f"of model {' or '.join(ask.models)}")
        if ask.gpu_mib and ask.devices == 1:
            wanted.append(f"with {format_mib(ask.gpu_mib)}")
        if ask.gpu_uuid:
            wanted.append(f"called {ask.gpu_uuid}" if len(ask.gpu_uuid) < 80 else "with one of the UUIDs named")
        count = f"{ask.devices} GPUs" if ask.devices > 1 else "GPU"
        return f"has no {count} {' '.join(wanted)}".rstrip()
    if not open_:
        return "takes no pods (cordoned)"
    asked = []
    if ask.whole:
        asked.append(f"{ask.whole} idle GPU{'s' * (ask.whole > 1)}")
    if ask.rest_milli:
        memory = f" and {format_mib(ask.gpu_mib)}" if ask.gpu_mib else ""
        asked.append(f"a GPU with {format_milli(ask.rest_milli % MILLI)}{memory} unreserved")
    labels = " that its labels allow" if not ask.plain else ""
    return f"does not have {' and '.join(asked)}{labels}"

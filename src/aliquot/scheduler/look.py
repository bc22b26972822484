"""Which nodes could take a pod now, why the others could not, and how good each is.

All nodes are judged at once on the columns of the placement cluster. A reason is one of a few sentences, the same for
all nodes of a kind, because kube-scheduler counts equal reasons in its event ("3 has not a GPU with 0.30 unreserved").
The exact account per device is `aliquot explain`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.kube.requests import PodAsk, Seat
from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.placement.asks import Ask
from aliquot.placement.decide import NEVER
from aliquot.placement.reasons import Refusal
from aliquot.scheduler.books import Books, gpu_only

BoolArray = NDArray[np.bool_]
BEST: Final = 10
NEXT: Final = 9
UNKNOWN_NODE: Final = "has no GPUs that Aliquot knows of"


@dataclass(frozen=True)
class Verdicts:
    """`fits` bool [N] by node index; `failed` and `never` are reasons by name for those that were asked about."""

    fitting: list[str]
    failed: dict[str, str]
    never: dict[str, str]


def verdicts(books: Books, ask: PodAsk, names: Sequence[str]) -> Verdicts:
    """What becomes of each of these nodes; `never` are those that no eviction would help."""
    seats = ask.seats(books.known)
    namespace = ask.key.partition("/")[0]
    cluster = books.cluster
    each = [books.decider.feasible(gpu_only(seat.ask), namespace) for seat in seats]
    fits = np.array(np.logical_and.reduce(each))
    if len(seats) > 1:
        fits = _together(books, seats, fits, namespace, names)
    for hold in books.holds.get(ask.uid, []):
        fits[cluster.index.get(hold.node, [])] = True  # what the pod has there already is its room
    never, texts = _reasons(books, seats, each, fits, namespace)
    numbers = _numbers(books, names)
    good = (numbers >= 0) & fits[numbers] if len(fits) else np.zeros(len(names), dtype=np.bool_)
    found = Verdicts(list(compress(names, good.tolist())), {}, {})
    for place in np.flatnonzero(~good).tolist():
        name, number = names[place], int(numbers[place])
        if number < 0:
            found.never[name] = books.faulty.get(name, UNKNOWN_NODE)
        elif never[number]:
            found.never[name] = texts[number]
        else:
            found.failed[name] = texts[number]
    return found


def _numbers(books: Books, names: Sequence[str]) -> NDArray[np.int64]:
    """The indices of these nodes, -1 for those that are not in the books."""
    return np.fromiter(map(books.cluster.index.get, names, repeat(-1)), dtype=np.int64, count=len(names))


def scores(books: Books, ask: PodAsk, names: Sequence[str]) -> list[int]:
    """0 to 10 for each of these nodes: 10 for the one that placement would choose, 9 and less for the others.

    kube-scheduler has ten steps only. So that the choice survives them, the best node alone has the tenth.
    """
    seat = ask.seats(books.known)[0]
    cluster = books.cluster
    values = books.decider.scores(gpu_only(seat.ask), ask.key.partition("/")[0])
    numbers = _numbers(books, names)
    here = values[numbers] if len(values) else np.full(len(names), NEVER)
    known = (numbers >= 0) & (here != NEVER)
    held = {hold.node for hold in books.holds.get(ask.uid, [])}.intersection(names)
    if held:
        return [BEST if name in held else 0 for name in names]
    if not known.any():
        return [0] * len(names)
    most, least = int(here[known].max()), int(here[known].min())
    best = np.flatnonzero(known & (here == most))
    first = best[cluster.rank[numbers[best]].argmin()]
    found = np.where(known, NEXT, 0)
    if most > least:
        # In floats: scores may be as large as int64, and a tenth of the way need not be exact.
        part = (here[known].astype(np.float64) - least) / (float(most) - least)
        found[known] = (NEXT * part).astype(np.int64)
    found[first] = BEST
    return [int(score) for score in found.tolist()]


def _together(books: Books, seats: Sequence[Seat], fits: BoolArray, namespace: str, names: Sequence[str]) -> BoolArray:
    """Where all asks of a pod fit at once. Nodes with an idle GPU for each need no trial."""
    cluster = books.cluster
    devices = sum(seat.ask.devices for seat in seats)
    free = all(seat.ask.plain and not seat.ask.models for seat in seats) and not cluster.labels.exclusive
    roomy = fits & (cluster.idle_count >= devices) & free & _all_hold(books, seats)
    for name in names:
        number = cluster.index.get(name, -1)
        if number >= 0 and fits[number] and not roomy[number]:
            fits[number] = tried(books, seats, name, namespace)
    return fits


def _all_hold(books: Books, seats: Sequence[Seat]) -> BoolArray:
    """Nodes all of whose devices have the memory that any of the asks wants on an idle one."""
    most = max(seat.ask.gpu_mib for seat in seats)
    sizes = books.cluster.size_mib
    return np.asarray(np.where(sizes >= 0, sizes >= most, True).all(axis=1))


def tried(books: Books, seats: Sequence[Seat], node: str, namespace: str) -> bool:
    """Whether the asks fit on the node one after another; the books are as before afterwards."""
    done: list[str] = []
    try:
        for number, seat in enumerate(seats):
            ask = gpu_only(seat.ask)
            placed = books.decider.place_on(ask, node, namespace)
            if isinstance(placed, Refusal):
                return False
            name = f"{namespace}/~trial/{number}"
            books.cluster.reserve(name, placed, ask)
            done.append(name)
        return True
    finally:
        for name in done:
            books.cluster.release(name)


def _reasons(
    books: Books, seats: Sequence[Seat], each: Sequence[BoolArray], fits: BoolArray, namespace: str
) -> tuple[BoolArray, list[str]]:
    """For each node: whether it could never take the pod, and the sentence why it can not now."""
    cluster = books.cluster
    texts = ["the containers fit alone but not together"] * len(fits)
    never = np.zeros(len(fits), dtype=np.bool_)
    for seat, alone in zip(seats, each, strict=True):
        lasting = _suited(books, seat.ask) < max(seat.ask.devices, 1)
        never |= lasting
        failing = ~alone & ~fits
        quota, closed = _by_quota(books, seat.ask, namespace)
        for chosen, text in (
            (failing & lasting, _sentence(seat.ask, lasting=True, open_=True)),
            (failing & ~lasting & ~cluster.open, _sentence(seat.ask, lasting=False, open_=False)),
            (failing & ~lasting & cluster.open & ~closed, _sentence(seat.ask, lasting=False, open_=True)),
            (failing & ~lasting & cluster.open & closed, quota),
        ):
            for number in np.flatnonzero(chosen):
                texts[number] = text
    no_gpu = cluster.gpu_count == 0
    for number in np.flatnonzero(no_gpu):
        texts[number] = "has no GPU"
    return never | no_gpu, texts


def _by_quota(books: Books, ask: Ask, namespace: str) -> tuple[str, BoolArray]:
    """Why the namespace may have no more, and the nodes that have devices for the ask only of such models: bool [N]."""
    cluster, quotas = books.cluster, books.decider.quotas
    reasons = quotas.closed_reasons(cluster, namespace, gpu_only(ask)) if quotas is not None else {}
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
    return np.asarray(good.sum(axis=1))


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
    return f"has not {' and '.join(asked)}{labels}"

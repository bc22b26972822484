"""Which GPUs of one machine to take together, and which one to take alone.

A set costs what its pairs cost. Among the sets that cost least, the one is taken that leaves most behind: first the
cheapest pairing of the rest, then its nearest four, then its nearest eight. Ties that remain fall to the lowest ids.

The search is exact for any 16 GPUs and for larger machines with few kinds of them. GPUs that no pair cost tells apart
are interchangeable, so only the first few of each kind are tried: on a uniform NVSwitch machine one candidate remains,
on a mesh of sixteen at most 12,870. Answers are remembered
by (topology, free GPUs, size): a cluster has few kinds of machines, and they are often in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Final

from aliquot.model.errors import UserError
from aliquot.topology.machine import Topology

EXACT_STATES: Final = 1 << 16
"""Up to so many states (product over kinds of free GPUs + 1; any 16 GPUs) the search is exact; above, it is greedy."""
_REMEMBERED: Final = 1 << 15
_SIZES: Final = (4, 8)
"""Sizes of later jobs, besides pairs, for which the nearest set is kept."""
_TIES_MAX: Final = 256
"""So many sets of equal cost, the lowest ids first, are judged by what they leave; 8 GPUs have at most 70."""


class NotEnoughGpus(UserError):
    """More GPUs are asked for than are free, or an index that the machine does not have."""


def set_cost(topology: Topology, gpus: Collection[int]) -> int:
    """Sum of the costs of all pairs of a set; 0 for fewer than two."""
    return sum(topology.cost[a][b] for a, b in combinations(gpus, 2))


def best_set(topology: Topology, free: Collection[int], n: int) -> tuple[int, ...]:
    """The `n` of the `free` GPUs that together cost least and leave most, ascending.

    Raises:
        NotEnoughGpus: n is not 1 to the number of free GPUs, or a free index is not the machine's.
    """
    mask = _mask(topology, free)
    if not 1 <= n <= mask.bit_count():
        count = mask.bit_count()
        allowed = f"ask for 1 to {count}" if count else "free one first"
        raise NotEnoughGpus(f"{n} GPUs: {count} of {topology.count} are wholly free; {allowed}")
    return _best(topology, mask, n)


def singular(
    topology: Topology,
    free: Collection[int],
    used: Collection[int],
    *,
    tie: Callable[[Sequence[int]], int] | None = None,
) -> int:
    """One wholly free GPU, so that intact groups stay intact.

    First choice is a GPU in a group of siblings that is already broken, in the group with the fewest free GPUs; else
    the GPU with the least access cost, in the smallest subtree that has one. `used` are GPUs on which anything runs,
    also in part. `tie` picks one of several equally good ones (a seeded `random.Random(7).choice`); the lowest id
    without it. On a machine whose links are no tree, the GPU is taken whose going leaves most behind.

    Source: after Gaia Scheduler (ISPA 2018), Algorithm 3, which asks for siblings with nothing left; a group counts as
    broken here once anything runs in it. The policy `gaia` has the rule as printed.

    Raises:
        NotEnoughGpus: no GPU is free, or an index is not the machine's.
    """
    mask = _mask(topology, free)
    _mask(topology, used)
    if not mask:
        raise NotEnoughGpus("no GPU is wholly free; free one, or ask for a part of one")
    keys = dict(_singular_keys(topology, mask, frozenset(used)))
    least = min(keys.values())
    equal = sorted(gpu for gpu, key in keys.items() if key == least)
    return tie(equal) if tie is not None else equal[0]


def nearest(topology: Topology, to: Collection[int], among: Collection[int]) -> list[int]:
    """The GPUs of `among`, those first that talk cheapest with all of `to`; ties to the lowest id."""
    return sorted(among, key=lambda gpu: (sum(topology.cost[gpu][other] for other in to), gpu))


def left_behind(topology: Topology, free: Collection[int]) -> tuple[int, ...]:
    """What later jobs can still have of `free`, lower is better: cost of the cheapest pairing, of the nearest 4 and 8.

    Comparable only between equal numbers of free GPUs.
    """
    return _left_behind(topology, _mask(topology, free))


def _singular_keys(topology: Topology, mask: int, used: frozenset[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """For each free GPU what decides, lower first."""
    if not topology.is_tree:
        for gpu in _bits(mask):
            yield gpu, _left_behind(topology, mask & ~(1 << gpu))
        return
    for node in topology.tree.walk():
        leaves = [child.gpu for child in node.children if child.gpu is not None]
        if node.gpu is not None and node is topology.tree:
            yield node.gpu, (0,)
        broken = any(gpu in used for gpu in node.gpus)
        for gpu in leaves:
            if mask >> gpu & 1:
                free_below = sum(mask >> other & 1 for other in node.gpus)
                first = (0, free_below, node.level_cost) if broken else (1, node.level_cost, 0)
                # Free GPUs in each subtree that holds the GPU, from below the root: lower first is the smallest.
                free_from_root, below = [], topology.tree
                while below.gpu is None:
                    below = next(child for child in below.children if gpu in child.gpus)
                    free_from_root.append(sum(mask >> other & 1 for other in below.gpus))
                yield gpu, (*first, *free_from_root)


@lru_cache(maxsize=_REMEMBERED)
def _best(topology: Topology, mask: int, n: int) -> tuple[int, ...]:
    sets = _cheapest(topology, mask, n)[1]
    if len(sets) == 1:
        return sets[0]
    return min(sets, key=lambda each: (_left_behind(topology, mask & ~sum(1 << gpu for gpu in each)), each))


def _exact(kinds: list[list[int]]) -> bool:
    return prod(len(kind) + 1 for kind in kinds) <= EXACT_STATES


def _kinds(topology: Topology, mask: int) -> list[list[int]]:
    """Free GPUs grouped so that any two of a group cost the same to every other free GPU."""
    cost, free = topology.cost, list(_bits(mask))
    kinds: list[list[int]] = []
    for gpu in free:
        for kind in kinds:
            one = kind[0]
            if all(cost[gpu][other] == cost[one][other] for other in free if other not in (gpu, one)):
                kind.append(gpu)
                break
        else:
            kinds.append([gpu])
    return kinds


@lru_cache(maxsize=_REMEMBERED)
def _left_behind(topology: Topology, mask: int) -> tuple[int, ...]:
    kinds = _kinds(topology, mask)
    if _exact(kinds):
        pairs = _Pairing(topology, kinds).cost(tuple(len(kind) for kind in kinds))
    else:
        pairs = _paired_greedily(topology, list(_bits(mask)))
    return pairs, *(_cheapest(topology, mask, size)[0] for size in _SIZES if size <= mask.bit_count())


@lru_cache(maxsize=_REMEMBERED)
def _cheapest(topology: Topology, mask: int, n: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The least cost of n free GPUs, and the sets that have it: one of each kind, the lowest ids of each."""
    kinds = _kinds(topology, mask)
    if not _exact(kinds):
        found = _grown(topology, list(_bits(mask)), n)
        return set_cost(topology, found), (found,)
    search = _Search(topology, kinds, n)
    return search.least, tuple(search.sets[:_TIES_MAX])


class _Search:
    """Depth first over free GPUs by id, cutting off what already costs more than the best."""

    def __init__(self, topology: Topology, kinds: list[list[int]], n: int) -> None:
        self._cost = topology.cost
        self._kind = {gpu: at for at, kind in enumerate(kinds) for gpu in kind}
        self._free = sorted(self._kind)
        self._n = n
        self.least = set_cost(topology, _grown(topology, self._free, n))
        self.sets: list[tuple[int, ...]] = []
        self._extend([], 0, 0, frozenset())

    def _extend(self, chosen: list[int], start: int, cost: int, closed: frozenset[int]) -> None:
        """`closed` are the kinds of which a GPU was passed over: a later one of the same kind would be no new set."""
        missing = self._n - len(chosen)
        if not missing:
            if cost < self.least:
                self.least, self.sets = cost, []
            self.sets.append(tuple(chosen))
            return
        for at in range(start, len(self._free) - missing + 1):
            gpu = self._free[at]
            kind = self._kind[gpu]
            if kind not in closed:
                more = cost + sum(self._cost[gpu][other] for other in chosen)
                if more <= self.least:
                    chosen.append(gpu)
                    self._extend(chosen, at + 1, more, closed)
                    chosen.pop()
                closed |= {kind}


class _Pairing:
    """The cheapest way to take as many disjoint pairs as there are, over counts of each kind."""

    def __init__(self, topology: Topology, kinds: list[list[int]]) -> None:
        self._between = [
            [
                topology.cost[a[0]][b[0]] if a is not b else topology.cost[a[0]][a[-1]] if len(a) > 1 else 0
                for b in kinds
            ]
            for a in kinds
        ]
        self._known: dict[tuple[int, ...], int] = {}

    def cost(self, left: tuple[int, ...]) -> int:
        """Of `left[k]` GPUs of kind k; an odd one stays alone."""
        if sum(left) < 2:
            return 0
        if left not in self._known:
            first = next(kind for kind, count in enumerate(left) if count)
            rest = _less(left, first)
            options = [
                self._between[first][other] + self.cost(_less(rest, other)) for other, count in enumerate(rest) if count
            ]
            if sum(left) % 2:
                options.append(self.cost(rest))
            self._known[left] = min(options)
        return self._known[left]


def _paired_greedily(topology: Topology, free: list[int]) -> int:
    """What pairs cost when the cheapest pair is taken again and again."""
    left, total = set(free), 0
    for a, b in sorted(combinations(free, 2), key=lambda pair: topology.cost[pair[0]][pair[1]]):
        if a in left and b in left:
            left -= {a, b}
            total += topology.cost[a][b]
    return total


def _less(counts: tuple[int, ...], kind: int) -> tuple[int, ...]:
    return (*counts[:kind], counts[kind] - 1, *counts[kind + 1 :])


def _grown(topology: Topology, free: Sequence[int], n: int) -> tuple[int, ...]:
    """A good set: grown from every GPU by the cheapest next one, the best of these improved by single swaps."""
    cost = topology.cost

    def grow(first: int) -> list[int]:
        grown = [first]
        while len(grown) < n:
            rest = [gpu for gpu in free if gpu not in grown]
            grown.append(min(rest, key=lambda gpu: (sum(cost[gpu][other] for other in grown), gpu)))
        return grown

    best = min((grow(gpu) for gpu in free), key=lambda each: (set_cost(topology, each), sorted(each)))
    while True:
        swaps = ([*(g for g in best if g != out), into] for out in best for into in free if into not in best)
        better = min(swaps, key=lambda each: set_cost(topology, each), default=best)
        if set_cost(topology, better) >= set_cost(topology, best):
            return tuple(sorted(best))
        best = better


def _mask(topology: Topology, gpus: Collection[int]) -> int:
    mask = 0
    for gpu in gpus:
        if not 0 <= gpu < topology.count:
            raise NotEnoughGpus(f"GPU {gpu}: this machine has GPUs 0 to {topology.count - 1}")
        mask |= 1 << gpu
    return mask


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low

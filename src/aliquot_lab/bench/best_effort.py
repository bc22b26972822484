"""What NVIDIA's stock device plugin would choose: the best-effort policy of go-gpuallocator, for comparison.

Every way to divide the free GPUs into sets of the asked size is scored (the last set may be short), the division with
the highest total wins, and of it the best full set is taken. A pair scores 100 for each NVLink and, for its way over
PCIe, 10 (other CPU), 20 (same CPU), 30 (host bridge), 40 (several switches) or 50 (one switch). The first of equals
wins. A request for one GPU gets the first free one.

Source: NVIDIA/go-gpuallocator, gpuallocator/besteffort_policy.go (rules read, code our own). A matrix with NVLink
labels hides the way over PCIe; the CPU (NUMA node) stands for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

from aliquot.topology import Topology
from aliquot.topology.links import nvlinks

NVLINK_SCORE: Final = 100
PCIE_SCORE: Final = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
LARGEST: Final = 8
"""Free GPUs beyond which the number of divisions explodes: eight in fours are 35, sixteen in fours 2,627,625."""


def pair_score(topology: Topology, a: int, b: int) -> int:
    """Points of one pair, higher is nearer."""
    label = topology.links[a][b]
    if label in PCIE_SCORE:
        return PCIE_SCORE[label]
    same_cpu = topology.numa[a] == topology.numa[b] and set(topology.cores[a]) == set(topology.cores[b])
    return NVLINK_SCORE * nvlinks(label) + PCIE_SCORE["NODE" if same_cpu else "SYS"]


def best_effort(topology: Topology, free: Collection[int], n: int) -> tuple[int, ...]:
    """The `n` GPUs that the stock plugin would prefer of `free`.

    Raises:
        ValueError: fewer than n are free, or more than `LARGEST`.
    """
    if not 1 <= n <= len(free) <= LARGEST:
        raise ValueError(f"{n} of {len(free)} free GPUs; at most {LARGEST} can be divided")
    return _best_effort(topology, tuple(sorted(free)), n)


@lru_cache(maxsize=1 << 14)
def _best_effort(topology: Topology, free: tuple[int, ...], n: int) -> tuple[int, ...]:
    if n == 1:
        return free[:1]
    score = {(a, b): pair_score(topology, a, b) for a, b in combinations(free, 2)}

    def points(gpus: Sequence[int]) -> int:
        return sum(score[pair] for pair in combinations(gpus, 2))

    padding = -len(free) % n
    best = max(_divisions((*free, *[None] * padding), n, padding), key=lambda sets: sum(map(points, sets)))
    return max((gpus for gpus in best if len(gpus) == n), key=points)


def _divisions(left: tuple[int | None, ...], n: int, padding: int) -> Iterator[list[tuple[int, ...]]]:
    """Every division into sets of n, in order of the lowest ids; the padding (None) is all in one set, a short one."""
    if len(left) == n:
        yield [_real(left)]
        return
    for others in combinations(left[1:], n - 1):
        chosen = (left[0], *others)
        if chosen.count(None) in (0, padding):
            rest = tuple(gpu for gpu in left if gpu not in chosen)
            yield from ([_real(chosen), *sets] for sets in _divisions(rest, n, padding))


def _real(gpus: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(gpu for gpu in gpus if gpu is not None)

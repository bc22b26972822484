"""What choosing by links is worth while jobs come and go: the bandwidth of 2- and 4-GPU jobs, by three ways to choose.

One machine, jobs of 1, 2 and 4 GPUs in a queue, first come first served. When a job starts depends on how many GPUs
are free and never on which, so every policy serves the very same jobs at the same times and only the sets differ.
Bandwidth is modelled from the labels (`aliquot.topology.bandwidth_gbps`); it compares sets, it predicts no machine.

What NVIDIA's stock device plugin would choose is `best_effort`, the policy of go-gpuallocator. Every way to divide
the free GPUs into sets of the asked size is scored (the last set may be short), the division with the highest total
wins, and of it the best full set is taken. A pair scores 100 for each NVLink and, for its way over PCIe, 10 (other
CPU), 20 (same CPU), 30 (host bridge), 40 (several switches) or 50 (one switch). The first of equals wins. A request
for one GPU gets the first free one.

Source: NVIDIA/go-gpuallocator, gpuallocator/besteffort_policy.go (rules read, code our own). A matrix with NVLink
labels hides the way over PCIe; the CPU (NUMA node) stands for it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Any, Final

from aliquot.topology import Topology, bandwidth_gbps, best_set
from aliquot.topology.machine import nvlinks

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


Choose = Callable[[Topology, Sequence[int], int], tuple[int, ...]]

SIZES: Final = {1: 0.5, 2: 0.3, 4: 0.2}
"""Part of the jobs that ask for so many GPUs."""
LOAD: Final = 0.8
"""GPU time asked for, as a part of what the machine has."""


def first_index(topology: Topology, free: Sequence[int], n: int) -> tuple[int, ...]:
    """The lowest ids, as a scheduler takes them that counts GPUs."""
    return tuple(sorted(free)[:n])


POLICIES: Final[Mapping[str, Choose]] = {"first-index": first_index, "best-effort": best_effort, "aliquot": best_set}


@dataclass(frozen=True)
class ChurnJob:
    """`gpus` for `service_s`, asked for at `arrival_s`."""

    arrival_s: float
    service_s: float
    gpus: int


@dataclass(frozen=True)
class Given:
    """Mean over the jobs of one size: of all pairs of the set and of its slowest pair, in modelled GB/s."""

    jobs: int
    mean_pair_gbps: float
    slowest_pair_gbps: float


def workload(gpus: int, jobs: int, seed: int) -> list[ChurnJob]:
    """Poisson arrivals and exponential service of mean 1 s at `LOAD` of a machine with so many GPUs."""
    draw = Random(seed)
    sizes = {size: part for size, part in SIZES.items() if size <= gpus}
    mean_gpus = sum(size * part for size, part in sizes.items()) / sum(sizes.values())
    rate = LOAD * gpus / mean_gpus
    now_s, made = 0.0, []
    for _ in range(jobs):
        now_s += draw.expovariate(rate)
        size = draw.choices(list(sizes), list(sizes.values()))[0]
        made.append(ChurnJob(now_s, draw.expovariate(1.0), size))
    return made


def serve(topology: Topology, jobs: Sequence[ChurnJob], choose: Choose) -> Iterator[tuple[ChurnJob, tuple[int, ...]]]:
    """The GPUs each job gets, in the order of starting."""
    free = set(range(topology.count))
    running: list[tuple[float, tuple[int, ...]]] = []
    now_s = 0.0
    for job in jobs:
        now_s = max(now_s, job.arrival_s)
        while running and (running[0][0] <= now_s or len(free) < job.gpus):
            end_s, gone = heapq.heappop(running)
            now_s = max(now_s, end_s)
            free.update(gone)
        chosen = choose(topology, sorted(free), job.gpus)
        free.difference_update(chosen)
        heapq.heappush(running, (now_s + job.service_s, chosen))
        yield job, chosen


def given(topology: Topology, jobs: Sequence[ChurnJob], choose: Choose) -> dict[int, Given]:
    """What the jobs of each size above one got."""
    means: dict[int, list[float]] = defaultdict(list)
    slowest: dict[int, list[float]] = defaultdict(list)
    for job, gpus in serve(topology, jobs, choose):
        if job.gpus > 1:
            pairs = [bandwidth_gbps(topology.links[a][b]) for a, b in combinations(gpus, 2)]
            means[job.gpus].append(fmean(pairs))
            slowest[job.gpus].append(min(pairs))
    return {size: Given(len(means[size]), fmean(means[size]), fmean(slowest[size])) for size in sorted(means)}


def best_possible(topology: Topology, size: int) -> float:
    """Mean pair bandwidth of the best set of an empty machine, in GB/s."""
    chosen = best_set(topology, range(topology.count), size)
    return fmean(bandwidth_gbps(topology.links[a][b]) for a, b in combinations(chosen, 2))


def compare(machines: Mapping[str, Topology], *, jobs: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row per machine, size below the machine's, and policy; `kept` is the part of the best possible bandwidth."""
    rows: list[dict[str, Any]] = []
    for name, topology in machines.items():
        works = [workload(topology.count, jobs, seed) for seed in seeds]
        for policy, choose in POLICIES.items():
            runs = [given(topology, work, choose) for work in works]
            for size in (size for size in sorted(runs[0]) if size < topology.count):  # a whole machine is no choice
                mean = fmean(run[size].mean_pair_gbps for run in runs)
                rows.append(
                    {
                        "machine": name,
                        "gpus": topology.count,
                        "size": size,
                        "policy": policy,
                        "jobs": sum(run[size].jobs for run in runs),
                        "mean_pair_gbps": round(mean, 2),
                        "slowest_pair_gbps": round(fmean(run[size].slowest_pair_gbps for run in runs), 2),
                        "kept": round(mean / best_possible(topology, size), 4),
                    }
                )
    return rows

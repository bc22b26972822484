"""What choosing by links is worth while jobs come and go: the bandwidth of 2- and 4-GPU jobs, by three ways to choose.

One machine, jobs of 1, 2 and 4 GPUs in a queue, first come first served. When a job starts depends on how many GPUs
are free and never on which, so every policy serves the very same jobs at the same times and only the sets differ.
Bandwidth is modelled from the labels (`aliquot.topology.bandwidth_gbps`); it compares sets, it predicts no machine.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Any, Final

from aliquot.topology import Topology, bandwidth_gbps, best_set
from aliquot_lab.bench.best_effort import best_effort

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

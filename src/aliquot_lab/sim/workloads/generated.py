"""Generators of jobs: KubeShare's inference jobs, and a mix of sizes; Poisson arrivals both.

KubeShare's have a demand drawn from a normal distribution, cut to what a GPU has; service time and base rate are not in
the paper: 38.4 s and 16.7 jobs a minute give its Kubernetes curve (50 jobs a minute on 32 GPUs from factor 3 on).

Source: KubeShare (HPDC'20), 5.3; the two numbers are inferred from its Fig. 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from aliquot.model.quantities import MILLI
from aliquot.model.requests import GpuRequest
from aliquot.placement.asks import Ask
from aliquot_lab.sim.jobs import Job, Workload
from aliquot_lab.sim.kernel import us

KUBESHARE_SERVICE_S: Final = 38.4
KUBESHARE_BASE_PER_MIN: Final = 16.7


@dataclass(frozen=True)
class KubeShareJobs:
    """Number of jobs, arrivals a minute, mean and deviation of the demand in milli-GPU, time each one runs."""

    jobs: int = 1000
    per_min: float = KUBESHARE_BASE_PER_MIN
    mean_milli: float = 300.0
    sd_milli: float = 140.0
    service_s: float = KUBESHARE_SERVICE_S
    whole: bool = False


def kubeshare(how: KubeShareJobs, seed: int) -> Workload:
    """Jobs as in KubeShare's throughput experiments; `whole` gives each a GPU of its own, as Kubernetes does."""
    rng = np.random.Generator(np.random.PCG64(seed))
    at_s = np.cumsum(rng.exponential(60 / how.per_min, how.jobs))
    milli = np.clip(np.rint(rng.normal(how.mean_milli, how.sd_milli, how.jobs)), 1, MILLI).astype(int)
    jobs = []
    for number, (when_s, demand) in enumerate(zip(at_s.tolist(), milli.tolist(), strict=True)):
        jobs.append(Job(f"{number}", share_of(MILLI if how.whole else demand), us(when_s), us(how.service_s)))
    return Workload("kubeshare", jobs)


@dataclass(frozen=True)
class MixJobs:
    """Jobs of many sizes (milli-GPU, weight): how many, arrivals a minute, mean of the time they run."""

    jobs: int = 1000
    per_min: float = 60.0
    service_s: float = 600.0
    sizes: tuple[tuple[int, float], ...] = ((100, 2), (250, 3), (500, 3), (1000, 4), (2000, 1), (4000, 0.3))


def mix(how: MixJobs, seed: int) -> Workload:
    """Jobs of random sizes (milli-GPU), from a tenth of a GPU to several."""
    rng = np.random.Generator(np.random.PCG64(seed))
    at_s = np.cumsum(rng.exponential(60 / how.per_min, how.jobs))
    weights = np.array([weight for _, weight in how.sizes])
    sizes = rng.choice([milli for milli, _ in how.sizes], how.jobs, p=weights / weights.sum())
    service = rng.exponential(how.service_s, how.jobs)
    jobs = [
        Job(f"{number}", share_of(int(milli)), us(float(when_s)), max(1, us(float(ran_s))))
        for number, (when_s, milli, ran_s) in enumerate(zip(at_s, sizes, service, strict=True))
    ]
    return Workload("mix", jobs)


def share_of(milli: int) -> Ask:
    """An ask for so many milli-GPU and nothing else."""
    return Ask(GpuRequest(milli))

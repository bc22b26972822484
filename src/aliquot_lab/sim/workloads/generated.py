"""Generators of jobs: KubeShare's inference jobs, and a mix of sizes; Poisson arrivals both.

KubeShare's have a demand drawn from a normal distribution, cut to what a GPU has; service time and base rate are not in
the paper: 38.4 s and 16.7 jobs a minute give its Kubernetes curve (50 jobs a minute on 32 GPUs from factor 3 on).

`generated` reads them as people name them: `kubeshare:jobs=2000,rate=150,mean=30`, `mix:jobs=500`.

Source: KubeShare (HPDC'20), 5.3; the two numbers are inferred from its Fig. 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from aliquot.model.errors import UserError
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


MAX_JOBS: Final = 1_000_000
OPTIONS: Final = {
    "jobs": ("jobs", 1.0), "rate": ("per_min", 1.0), "mean": ("mean_milli", 10.0), "sd": ("sd_milli", 10.0),
    "service": ("service_s", 1.0), "whole": ("whole", 1.0),
}  # fmt: skip
"""Of each option the field it sets, and the factor from the option's unit to the field's."""
GENERATORS: Final = {
    name: {option: to for option, to in OPTIONS.items() if to[0] in how.__dataclass_fields__}
    for name, how in (("kubeshare", KubeShareJobs), ("mix", MixJobs))
}


def is_spec(text: str) -> bool:
    """Whether a trace is the name of a generator."""
    return text.partition(":")[0] in GENERATORS


def generated(text: str, seed: int) -> Workload:
    """The jobs of a generator; rates are jobs a minute, mean and sd percent of a GPU, service seconds.

    Raises:
        UserError: an unknown option, or a value that is no finite number above 0.
    """
    name, _, rest = text.partition(":")
    fields = GENERATORS[name]
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        option, _, value = part.partition("=")
        if option not in fields:
            raise UserError(f"--trace {text}: {name} has no option {option!r}; it has {', '.join(fields)}")
        field, factor = fields[option]
        values[field] = _number(text, option, value) * factor
    return _made(name, values, seed)


def _made(name: str, values: dict[str, float], seed: int) -> Workload:
    jobs = int(values.pop("jobs", 1000))
    if name == "mix":
        return mix(MixJobs(jobs=jobs, **values), seed)  # type: ignore[arg-type]
    whole = bool(values.pop("whole", 0))
    return kubeshare(KubeShareJobs(jobs=jobs, whole=whole, **values), seed)


def _number(text: str, option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise UserError(f"--trace {text}: {option} {value!r} is not a number") from None
    zero_allowed = option in ("sd", "whole")
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero_allowed) or number > 1e9:
        least = "at least 0" if zero_allowed else "above 0"
        raise UserError(f"--trace {text}: {option} {value} must be a number {least} and at most 1,000,000,000")
    if option == "jobs" and (number != int(number) or number > MAX_JOBS):
        raise UserError(f"--trace {text}: jobs {value} must be a whole number up to {MAX_JOBS}")
    return number

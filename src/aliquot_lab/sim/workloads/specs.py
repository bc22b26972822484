"""Generators as people name them: `kubeshare`, `kubeshare:jobs=2000,rate=150,mean=30`, `mix:jobs=500`."""

from __future__ import annotations

import math
from typing import Final

from aliquot.model.errors import UserError
from aliquot_lab.sim.jobs import Workload
from aliquot_lab.sim.workloads.generated import KubeShareJobs, MixJobs, kubeshare, mix

MAX_JOBS: Final = 1_000_000
# name of the option -> (field, factor from the option's unit to the field's)
_KUBESHARE: Final = {
    "jobs": ("jobs", 1.0),
    "rate": ("per_min", 1.0),
    "mean": ("mean_milli", 10.0),
    "sd": ("sd_milli", 10.0),
    "service": ("service_s", 1.0),
    "whole": ("whole", 1.0),
}
_MIX: Final = {"jobs": ("jobs", 1.0), "rate": ("per_min", 1.0), "service": ("service_s", 1.0)}
GENERATORS: Final = {"kubeshare": _KUBESHARE, "mix": _MIX}


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

"""What workloads used, by namespace, controller and container: percentiles of the minutes that the history has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from aliquot.model.ids import split_key

RUN: Final = "Run"
"""The controller of all runs of a machine; each of them is a workload of its own here."""


class Percentiles(msgspec.Struct, frozen=True):
    """A quantity over the recorded minutes: so much or less in 50 and in 95 of 100, and the most."""

    p50: int = 0
    p95: int = 0
    peak: int = 0


class ControllerUse(msgspec.Struct, frozen=True):
    """What the tenants of a controller's container used, each on each of its GPUs.

    `recorded_s` is the time that is recorded of all of them together, `idle_s` that of the minutes without work.
    """

    namespace: str
    controller: str
    container: str
    recorded_s: int
    idle_s: int
    milli: Percentiles
    memory_mib: Percentiles


class Uses(msgspec.Struct, frozen=True):
    """The uses of a time, by namespace, controller and container; `note` says why something is missing."""

    since_s: int
    until_s: int
    uses: list[ControllerUse]
    note: str = ""


def names_of_use(tenant: str, owner: str) -> tuple[str, str, str]:
    """Namespace, controller and container of a tenant: `default/a` of `SharePod/a`, `lab/web-7/main`, a run `train`."""
    namespace, rest = split_key(tenant)
    if owner == RUN:
        return namespace, f"{RUN}/{rest}", ""
    return namespace, owner, rest.partition("/")[2].partition("#")[0].partition("@")[0]


def spread(sums: Mapping[int, int]) -> Percentiles:
    """Percentiles of values, each with its weight."""
    total, found, so_far, peak = sum(sums.values()), [0, 0], 0, 0
    for value in sorted(value for value, weight in sums.items() if weight > 0):
        for n, percent in enumerate((50, 95)):
            if so_far * 100 < percent * total:
                found[n] = value
        so_far += sums[value]
        peak = value
    return Percentiles(found[0], found[1], peak)

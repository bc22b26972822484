"""The records of the history: who held a GPU when, and GPU-hours. Units as in `aliquot.web.api`."""

from __future__ import annotations

import msgspec


class Lane(msgspec.Struct, frozen=True):
    """One tenant on one GPU over time, each list as long as the timeline's `at_s`; None where nothing was recorded.

    `used`, `promised`, `lent` and `waited` are parts of the recorded time, of which 1 is the whole GPU; `lent` is what
    was promised, not used, and used by others. `memory_mib` is a mean; `kept_percent` is None where no window counted.
    """

    tenant: str
    owner: str
    used: list[float | None]
    promised: list[float | None]
    lent: list[float | None]
    waited: list[float | None]
    memory_mib: list[float | None]
    kept_percent: list[float | None]
    handovers: list[int | None]


class Timeline(msgspec.Struct, frozen=True):
    """One GPU over time, oldest first; `at_s` is when each step begins, `recorded` how much of it was recorded.

    `note` says why something is missing, `source` where it was recorded if not here.
    """

    gpu: str
    since_s: int
    until_s: int
    step_s: int
    at_s: list[int]
    recorded: list[float]
    lanes: list[Lane]
    note: str = ""
    source: str = ""


class Turn(msgspec.Struct, frozen=True):
    """From when to when a tenant held a GPU; the end is from when on its work had ended."""

    tenant: str
    since_s: float
    until_s: float


class Turns(msgspec.Struct, frozen=True):
    """The turns on one GPU in the last minute, oldest first; `known_s` is from when on all of them are known."""

    gpu: str
    since_s: float
    until_s: float
    known_s: float
    turns: list[Turn]


class HourLine(msgspec.Struct, frozen=True):
    """GPU-hours of one namespace, controller and model, or of what they were summed by.

    `used` is `borrowed`, beyond the promise, and the rest within it. Promised and not used is `lent`, where others
    used it, and `idle`. `waited` is the time in which work of theirs waited for the GPU.
    """

    namespace: str
    owner: str
    model: str
    promised: float
    used: float
    borrowed: float
    lent: float
    idle: float
    waited: float


class Hours(msgspec.Struct, frozen=True):
    """GPU-hours from `since_s` to `until_s`, the largest promise first; `recorded` are those of the GPUs themselves.

    `note` says why something is missing, `source` where it was recorded if not here.
    """

    since_s: int
    until_s: int
    recorded: float
    lines: list[HourLine]
    total: HourLine
    note: str = ""
    source: str = ""

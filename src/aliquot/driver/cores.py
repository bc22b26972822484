"""CPU cores near a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from aliquot.model.errors import UserError


class TooManyCores(UserError):
    """More cores were asked than this process may use."""


def core_list(cores: list[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2,5`."""
    parts: list[str] = []
    start = previous = None
    for core in [*sorted(cores), None]:
        if start is not None and core is not None and previous is not None and core == previous + 1:
            previous = core
            continue
        if start is not None:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = core
    return ",".join(parts)


def read_core_list(text: str) -> list[int]:
    """`0-2,5` -> `[0, 1, 2, 5]`; what the kernel writes in a cpulist."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def least_used(cores: Iterable[int], count: int, used: Mapping[int, int]) -> tuple[int, ...]:
    """So many of these cores, those first that the fewest are bound to; `used` counts them by core."""
    return tuple(sorted(cores, key=lambda core: (used.get(core, 0), core))[:count])


def nearest_cores(count: int, near: list[int] | None = None, used: Mapping[int, int] | None = None) -> str:
    """So many of the cores this process may use, as a list for the hook: those in `near` first, the least used first.

    Raises:
        TooManyCores: there are fewer.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise TooManyCores(f"--cpu-bind {count}: this process may use {len(allowed)} CPU cores; ask for at most those")
    chosen = least_used([core for core in allowed if near and core in near], count, used or {})
    rest = [core for core in allowed if core not in chosen]
    return core_list([*chosen, *least_used(rest, count - len(chosen), used or {})])

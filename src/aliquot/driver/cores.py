"""CPU cores near a GPU."""

from __future__ import annotations

import os

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


def nearest_cores(count: int, near: list[int] | None = None) -> str:
    """So many of the cores this process may use, those in `near` first, as a list for the hook.

    Raises:
        TooManyCores: there are fewer.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise TooManyCores(f"--cpu-bind {count}: this process may use {len(allowed)} CPU cores; ask for at most those")
    preferred = [core for core in allowed if near and core in near]
    rest = [core for core in allowed if core not in preferred]
    return core_list([*preferred, *rest][:count])

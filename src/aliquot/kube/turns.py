"""Long work in an event loop, cut into slices: questions, leases and watches wait for no more than one of them."""

from __future__ import annotations

import asyncio
from typing import Final

SLICE: Final = 100
"""Objects that are looked at before others have their turn: some milliseconds."""


async def turn(number: int) -> None:
    """Let others have their turn if the object of this number, from 1, is the last of a slice."""
    if number % SLICE == 0:
        await asyncio.sleep(0)

"""Yield to the event loop every N objects so that long loops do not block requests or lease renewal."""

from __future__ import annotations

import asyncio
from typing import Final

SLICE: Final = 100
"""Objects processed before other tasks run: some milliseconds."""


async def turn(number: int) -> None:
    """Let others have their turn if the object of this number, from 1, is the last of a slice."""
    if number % SLICE == 0:
        await asyncio.sleep(0)

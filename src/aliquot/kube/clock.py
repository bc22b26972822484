"""Time, asked in one place so that tests can put a clock of theirs there."""

from __future__ import annotations

import asyncio
import datetime
import time


class Clock:
    """The machine's: two clocks and a way to wait.

    `monotonic_s` never goes back and is the only clock that decisions use; `wall` is for people.
    """

    def monotonic_s(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wall(self) -> datetime.datetime:
        """The date and time in UTC, which may be adjusted."""
        return datetime.datetime.now(datetime.UTC)

    async def sleep(self, wait_s: float) -> None:
        """Wait."""
        await asyncio.sleep(wait_s)


def micro_time(moment: datetime.datetime) -> str:
    """MicroTime of the API: `2026-01-02T03:04:05.000006Z`."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_time(moment: datetime.datetime) -> str:
    """Time of the API: `2026-01-02T03:04:05Z`."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

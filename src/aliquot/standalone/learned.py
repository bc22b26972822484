"""The file that keeps what a placement policy has learned across restarts of the engine.

Written beside, synced, renamed over the old one, and the folder synced: after a crash there is the old one or the new
one. At most once a minute while something new was learned, and at the end. A file that cannot be used causes a warning
and a cold start, never a failure; the next write replaces it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aliquot.lib.files import read_plain, write_whole
from aliquot.lib.log import Logger, Repeats
from aliquot.placement.policy import MAX_BYTES, BadMemory, Policy, pack, unpack

EVERY_S: Final = 60.0
log = Logger("standalone")


class LearnedFile:
    """What one policy has learned, in a folder; without a folder nothing is kept.

    `emulated` keeps what emulated GPUs taught apart from what this machine's own did.
    """

    def __init__(
        self,
        folder: Path | None,
        policy: Policy,
        *,
        emulated: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        kind = "-emulated" if emulated else ""
        name = re.sub(r"[^A-Za-z0-9.-]", "_", policy.name)
        self.path = None if folder is None else folder / f"learned-{name}{kind}.json"
        self._policy = policy
        self._there = pack(policy)  # of a policy that knows nothing yet: not worth a file
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._repeats = Repeats()

    def recall(self) -> None:
        """Restore the policy's state from the file, if there is one."""
        if self.path is None:
            return
        try:
            text = read_plain(self.path, MAX_BYTES).decode()
            unpack(self._policy, text)
            self._there = text
        except FileNotFoundError:
            return
        except (OSError, BadMemory, ValueError) as error:
            self._warn(f"{self.path} cannot be used: {_reason(error)}; placement learns anew")

    def due(self) -> str:
        """The text to write now: empty but once a minute, and while nothing new was learned."""
        if self.path is None or self._clock_s() < self._looked_s + EVERY_S:
            return ""
        return self.fresh()

    def fresh(self) -> str:
        """The text to write, empty if the file has it already."""
        self._looked_s = self._clock_s()
        text = "" if self.path is None else pack(self._policy)
        return "" if text == self._there else text

    def write(self, text: str) -> None:
        """Write a text to disk, unless it is empty; a failed write is reported once."""
        if not text or self.path is None:
            return
        try:
            write_whole(self.path, text.encode(), synced=True)
            self._there = text
            self._repeats.news("")
        except OSError as error:
            self._warn(f"{self.path} cannot be written ({_reason(error)}); what placement learns is lost at the end")

    def _warn(self, text: str) -> None:
        if self._repeats.news(text):
            log.warning(text)


def _reason(error: Exception) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)

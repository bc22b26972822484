"""Follows the node's driver: which generation a container gets, and when a new one is made.

A driver is replaced file by file, so a change counts once two looks have seen the same. New libraries beside a kernel
module that is still the old one do not work: as long as there is a generation of the loaded module's version, that one
is shown, and the new one after the module was loaded. A container keeps its generation, also when it is started again,
unless the loaded module would refuse it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from aliquot.node.volume.source import DriverSource, NoDriverFiles
from aliquot.node.volume.volume import DriverVolume, Generation, VolumeError

MAX_SKIPPED: Final = 64
"""Checks between two attempts at a driver that cannot be mirrored: one at first, then doubling."""


def nothing_loaded() -> str:
    """For a driver without a kernel module: an emulated one."""
    return ""


class NodeDriver:
    """The driver volume of a node, and what it is made from. Its methods block and may be called from any thread."""

    def __init__(
        self,
        volume: DriverVolume,
        find: Callable[[], DriverSource],
        loaded: Callable[[], str] = nothing_loaded,
    ) -> None:
        """`find` finds the driver, `loaded` returns the version of its kernel module."""
        self.volume = volume
        self._find = find
        self._loaded = loaded
        self._lock = threading.Lock()
        self._taken = ("", "")
        self._seen = ("", "")
        self._failed = ("", "")
        self._pause = self._rest = 0
        self.source = self._start()

    @property
    def current(self) -> Generation:
        """That for new containers."""
        assert self.volume.current is not None, "made at the start"
        return self.volume.current

    def refresh(self) -> Generation | None:
        """The current generation if it has changed; None while nothing changes, or the driver is missing.

        Raises:
            VolumeError: the driver changed and cannot be mirrored; the current one stays.
        """
        with self._lock:
            try:
                source = self._find()
                now = (source.fingerprint, self._loaded())
            except (NoDriverFiles, OSError):
                return None
            settled, self._seen = now == self._seen, now
            if now == self._taken or not settled or self._resting(now):
                return None
            before = self.current
            try:
                self._take(source, now)
            except (VolumeError, OSError):
                self._pause = self._rest = min(2 * self._pause or 1, MAX_SKIPPED)
                self._failed = now
                raise
            return self.current if self.current != before else None

    def shown(self, had: str, *, again: bool) -> Generation:
        """What a container with the generation `had` gets; `again` for one that may be running."""
        with self._lock:
            kept = self.volume.generation(had)
            if kept is None:
                return self.current
            loaded = "" if again else self._loaded()
            return self.current if loaded and kept.version != loaded == self.current.version else kept

    def prune(self, used: Collection[str]) -> list[str]:
        """See `DriverVolume.prune`."""
        with self._lock:
            return self.volume.prune(used)

    def _resting(self, now: tuple[str, str]) -> bool:
        """Whether this driver failed before and is not retried at this check: each attempt may copy all of it."""
        if now != self._failed:
            self._pause = self._rest = 0
        self._rest, rests = max(0, self._rest - 1), self._rest > 0
        return rests

    def _start(self) -> DriverSource:
        source = self._find()
        try:
            self._take(source, (source.fingerprint, self._loaded()))
        except OSError as error:
            raise VolumeError(f"the driver volume: {error.filename} went while it was read; start again") from None
        return source

    def _take(self, source: DriverSource, now: tuple[str, str]) -> None:
        made = self.volume.refresh(source)
        loaded = now[1]
        if loaded and made.version not in (loaded, "unknown"):
            fitting = [each for each in self.volume.generations() if each.version == loaded]
            if fitting:
                self.volume.use(fitting[-1])
        self._taken, self.source = now, source

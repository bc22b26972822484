"""At most one engine per runtime directory, by a lock that the kernel drops when the engine dies.

The lock is on the directory itself, which systemd-tmpfiles does not clean while it is locked: an engine in /tmp may run
for longer than files there are kept.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from typing import Final

from aliquot.lib.log import Logger
from aliquot.standalone.paths import RuntimeDir

_POLL_S: Final = 0.05
log = Logger("standalone")


class EngineLock:
    """Context manager; yields itself, or None when another engine is up and answers."""

    def __init__(self, runtime: RuntimeDir, *, wait_s: float) -> None:
        self._runtime = runtime
        self._wait_s = wait_s
        self._descriptor = -1
        self._lost = False

    def __enter__(self) -> EngineLock | None:
        self._runtime.create()
        self._descriptor = os.open(self._runtime.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        until_s = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except BlockingIOError:
                # Held and answering: up. Held and silent: starting or ending, so wait for which it is.
                if _answers(self._runtime) or time.monotonic() > until_s:
                    return None
                time.sleep(_POLL_S)

    def watch_directory(self) -> bool:
        """Whether the directory is still there; the first time that it is not, the log says so.

        Without it no caller reaches the engine, which goes on for the programs that run, and ends with the last.
        """
        try:
            there = os.path.samestat(self._runtime.root.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            there = False
        if not there and not self._lost:
            self._lost = True
            log.warning(
                "%s was removed: no command reaches this engine (pid %d), which ends with its last program; end it "
                "with them: kill %d", self._runtime.root, os.getpid(), os.getpid(),
            )  # fmt: skip
        return there

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _answers(runtime: RuntimeDir) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(runtime.engine_socket))
        except OSError:
            return False
        return True

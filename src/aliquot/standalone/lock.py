"""At most one engine per runtime directory, by a lock that the kernel drops when the engine dies."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from typing import Final

from aliquot.standalone.paths import RuntimeDir

_POLL_S: Final = 0.05


class EngineLock:
    """Context manager; yields itself, or None when another engine is up and answers."""

    def __init__(self, runtime: RuntimeDir, *, wait_s: float) -> None:
        self._runtime = runtime
        self._wait_s = wait_s
        self._descriptor = -1

    def __enter__(self) -> EngineLock | None:
        self._runtime.create()
        self._descriptor = os.open(self._runtime.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _answers(runtime: RuntimeDir) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(runtime.engine_socket))
        except OSError:
            return False
        return True

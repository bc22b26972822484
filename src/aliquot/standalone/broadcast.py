"""Finds out whether a signal was sent to a whole process group or service, or to this process alone.

A program that forwards signals to a command in its own group must know: Jupyter interrupts the group, systemd ends each
process of a service, and a command that receives the forwarded signal too is interrupted twice. The kernel does not
report it. So a helper process runs beside the command and leaves its signals pending: a signal that reached the helper
has reached the command as well.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Collection
from typing import NoReturn, Self

REACHES_ALL_S = 0.02
"""The longest that a service manager takes to send a signal to all processes, one after another."""
ANSWERS_S = 0.2


class Broadcasts:
    """Watches these signals, which the calling thread has blocked. Create it before starting any thread."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        """Start the process.

        Raises:
            OSError: no further process can be started.
        """
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(ANSWERS_S)
        self._came: set[int] = set()
        self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            _stand_by(theirs, signals)
        theirs.close()

    def __enter__(self) -> Self:
        """Return the watcher itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._ours.close()
        os.waitpid(self._pid, 0)

    def reached_all(self, number: int) -> bool:
        """Whether the helper process was sent this signal too; False if it does not answer."""
        time.sleep(REACHES_ALL_S)
        try:
            self._ours.send(b"?")
            self._came.update(self._ours.recv(signal.NSIG))
        except OSError:
            return False
        reached = number in self._came
        self._came.discard(number)
        return reached


def _stand_by(asked: socket.socket, signals: Collection[signal.Signals]) -> NoReturn:
    """Answer with the numbers of the signals that have come, until the other end is closed."""
    try:
        while asked.recv(1):
            came = [0]
            while (info := signal.sigtimedwait(signals, 0)) is not None:
                came.append(info.si_signo)
            asked.send(bytes(came))
    finally:
        os._exit(0)

"""Was a signal sent to every process of a group or of a service, or to us alone?

A program that passes signals on to a command of its own group must know: Jupyter interrupts the group, systemd ends
each process of a service, and a command that is passed the same signal again is interrupted twice. The kernel does not
say. So a process of ours stands beside the command and leaves pending what it is sent: what has come there has come to
the command as well.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Collection
from typing import NoReturn, Self

REACHES_ALL_S = 0.02
"""A service manager takes that long at most to send a signal to one process after another."""
ANSWERS_S = 0.2


class Broadcasts:
    """For these signals, which the calling thread has blocked. To be made before any thread is started."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        """Start the process.

        Raises:
            OSError: there is no room for a process.
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
        """Use it for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._ours.close()
        os.waitpid(self._pid, 0)

    def reached_all(self, number: int) -> bool:
        """Whether the other process was sent this signal too; False where it cannot say."""
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

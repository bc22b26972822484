"""Runs one command as a tenant and returns its exit status."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from aliquot.driver.injection import Mode, TenantConf, TenantFolder, launch
from aliquot.standalone.program import with_tools
from aliquot.standalone.wire import RunLease

# Signals by which a terminal or a supervisor ends, reloads or queries a program.
FORWARDED: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
    signal.SIGALRM,
)  # fmt: skip

TIMED_OUT: Final = 124
TIMEOUT_GRACE_S: Final = 10.0
ENGINE_GONE_GRACE_S: Final = 2.0
REACHES_ALL_S: Final = 0.02
"""The longest that a service manager takes to send a signal to all processes, one after another."""


class Broadcasts:
    """Finds out whether a signal was sent to a whole process group or service, or to this process alone.

    A program that forwards signals to a command in its own group must know: Jupyter interrupts the group, systemd ends
    each process of a service, and a command that receives the forwarded signal too is interrupted twice. The kernel
    does not report it. So another process runs beside the command and leaves its signals pending: a signal that has
    reached it has reached the command as well. It is called `cat`, for who ends all that are called as this program is
    does not mean the command.

    It watches the signals of FORWARDED, which the calling thread has blocked.
    """

    def __init__(self) -> None:
        """Start the process.

        Raises:
            OSError: no further process can be started.
        """
        self._came: set[int] = set()
        self._watcher = self._start()

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        """It ends with this process, by the end of its input."""
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={"PATH": os.defpath})

    def __enter__(self) -> Self:
        """Return the watcher itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._end(self._watcher)

    @staticmethod
    def _end(watcher: subprocess.Popen[bytes]) -> None:
        watcher.kill()
        watcher.communicate()

    def reached_all(self, number: int) -> bool:
        """Whether the process beside the command was sent this signal too; False if it has ended."""
        time.sleep(REACHES_ALL_S)
        if _pending(self._watcher.pid):  # they stay pending there, so that the next is seen by another process only
            before, self._watcher = self._watcher, self._start()
            self._came |= _pending(before.pid)
            self._end(before)
        reached = number in self._came
        self._came.discard(number)
        return reached

    def missed_by(self, pid: int) -> list[int]:
        """Take the signals that came before this process was started, which has not unblocked any of them yet."""
        missed = sorted((signal.sigpending() & {*FORWARDED}) - _pending(pid))
        for number in missed:
            signal.sigtimedwait([number], 0)
            self.reached_all(number)
        return missed


def _pending(pid: int) -> set[int]:
    """The signals of FORWARDED that wait for a process to unblock them."""
    bits = int(Path(f"/proc/{pid}/status").read_text().partition("ShdPnd:")[2].split()[0], 16)
    return {number for number in FORWARDED if bits >> number - 1 & 1}


def original_environment() -> dict[str, str]:
    """The environment this process was started with.

    The interpreter adds LC_CTYPE in the C locale; a command that we start must not see it.
    """
    env = dict(os.environ)
    with contextlib.suppress(OSError):
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
            env.pop("LC_CTYPE", None)
    return env


def run_command(
    lease: RunLease,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    mode: Mode,
    engine_gone: Callable[[], None],
    verbose: bool = False,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    visible_devices: str | None = None,
) -> int:
    """Run a command in a place and return the exit status for our own end: its code, or 128 + its signal.

    `engine_gone` returns when the engine is gone, and the place with it: then the command gets SIGTERM, and SIGKILL
    if it goes on. So it does after `timeout_s`; the status is then TIMED_OUT, as that of `timeout`.
    `visible_devices` is the user's own CUDA_VISIBLE_DEVICES, which CUDA reads in the order of the user's choice
    too.
    """
    conf = TenantConf(lease.name, Path(lease.socket), Path(lease.libcuda), Path(lease.libnvml))
    folder = TenantFolder(Path(lease.directory), conf, bare=lease.enforce == "never")
    variables = {"CUDA_VISIBLE_DEVICES": lease.visible_devices} | lease.variables  # none of an older engine
    if visible_devices is not None:
        variables = {"CUDA_VISIBLE_DEVICES": visible_devices}
    environment = with_tools(env, conf.libcuda) | variables
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*FORWARDED, signal.SIGCHLD])
    try:
        with Broadcasts() as broadcasts:
            ready = launch(
                folder, argv, environment, mode=mode, verbose=verbose, blocked=[int(n) for n in before], cwd=cwd,
                death_signal=signal.SIGTERM, container=lease.container,
            )  # fmt: skip
            # Descriptors that were passed to us on purpose are meant for the command.
            process = subprocess.Popen(ready.argv, env=ready.env, close_fds=False)
            for number in broadcasts.missed_by(process.pid):
                process.send_signal(number)
            pidfd = os.pidfd_open(process.pid)
            threading.Thread(target=_end_with_engine, args=(pidfd, engine_gone), daemon=True).start()
            ending: signal.Signals | None = None
            until_s = None if timeout_s is None else time.monotonic() + timeout_s
            while (status := process.poll()) is None:
                awaited = [*FORWARDED, signal.SIGCHLD]
                came: signal.struct_siginfo | None
                if until_s is None:
                    came = signal.sigwaitinfo(awaited)
                else:
                    came = signal.sigtimedwait(awaited, max(0.0, until_s - time.monotonic()))
                if came is None:
                    ending = signal.SIGKILL if ending else signal.SIGTERM
                    until_s = time.monotonic() + TIMEOUT_GRACE_S
                    sys.stderr.write(f"aliquot: the command has run for its --timeout and was sent {ending.name}\n")
                    sys.stderr.flush()
                    process.send_signal(ending)
                # A terminal's Ctrl-C reaches the whole group, so the command has it; its end reaches a session's leader
                # alone, as other signals do that are sent to one process.
                elif came.si_signo != signal.SIGCHLD and not broadcasts.reached_all(came.si_signo):
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(came.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if ending:
        return TIMED_OUT
    return 128 - status if status < 0 else status


def _end_with_engine(pidfd: int, engine_gone: Callable[[], None]) -> None:
    """The next engine gives the place to others, so what runs in it must have ended by then.

    Only the main thread waits for the process: while another thread does, Popen's `poll` says that it still runs, and
    no second SIGCHLD would come.
    """
    engine_gone()
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    if not ended.poll(0):
        sys.stderr.write("aliquot: the engine has ended, and this run's place with it; the command was sent SIGTERM\n")
        sys.stderr.flush()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            if not ended.poll(ENGINE_GONE_GRACE_S * 1000):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)

"""Runs one command as a tenant and returns its exit status."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from aliquot.driver.injection import Mode, TenantConf, TenantFolder, launch
from aliquot.standalone.program import with_tools
from aliquot.standalone.wire import RunLease

# Signals by which a terminal or a supervisor ends, reloads or queries a program.
FORWARDED: Final = tuple(
    signal.Signals(number)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGALRM,
    )
)

TIMED_OUT: Final = 124
TIMEOUT_GRACE_S: Final = 10.0
ENGINE_GONE_GRACE_S: Final = 2.0
REACHES_ALL_S: Final = 0.02
"""The longest that a service manager takes to send a signal to all processes, one after another."""
ANSWERS_S: Final = 0.2


class Broadcasts:
    """Finds out whether a signal was sent to a whole process group or service, or to this process alone.

    A program that forwards signals to a command in its own group must know: Jupyter interrupts the group, systemd ends
    each process of a service, and a command that receives the forwarded signal too is interrupted twice. The kernel
    does not report it. So a helper process runs beside the command and leaves its signals pending: a signal that
    reached the helper has reached the command as well.

    It watches signals that the calling thread has blocked. Create it before starting any thread.
    """

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
            # The helper: answer with the numbers of the signals that have come, until the other end is closed.
            self._ours.close()
            try:
                while theirs.recv(1):
                    came = [0]
                    while (info := signal.sigtimedwait(signals, 0)) is not None:
                        came.append(info.si_signo)
                    theirs.send(bytes(came))
            finally:
                os._exit(0)
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

    def missed_by(self, pid: int) -> list[int]:
        """Take the signals that came before this process was started, which has not unblocked any of them yet."""
        status = Path(f"/proc/{pid}/status").read_text()
        its = int(status.partition("ShdPnd:")[2].split()[0], 16)
        missed = [number for number in signal.sigpending() & set(FORWARDED) if not its >> number - 1 & 1]
        for number in missed:
            signal.sigtimedwait([number], 0)
            self.reached_all(number)
        return missed


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
        with Broadcasts(FORWARDED) as broadcasts:
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
                # A terminal's Ctrl-C reaches the whole group, so the command has it; one sent to us alone has not.
                elif (
                    came.si_signo != signal.SIGCHLD and not broadcasts.reached_all(came.si_signo) and came.si_code <= 0
                ):
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

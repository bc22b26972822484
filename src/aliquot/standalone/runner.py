"""Runs one command as a tenant and returns its exit status."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from aliquot.driver.injection import Mode, TenantConf, TenantFolder, launch
from aliquot.standalone.broadcast import Broadcasts
from aliquot.standalone.tools import with_tools
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
            threading.Thread(target=_end_with_engine, args=(process, engine_gone), daemon=True).start()
            status = _attend(process, broadcasts, timeout_s)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 128 - status if status < 0 else status


def _end_with_engine(process: subprocess.Popen[bytes], engine_gone: Callable[[], None]) -> None:
    """The next engine gives the place to others, so what runs in it must have ended by then."""
    engine_gone()
    if process.poll() is None:
        sys.stderr.write("aliquot: the engine has ended, and this run's place with it; the command was sent SIGTERM\n")
        sys.stderr.flush()
        process.terminate()
        try:
            process.wait(ENGINE_GONE_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _attend(process: subprocess.Popen[bytes], broadcasts: Broadcasts, timeout_s: float | None) -> int:
    """Pass signals on until the command ends; negative: the signal that ended it."""
    waited = [*FORWARDED, signal.SIGCHLD]
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    ending: signal.Signals | None = None
    while True:
        status = process.poll()
        if status is not None:
            return TIMED_OUT if ending else status
        came = _next_signal(waited, until_s)
        if came is None:
            ending = signal.SIGKILL if ending else signal.SIGTERM
            until_s = time.monotonic() + TIMEOUT_GRACE_S
            sys.stderr.write(f"aliquot: the command has run for its --timeout and was sent {ending.name}\n")
            sys.stderr.flush()
            process.send_signal(ending)
        elif came.si_signo == signal.SIGCHLD:
            continue
        # A terminal's Ctrl-C reaches the whole group, so the command has it already; one sent to us alone has not.
        elif not broadcasts.reached_all(came.si_signo) and came.si_code <= 0:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(came.si_signo)


def _next_signal(waited: Sequence[int], until_s: float | None) -> signal.struct_siginfo | None:
    """The next of these signals; None when it is later than that."""
    if until_s is None:
        return signal.sigwaitinfo(waited)
    return signal.sigtimedwait(waited, max(0.0, until_s - time.monotonic()))

"""Talks to the running engine, and starts one for a run if none is running."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec

from aliquot.lib.package import of_another_version
from aliquot.model.errors import AliquotError, UserError
from aliquot.standalone import wire
from aliquot.standalone.accounts import Account
from aliquot.standalone.paths import RuntimeDir, closed_to_all_but, is_trusted, machine_dir, state_dir, way_out

A = TypeVar("A")
ATTEMPTS: Final = 5
ENGINE_BACK_S: Final = 60.0
"""How long what the machine's engine runs or queues goes on without one."""
AGAIN_S: Final = 0.2
SILENCE_S: Final = 5.0
"""After this long without an answer the user is informed that the engine may be stopped."""


class NoEngine(AliquotError):
    """No engine answers."""


class EngineRefused(AliquotError):
    """The engine refused; `exit_code` is the exit status it gave, `of_machine` as in `GpuTaken`."""

    def __init__(self, text: str, code: int, *, of_machine: bool = False) -> None:
        super().__init__(text)
        self.exit_code = code  # type: ignore[misc]
        self.of_machine = of_machine


class EngineConnection:
    """One call and its replies."""

    def __init__(self, runtime: RuntimeDir) -> None:
        self._runtime, self._root = runtime, runtime.root
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(runtime.engine_socket))
        except OSError:
            self._socket.close()
            if (gid := closed_to_all_but(runtime.root)) is not None:
                from aliquot.driver.gpu_lock import not_in_group

                raise EngineRefused(f"the machine's engine {not_in_group(gid)}", 1) from None
            raise NoEngine(f"no engine is up at {runtime.root}; {way_out('start one: aliquot up')}") from None
        if not is_trusted(uid := Account.of_peer(self._socket).uid, runtime.root):
            self._socket.close()  # it would name the libraries that our programs load
            way = way_out("remove it, or set ALIQUOT_RUNTIME_DIR to a folder of yours")
            raise EngineRefused(f"what answers at {runtime.root} is not known to be yours (user {uid}); {way}", 1)
        self._lines = self._socket.makefile("rb")
        self._last = b""
        self._lost = threading.Event()
        self._ended = threading.Event()

    def __enter__(self) -> EngineConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, which ends its lease."""
        self._lines.close()
        self._socket.close()

    def say_ended(self) -> list[str]:
        """Report that the command has ended; returns why the engine ended it, if it did, and what it left behind.

        May be called while another thread is in `wait_until_lost`. That is nothing if the engine is gone or does not
        answer within `SILENCE_S`.
        """
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.sendall(wire.COMMAND_ENDED)
            self._socket.shutdown(socket.SHUT_WR)
            self._lost.wait(SILENCE_S)
        line, whole, _ = self._last.partition(b"\n")
        answer = wire.decode_answer(line) if whole else None
        left = answer if isinstance(answer, wire.LeftBehind) else wire.LeftBehind(0)
        said = [f"the command was ended: {left.why_ended}"] if left.why_ended else []
        if count := left.processes:
            processes, were = ("1 process", "was") if count == 1 else (f"{count} processes", "were")
            said.append(f"{processes} that the command left behind still used its GPU and {were} ended")
        return said

    def wait_until_lost(self, resumes: str = "") -> None:
        """Return when the engine closes the connection.

        A run that `resumes`, by its tenant's name, connects to the next engine instead, which has `ENGINE_BACK_S` to
        come.
        """
        while True:
            with contextlib.suppress(OSError):
                while data := self._socket.recv(4096):
                    self._last += data
            if not resumes or not self._resumed(resumes):
                break
        self._lost.set()

    def _resumed(self, name: str) -> bool:
        """Whether the next engine has given a run its place again."""
        try:
            connection, _ = ask_next(self._runtime, wire.ResumeCall(name), self._ended)
        except (NoEngine, EngineRefused):
            return False
        self._socket, self._lines = connection._socket, connection._lines
        return not self._ended.is_set()

    def ask(self, call: wire.Call[A]) -> A:
        """One answer to one call.

        Raises:
            EngineRefused: the engine said no.
            NoEngine: it went away.
        """
        try:
            self._socket.sendall(wire.encode_call(call))
        except OSError:
            raise NoEngine("the engine went away") from None
        if not select.select([self._socket], [], [], SILENCE_S)[0]:
            sys.stderr.write(f"aliquot: the engine at {self._root} has not answered for {SILENCE_S:g} s; waiting\n")
        return self.next_answer(call)

    def answers(self, call: wire.Call[A]) -> Iterator[A]:
        """Every answer until the engine closes the connection."""
        yield self.ask(call)
        while True:
            try:
                yield self.next_answer(call)
            except NoEngine:
                return

    def next_answer(self, call: wire.Call[A]) -> A:
        """The next answer to a call that has several.

        Raises:
            EngineRefused: the engine said no.
            NoEngine: it went away.
        """
        try:
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line:
            raise NoEngine("the engine went away")
        if other := of_another_version(
            f"the engine at {self._root}", line, wire.WIRE, Account.of_peer(self._socket).pid
        ):
            raise EngineRefused(other, 1)
        try:
            answer = wire.decode_answer(line)
        except msgspec.MsgspecError as error:
            raise EngineRefused(
                f"the engine at {self._root} gave an answer that is not understood: {error}", 1
            ) from None
        if isinstance(answer, wire.EngineRefusal):
            raise EngineRefused(answer.error, answer.code)
        return cast(A, answer)  # of this protocol, as its number says


def ask(runtime: RuntimeDir, call: wire.Call[A]) -> A:
    """One call on a connection of its own."""
    with EngineConnection(runtime) as connection:
        return connection.ask(call)


def ask_next(
    runtime: RuntimeDir, call: wire.Call[A], ended: threading.Event | None = None, within_s: float = ENGINE_BACK_S
) -> tuple[EngineConnection, A]:
    """The first answer of the machine's next engine, which has `within_s` to come, and its connection.

    Raises:
        NoEngine: none has come, or `ended` was set.
        EngineRefused: the engine said no.
    """
    ended, until_s = ended or threading.Event(), time.monotonic() + within_s
    while not ended.wait(AGAIN_S) and time.monotonic() < until_s:
        with contextlib.suppress(NoEngine):
            connection = EngineConnection(runtime)
            try:
                return connection, connection.ask(call)
            except BaseException:
                connection.close()
                raise
    raise NoEngine(f"no engine has come back at {runtime.root} within {within_s:g} s. Start one: aliquot up")


def first_answer(runtime: RuntimeDir, call: wire.Call[A], *, emulate: str | None) -> tuple[EngineConnection, A]:
    """The first answer to a call and its connection: from the engine that is up, else from one started for it.

    The engine that is started ends with its last run and share.

    Raises:
        EngineRefused: the engine said no.
        UserError: the engine that is up drives another machine than the one asked for.
    """
    for attempt in range(ATTEMPTS):
        try:
            connection = EngineConnection(runtime)
        except NoEngine:
            start_engine(runtime, emulate)
            continue
        try:
            machine = ask(runtime, wire.InfoCall()).emulate
            if emulate and machine != emulate:
                up = f"emulates {machine}" if machine else "drives this machine's own GPUs"
                raise UserError(
                    f"the engine at {runtime.root} {up}, not {emulate}; leave --emulate out, or end that engine first"
                )
            return connection, connection.ask(call)
        except NoEngine:  # it was just ending with its last run: start a new one
            connection.close()
            time.sleep(0.05 * attempt)
            continue
        except BaseException:
            connection.close()
            raise
    raise NoEngine(f"the engine at {runtime.root} keeps going away; see {runtime.engine_log}")


def lease(
    runtime: RuntimeDir,
    call: wire.LeaseCall,
    *,
    emulate: str | None,
    waits: Callable[[str], None] = lambda reason: None,
) -> tuple[EngineConnection, wire.RunLease]:
    """A place for a run; `waits` gets the reasons why a call that asks to wait has no place yet.

    It waits on in the queue of the next engine where the machine's restarts, and for that engine where it asks to wait
    and there was none to begin with.

    Raises:
        EngineRefused, UserError: as `first_answer`.
    """
    try:
        connection, answer = first_answer(runtime, call, emulate=emulate)
    except EngineRefused as refused:
        if not refused.of_machine:
            raise
        runtime = RuntimeDir(machine_dir())
        try:
            if call.wait:
                waits("the machine's engine restarts")
            connection, answer = ask_next(runtime, call, within_s=ENGINE_BACK_S if call.wait else 1.0)
        except NoEngine:
            raise refused from None
    while True:
        try:
            while isinstance(answer, wire.LeaseWait):
                waits(answer.reason)
                answer = connection.next_answer(call)
            return connection, answer
        except NoEngine:
            connection.close()
            if runtime.root != machine_dir():
                raise
            waits("the machine's engine restarts")
            connection, answer = ask_next(runtime, call)
        except BaseException:
            connection.close()
            raise


def free_gpus(runtime: RuntimeDir) -> str:
    """Free the GPUs that an engine which has died keeps for the next one, and say so.

    Raises:
        AliquotError: runs or shares of it go on.
    """
    from aliquot.standalone.tenants import end_keeper, living_runs

    if runs := [run.name for run in living_runs(runtime.runs)]:
        raise AliquotError(
            f"no engine is up at {runtime.root}, and {', '.join(runs)} of the one that died "
            f"{'goes' if len(runs) == 1 else 'go'} on; to end what is left: aliquot up --system -d, then aliquot down"
        )
    return "its GPUs, which were kept for the next one, are free" if end_keeper(runtime) else "there is nothing to end"


def start_engine(runtime: RuntimeDir, emulate: str | None) -> None:
    """Start an engine in the background and wait until it answers.

    Raises:
        EngineRefused: it said why it cannot start.
    """
    runtime.create()
    argv = [sys.executable, "-m", "aliquot.standalone.daemon", "--runtime-dir", str(runtime.root)]
    argv += ["--state-dir", str(state_dir())]
    if emulate:
        argv += ["--emulate", emulate]
    env = dict(os.environ)
    if env.get("PYTHONPATH"):  # it has to hold in the engine's own working directory
        env["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in env["PYTHONPATH"].split(os.pathsep))
    with runtime.engine_log.open("ab") as log:
        # Its own session, so that Ctrl-C on the run ends the run and lets the engine clean up after it.
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True, cwd="/", env=env
        )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    process.stdout.close()
    if not line:
        process.wait()
        raise EngineRefused(f"the engine did not start (status {process.returncode}); see {runtime.engine_log}", 1)
    answer = wire.decode_answer(line)
    if isinstance(answer, wire.EngineRefusal):
        process.wait()
        raise EngineRefused(answer.error, answer.code, of_machine=answer.of_machine)

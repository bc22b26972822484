"""Answers the command line on the engine's socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from aliquot.model.errors import AliquotError, in_words
from aliquot.model.ids import tenant_name
from aliquot.standalone.engine import ORPHAN_GRACE_S, Engine, Seat
from aliquot.standalone.explaining import explanations, gpu_facts, gpu_request
from aliquot.standalone.pods import Pods
from aliquot.standalone.wire import COMMAND_ENDED, Call, EngineFacts, Lease, Reply

LINE_BYTES: Final = 4 << 20
OUT_OF_DESCRIPTORS_S: Final = 0.1


class EngineServer:
    """The engine's socket, one thread per caller."""

    def __init__(self, engine: Engine, pods: Pods, on_idle: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._pods = pods
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._leases = 0
        self._closed = False
        path = engine.runtime.engine_socket
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(256)
        threading.Thread(target=self._accept, name="engine-socket", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        with self._lock:
            self._closed = True
        self._engine.runtime.engine_socket.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_if_idle(self) -> bool:
        """Stop answering unless a tenant exists; returns whether it did."""
        with self._lock:
            if self._leases:
                return False
            self._closed = True
        self.close()
        return True

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(OUT_OF_DESCRIPTORS_S)  # some caller will hang up; who waits is in the backlog
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            line = connection.makefile("rb").readline(LINE_BYTES)
            if not line:
                return
            try:
                call = msgspec.json.decode(line, type=Call)
                if call.verb == "lease":
                    self._hold(connection, call)
                    return
                for reply in self._answers(call, connection):
                    _send(connection, reply)
            except (msgspec.MsgspecError, RecursionError) as error:
                _send(connection, Reply(error=f"the call is not understood: {error}", code=1))
            except AliquotError as error:
                _send(connection, Reply(error=str(error), code=error.exit_code))
            except OSError as error:  # a file that cannot be written; a caller who hung up does not read this either
                _send(connection, Reply(error=in_words(error), code=1))

    def _answers(self, call: Call, connection: socket.socket) -> Iterator[Reply]:
        match call.verb:
            case "info":
                yield Reply(facts=self._facts())
            case "apply":
                yield Reply(lines=self._pods.apply(call.text, restart=call.restart))
            case "pods":
                yield Reply(pods=self._pods.facts(call.name))
            case "gpus":
                yield Reply(gpus=self._engine.look(lambda books: gpu_facts(books, self._engine.gpus)))
            case "explain":
                yield Reply(explanations=explanations(self._engine, self._pods, call))
            case "tenants":
                yield Reply(tenants=[tenant_facts(seat) for seat in self._engine.seats.values()])
            case "delete":
                yield Reply(lines=[self._pods.delete(call.name)])
            case "logs":
                for lines in self._pods.logs(call.name, call.container, follow=call.follow):
                    if not lines and _hung_up(connection):
                        return
                    yield Reply(lines=lines)
            case _:
                yield Reply(error=f'the engine knows no "{call.verb}"; it is older or newer than this command')

    def _facts(self) -> EngineFacts:
        engine = self._engine
        return EngineFacts(
            os.getpid(), str(engine.runtime.root), engine.machine.spec, engine.arbiter_pid, engine.gpus,
            len(engine.seats), engine.books.policy,
        )  # fmt: skip

    def _hold(self, connection: socket.socket, call: Call) -> None:
        """Seat the caller and keep the place until it hangs up."""
        with self._lock:
            if self._closed:
                return  # hanging up without a word makes the caller look for the next engine
            self._leases += 1
        try:
            name = tenant_name(call.name)
            assert call.ask is not None
            seat = self._engine.admit(name, gpu_request(call.ask), cpu_bind=call.ask.cpu_bind)
            ended = False
            try:
                conf = seat.folder.conf
                place = Lease(
                    name, str(seat.folder.directory), str(conf.socket), str(conf.libcuda), str(conf.libnvml),
                    seat.visible_devices, seat.enforce,
                )  # fmt: skip
                _send(connection, Reply(lease=place))
                ended = _wait_for_end(connection)
            finally:
                # A shell's background job outlives its shell; what outlives a run that was killed is an orphan.
                self._engine.release(seat, grace_s=ORPHAN_GRACE_S, keep=ended)
        finally:
            with self._lock:
                self._leases -= 1
                idle = self._leases == 0
            if idle:
                self._on_idle()


def tenant_facts(seat: Seat) -> dict[str, Any]:
    """A tenant as `get tenants` shows it."""
    return {
        "name": seat.name,
        "injection": seat.folder.injection(),
        "enforce": seat.enforce,
        "slices": [msgspec.to_builtins(piece) for piece in seat.plan.slices],
    }


def _send(connection: socket.socket, reply: Reply) -> None:
    connection.sendall(msgspec.json.encode(reply) + b"\n")


def _wait_for_end(connection: socket.socket) -> bool:
    """Until the run hangs up; whether it said before that its command has ended."""
    said = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(4096):
            said = data
    return said.endswith(COMMAND_ENDED)


def _hung_up(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)

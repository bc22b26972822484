"""Talks to a running arbiter over its local sockets, one request at a time."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.lib.decoding import decode_json
from aliquot.lib.package import of_another_version

from .records import WIRE, Answer, GpuTurns, ParkState, Request, Status, TenantGpu, TenantRecord

_CREDENTIALS: Final = struct.Struct("3i")
__all__ = ["ArbiterClient", "ArbiterError", "NoArbiter", "Status", "TenantGpu", "TenantRecord", "Unanswered"]


class ArbiterError(RuntimeError):
    """The arbiter does not run, or refused; the text is for the person who has to act."""


class NoArbiter(ArbiterError):
    """No arbiter listens, or it closed the connection: it may be back in a moment."""


class Unanswered(NoArbiter):
    """The arbiter runs but did not answer in time: it is stopped, or the machine is overloaded."""


class ArbiterClient:
    """One user's view of the arbiter in `runtime_dir`. Not for use by several threads at once.

    Reading goes through status.sock, changing through admin.sock, so a reader needs no right to change.
    """

    def __init__(self, runtime_dir: Path, *, timeout_s: float = 10.0) -> None:
        self._dir = runtime_dir
        self._timeout_s = timeout_s
        self._lines: dict[str, _Lines] = {}

    def __enter__(self) -> ArbiterClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for lines in self._lines.values():
            lines.close()
        self._lines.clear()

    def add_tenant(self, record: TenantRecord) -> None:
        """Make a tenant known and open its socket; the same record twice changes nothing.

        Raises:
            ArbiterError: no arbiter, or a record that it cannot keep.
        """
        self._ask("admin.sock", Request("add_tenant", tenant=record))

    def resize_tenant(self, record: TenantRecord) -> None:
        """Change request, limit and memory of a tenant while it runs, or the only GPU of one that is parked.

        Raises:
            ArbiterError: no arbiter, no such tenant, or a record that it cannot keep.
        """
        self._ask("admin.sock", Request("resize_tenant", tenant=record))

    def park_tenant(self, name: str, *, busy: bool = False) -> ParkState:
        """Have a tenant's calls of the driver wait, and say how far that is; to be asked again until `ready`.

        One that is `busy` is refused unless it may be: its turn ends then.

        Raises:
            ArbiterError: no arbiter, no such tenant, it is busy, or its memory cannot leave the GPU.
        """
        parking = self._ask("admin.sock", Request("park_tenant", name=name, busy=busy)).parking
        if parking is None:
            raise ArbiterError("the arbiter answered without saying how far it is")
        return parking

    def unpark_tenant(self, name: str) -> None:
        """Let a tenant's calls of the driver go on: its memory is on the GPU.

        Raises:
            ArbiterError: no arbiter, or no such tenant.
        """
        self._ask("admin.sock", Request("unpark_tenant", name=name))

    def note_away(self, name: str) -> None:
        """Say that the memory of a parked tenant is off its GPUs.

        Raises:
            ArbiterError: no arbiter, or no such tenant.
        """
        self._ask("admin.sock", Request("note_away", name=name))

    def take_back(self, name: str) -> None:
        """Say that the memory of a parked tenant is about to come back.

        Raises:
            ArbiterError: no arbiter, no such tenant, or others hold too much; what is lent to them is called back.
        """
        self._ask("admin.sock", Request("take_back", name=name))

    def remove_tenant(self, name: str, *, end: bool = False) -> None:
        """Close a tenant with all its connections; `end` kills the processes that are still attached to a GPU.

        Raises:
            ArbiterError: no arbiter, or no such tenant.
        """
        self._ask("admin.sock", Request("remove_tenant", name=name, end=end))

    def status(self, *, admin: bool = False) -> Status:
        """Everything at this moment; `admin` asks the socket through which tenants are changed.

        Raises:
            ArbiterError: no arbiter.
        """
        status = self._ask("admin.sock" if admin else "status.sock", Request("status")).status
        if status is None:
            raise ArbiterError("the arbiter answered without a status")
        return status

    def turns(self, gpu: str) -> GpuTurns:
        """The turns of the last minute on a GPU, by its UUID.

        Raises:
            ArbiterError: no arbiter, or one that does not know them.
        """
        turns = self._ask("status.sock", Request("turns", name=gpu)).turns
        if turns is None:
            raise ArbiterError("the arbiter answered without turns")
        return turns

    def process(self) -> int:
        """The arbiter's pid as this process's pid namespace has it, after a first `status`; 0 where it shows none."""
        lines = self._lines.get("status.sock")
        return lines.peer() if lines else 0

    def events(self, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """The kept events, oldest first; with `follow` also every later one, until the arbiter ends.

        Raises:
            ArbiterError: no arbiter.
        """
        lines = _Lines(self._dir / "status.sock", None if follow else self._timeout_s)
        try:
            lines.send(Request("events", follow=follow))
            while True:
                answer = lines.receive()
                if answer is None or answer.end:
                    return
                if answer.event is not None:
                    yield answer.event
        finally:
            lines.close()

    def _ask(self, name: str, request: Request) -> Answer:
        lines = self._lines.get(name)
        fresh = lines is None
        if lines is None:
            lines = self._lines[name] = _Lines(self._dir / name, self._timeout_s)
        try:
            lines.send(request)
            answer = lines.receive()
        except Unanswered:
            self._lines.pop(name).close()  # its late answer must not be taken for that of a later request
            raise
        if answer is None:
            self._lines.pop(name).close()
            if fresh:
                raise NoArbiter(f"the arbiter in {self._dir} closed the connection")
            return self._ask(name, request)  # it was restarted since the last request
        if answer.error:
            raise ArbiterError(answer.error)
        return answer


class _Lines:
    """One connection that carries JSON lines."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        self._path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._sock.settimeout(timeout_s)
        try:
            self._sock.connect(str(path))
        except OSError as error:
            self._sock.close()
            raise NoArbiter(f"no arbiter at {path}: {error.strerror or error}") from error
        self._file = self._sock.makefile("rb")

    def send(self, request: Request) -> None:
        """Write one line; a side that is gone is noticed by `receive`."""
        try:
            self._sock.sendall(msgspec.json.encode(request) + b"\n")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            return

    def receive(self) -> Answer | None:
        """Read one line; None at the end of the stream."""
        try:
            line = self._file.readline()
        except ConnectionResetError:
            return None
        except TimeoutError as error:
            raise Unanswered(f"the arbiter at {self._path} does not answer") from error
        if not line.endswith(b"\n"):
            return None
        if other := of_another_version(f"the arbiter at {self._path.parent}", line, WIRE, self.peer()):
            raise ArbiterError(other)
        try:
            return decode_json(line, Answer)
        except msgspec.MsgspecError as error:
            raise ArbiterError(f"an answer of the arbiter at {self._path} is not understood: {error}") from None

    def peer(self) -> int:
        """The pid on the other side."""
        credentials = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(credentials)[0])

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
        self._sock.close()

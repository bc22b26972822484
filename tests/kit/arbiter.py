"""An arbiter that a test starts, kills and starts again, and tenants' processes in Python that speak to it.

They send the messages and sleep on the grant page, as the hook does.
"""

import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import aliquot
from aliquot.arbiter.abi import (
    ABI_VERSION,
    GRANT_PAGE,
    MESSAGE_STRUCT,
    PAGE_SIZE_BYTES,
    MessageType,
    WordState,
)
from aliquot.arbiter.client import ArbiterClient
from aliquot.status.tenants import TenantStatus

OFFSET = {field.name: field.offset for field in GRANT_PAGE}
SOURCES = Path(aliquot.__file__).parents[1]
LIBC = ctypes.CDLL(None, use_errno=True)


class Page:
    """The tenant's read-only view of one grant page."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_SIZE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(fd)
        self._u32 = memoryview(self._map).cast("I")
        self._u64 = memoryview(self._map).cast("Q")

    def u32(self, name: str) -> int:
        return self._u32[OFFSET[name] // 4]

    def u64(self, name: str) -> int:
        return self._u64[OFFSET[name] // 8]

    def pids(self) -> list[int]:
        """The processes that the page names."""
        at = OFFSET["processes"] // 4
        return list(self._u32[at : at + self.u32("process_count")])

    @property
    def epoch(self) -> int:
        return self.u32("word") >> 2

    @property
    def valid(self) -> bool:
        return self.u32("word") & 3 == WordState.VALID

    def close(self) -> None:
        self._u32.release()
        self._u64.release()
        self._map.close()


class FakeProcess:
    """One connection: `attach` first, then the verbs. `epoch` is the last grant seen."""

    def __init__(self, path: str, *, hello: bool = True) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(20)
        self.sock.connect(path)
        self.pages: dict[int, Page] = {}
        self.boot_id = 0
        self.seq = 0
        if hello:
            kind, *rest = self.ask(MessageType.HELLO, a=ABI_VERSION, c=os.getpid())
            assert kind == MessageType.WELCOME, rest
            self.boot_id = rest[3]

    def send(self, kind: int, *, flags=0, gpu=0, a=0, b=0, c=0, uuid_bytes=bytes(16)) -> None:
        self.seq += 1
        self.sock.send(MESSAGE_STRUCT.pack(kind, flags, gpu, self.seq, a, b, c, 0, uuid_bytes))

    def ask(self, kind: int, **fields) -> tuple:
        self.send(kind, **fields)
        return self.receive()

    def receive(self) -> tuple:
        data = self.sock.recv(65)
        if not data:
            raise ConnectionResetError
        return MESSAGE_STRUCT.unpack(data)

    def attach(self, gpu: str, *, flags: int = 0) -> int:
        """Attach to a GPU by its text UUID; returns the slot."""
        self.send(MessageType.ATTACH, flags=flags, uuid_bytes=uuid.UUID(gpu.removeprefix("GPU-")).bytes)
        data, fds, _, _ = socket.recv_fds(self.sock, 65, 1)
        message = MESSAGE_STRUCT.unpack(data)
        assert message[0] == MessageType.PAGE, message
        self.pages[message[2]] = Page(fds[0])
        return message[2]

    def want(self, slot: int = 0, burst_ns: int = 0) -> None:
        self.send(MessageType.WANT, gpu=slot, a=burst_ns)

    def wait_valid(self, slot: int = 0, *, above: int = -1, timeout_s: float = 20.0) -> int:
        """Sleep until a grant is valid; returns its epoch.

        After the epoch `above` that may also be a grant which has ended before this process came to look.
        """
        page, end = self.pages[slot], time.monotonic() + timeout_s
        while not (page.valid if above < 0 else page.epoch > above):
            if time.monotonic() > end:
                raise TimeoutError("no grant")
            time.sleep(0.0002)
        return page.epoch

    def hold(self) -> int:
        """Ask for the first GPU, and wait for the grant; its epoch."""
        self.want()
        return self.wait_valid()

    def wait_closed(self, slot: int = 0, timeout_s: float = 20.0) -> int:
        page, end = self.pages[slot], time.monotonic() + timeout_s
        while page.valid:
            if time.monotonic() > end:
                raise TimeoutError("not revoked")
            time.sleep(0.0002)
        return page.epoch

    def give_back(self, slot: int = 0, burst_ns: int = 0) -> None:
        self.send(MessageType.RETURN, gpu=slot, a=self.pages[slot].epoch, b=time.monotonic_ns(), c=burst_ns)

    def drained(self, slot: int = 0, burst_ns: int = 0) -> None:
        self.send(MessageType.DRAINED, gpu=slot, a=self.pages[slot].epoch, b=time.monotonic_ns(), c=burst_ns)

    def reserve(self, needed: int, liked: int = 0, flags: int = 0, slot: int = 0) -> int:
        kind, _, _, _, given, *_ = self.ask(MessageType.RESERVE, gpu=slot, a=needed, b=max(liked, needed), flags=flags)
        assert kind == MessageType.LEASE
        return given

    def close(self) -> None:
        for page in self.pages.values():
            page.close()
        self.sock.close()


class RunningArbiter:
    """An arbiter in a process of its own; `gpu` is the GPU that is meant where none is named."""

    def __init__(self, runtime: Path, gpu: str, *options: str, env: dict[str, str] | None = None) -> None:
        self.runtime = runtime
        self.gpu = gpu
        self.options = options
        self.env = os.environ | {"PYTHONPATH": str(SOURCES)} | (env or {})
        self.start()

    def start(self) -> None:
        """Start it, or start it again over the same directory."""
        command = [sys.executable, "-m", "aliquot.arbiter", "--runtime-dir", str(self.runtime), *self.options]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.env)
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "ready\n"
        self.admin = ArbiterClient(self.runtime)

    def kill(self) -> None:
        """As a crash does: nothing is said, nothing is put away."""
        self.admin.close()
        self.child.kill()
        self._wait()

    def stop(self) -> int:
        """End it in order, if it runs; its exit status."""
        self.admin.close()
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        return self._wait()

    def seen(self, name: str = "a", gpu: str = "") -> TenantStatus:
        """The arbiter's word about a tenant on a GPU."""
        status = next(each for each in self.admin.status().gpus if each.uuid == (gpu or self.gpu))
        return next(tenant for tenant in status.tenants if tenant.name == name)

    def descriptors(self) -> int:
        """How many it has open."""
        return len(list(Path(f"/proc/{self.child.pid}/fd").iterdir()))

    def mappings(self) -> int:
        """How many grant pages it has mapped."""
        return Path(f"/proc/{self.child.pid}/maps").read_text().count("aliquot-grant")

    def _wait(self) -> int:
        status = self.child.wait(timeout=10)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return status

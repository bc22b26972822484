"""Whatever one tenant sends, the arbiter lives, its ledger is right, and another tenant gets the GPU."""

import contextlib
import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aliquot.arbiter import report as report_module
from aliquot.arbiter import server as server_module
from aliquot.arbiter.abi import ABI_VERSION, MESSAGE_STRUCT, MessageType, ReserveFlag, WordState
from aliquot.arbiter.engine import MAX_REPORTED
from aliquot.arbiter.grants import GrantState
from aliquot.arbiter.protocol import MAX_CLAIM_BYTES
from aliquot.arbiter.records import TenantGpu, TenantRecord
from aliquot.arbiter.server import Server, Settings

GPU = uuid.UUID(int=7)
TURN_NS = 20_000_000
WITHIN_TURNS = 20_000
numbers = st.sampled_from([0, 1, 2, 3, 64 << 20, 1 << 31, (1 << 50) - 1, 1 << 50, 1 << 62, (1 << 63) - 1, 2**64 - 1])
messages = st.tuples(
    st.sampled_from([*MessageType, 0, 13, 255, 0xFFFF]),
    st.sampled_from([0, 1, 2, 3, 0xFFFF]),
    st.sampled_from([0, 0, 0, 1, 0xFFFFFFFF]),
    numbers,
    numbers,
    numbers,
    numbers,
    numbers,
    st.sampled_from([GPU.bytes, bytes(16)]),
)
RESTORE = (MessageType.RESERVE, ReserveFlag.RESTORE, 0, 1, (1 << 50) - 1, (1 << 50) - 1, 0, 0, bytes(16))
REPORT = (MessageType.REPORT, 0, 0, 1, 2**64 - 1, 2**64 - 1, 2**64 - 1, 0, bytes(16))


class Scene:
    """An arbiter in this process, in virtual time, with a hostile tenant and a quiet one on one GPU."""

    def __init__(self, folder: Path, clock: SimpleNamespace) -> None:
        self.clock = clock
        self.folder = folder
        self.server = Server(Settings(folder))
        for name in ("hostile", "quiet"):
            gpu = TenantGpu(f"GPU-{GPU}", 500, 1000, 1000, 300)
            self.server.add_tenant(TenantRecord(name, str(folder / name), [gpu]))
        self.hostile = [self.connect("hostile") for _ in range(3)]

    def connect(self, name: str) -> socket.socket:
        """A connection that has said HELLO and attached."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        sock.connect(str(self.folder / name))
        sock.send(MESSAGE_STRUCT.pack(MessageType.HELLO, 0, 0, 1, ABI_VERSION, 0, 0, 0, bytes(16)))
        sock.send(MESSAGE_STRUCT.pack(MessageType.ATTACH, 0, 0, 2, 0, 0, 0, 0, GPU.bytes))
        self.turn()
        return sock

    def send(self, at: int, fields: tuple) -> None:
        """One message on a hostile connection, which is made again when the arbiter has ended it."""
        try:
            self.hostile[at].send(MESSAGE_STRUCT.pack(*fields))
        except OSError:
            self.hostile[at].close()
            self.hostile[at] = self.connect("hostile")
        self.turn()
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self.hostile[at].recv(64):
                pass

    def turn(self) -> None:
        """What `run` does between two waits, with all that is ready now."""
        self.clock.now_ns += TURN_NS
        while ready := self.server.selector.select(0):
            for key, _ in ready:
                key.data()
            self.server.turn()
            self.server._timer.clear()
            if all(key.fileobj is self.server._timer for key, _ in ready):
                break
        self.server.turn()

    def grant_of(self, name: str) -> GrantState:
        return self.server.engine.tenants[name].grants[0]

    def close(self) -> None:
        for sock in self.hostile:
            sock.close()
        self.server.close()


def ledger_is_valid(grant: GrantState) -> bool:
    """The sums are those of the processes, nothing is negative, and the page shows them."""
    leases = [process.leases[grant.slot] for process in grant.attached] + list(grant.absent.values())
    shared = sum(piece.bytes for piece in grant.shared._all.values())
    return (
        grant.leased_bytes == sum(lease.leased_bytes for lease in leases) + shared
        and grant.context_bytes == sum(lease.context_bytes for lease in leases)
        and min(grant.leased_bytes, grant.context_bytes, *(lease.held_bytes for lease in leases), 0) == 0
        and grant.leased_bytes <= MAX_CLAIM_BYTES
        and grant.page._u64[136 // 8] == grant.leased_bytes
    )


@pytest.fixture
def virtual_time(monkeypatch) -> SimpleNamespace:
    """The clock that the arbiter reads."""
    clock = SimpleNamespace(now_ns=1)
    clock.monotonic_ns = lambda: clock.now_ns
    for module in (server_module, report_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


@contextlib.contextmanager
def scene_of(clock: SimpleNamespace) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="alq-") as folder:
        scene = Scene(Path(folder), clock)
        try:
            yield scene
        finally:
            scene.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), messages), max_size=60))
@example([(0, RESTORE)] * 40)
@example([(at, REPORT) for at in range(3)])
def test_no_message_ends_the_arbiter_or_spoils_its_ledger(virtual_time, sent):
    """After any messages of any types, every ledger adds up and the status can be said."""
    with scene_of(virtual_time) as scene:
        for at, fields in sent:
            scene.send(at, fields)
            assert ledger_is_valid(scene.grant_of("hostile"))
        assert scene.server.engine.tenants["hostile"].unrouted <= MAX_REPORTED
        status = report_module.status_of(scene.server)

        assert msgspec.json.decode(msgspec.json.encode(status), type=report_module.Status) == status
        assert not [event for event in scene.server.events.recent() if event["kind"] == "defect"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), messages), max_size=30))
@example([(at, (MessageType.WANT, 0, 0, 1, 2**64 - 1, 0, 0, 0, bytes(16))) for at in range(3)])
def test_another_tenant_gets_the_gpu_after_any_messages(virtual_time, sent):
    """A tenant that wants the GPU is granted it, whatever the other one has sent and however it holds on."""
    with scene_of(virtual_time) as scene:
        for at, fields in sent:
            scene.send(at, fields)
        quiet = scene.connect("quiet")
        quiet.send(MESSAGE_STRUCT.pack(MessageType.WANT, 0, 0, 3, 0, 0, 0, 0, bytes(16)))
        word = 0
        for _ in range(WITHIN_TURNS):
            scene.turn()
            word = scene.grant_of("quiet").page._u32[64 // 4]
            if word & 3 == WordState.VALID:
                break
        quiet.close()

        assert word & 3 == WordState.VALID


def test_a_defect_ends_one_connection_and_is_logged_once(virtual_time, monkeypatch, capfd):
    """A message that brings up a defect costs its sender the connection; ten such messages are one traceback."""
    with scene_of(virtual_time) as scene:
        monkeypatch.setattr(GrantState, "reserve", lambda *_, **__: 1 / 0)
        reserve = (MessageType.RESERVE, 0, 0, 1, 1, 1, 0, 0, bytes(16))
        for _ in range(10):
            scene.send(0, reserve)
        (defect,) = [event for event in scene.server.events.recent() if event["kind"] == "defect"]

        assert defect["count"] > 1
        assert 1 == capfd.readouterr().err.count("ZeroDivisionError: ")
        assert 2 <= len(scene.server.engine.tenants["hostile"].processes)

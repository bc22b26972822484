"""Tenants that send garbage, flood, or lie: only their own connection suffers."""

import os
import resource
import time
import uuid
from pathlib import Path

import pytest
from kit.arbiter import FakeProcess
from waiting import eventually

from aliquot.arbiter.abi import ABI_VERSION, MESSAGE_STRUCT, AttachFlag, MessageType, Refusal


def refused(process) -> int | None:
    """The reason the connection was closed with, or None if it was closed without one."""
    reason = None
    try:
        while True:
            message = process.receive()
            if message[0] == MessageType.REFUSED:
                reason = message[4]
    except (ConnectionError, BrokenPipeError):
        return reason


@pytest.mark.parametrize(
    "garbage",
    [b"x", os.urandom(63), os.urandom(65), bytes(64), b"\xff" * 64, os.urandom(4096)],
    ids=["one byte", "63 bytes", "65 bytes", "zeros", "ones", "page"],
)
def test_garbage_closes_only_that_connection(arbiter, garbage):
    """Bytes that are no message end the connection with MALFORMED; a neighbour's grant stays."""
    neighbour = arbiter.program("a")
    neighbour.hold()
    bad = arbiter.process("a", hello=False)
    bad.sock.send(garbage)

    assert refused(bad) == Refusal.MALFORMED
    assert neighbour.pages[0].valid
    bad.close()


def test_first_message_must_be_hello(arbiter):
    """A connection that does not say hello first is closed."""
    arbiter.tenant("a")
    bad = arbiter.process("a", hello=False)
    bad.send(MessageType.WANT)

    assert refused(bad) == Refusal.MALFORMED


def test_other_abi_version_is_refused_with_the_reason(arbiter):
    """A hook of another ABI version is told so."""
    arbiter.tenant("a")
    bad = arbiter.process("a", hello=False)
    bad.send(MessageType.HELLO, a=ABI_VERSION + 1)

    assert refused(bad) == Refusal.VERSION


def test_slot_that_was_not_attached_is_refused(arbiter):
    """Using a slot before ATTACH ends the connection."""
    bad = arbiter.program("a")
    bad.want(slot=7)

    assert refused(bad) == Refusal.MALFORMED


def test_gpu_of_somebody_else_is_not_attached(arbiter):
    """ATTACH to a GPU the tenant was not given is refused, and the connection lives on."""
    process = arbiter.program("a")
    kind, _, _, _, reason, *_ = process.ask(MessageType.ATTACH, uuid_bytes=uuid.uuid4().bytes)

    assert (kind, reason) == (MessageType.REFUSED, Refusal.NOT_YOURS)
    process.hold()


def test_releasing_more_than_was_leased_ends_the_connection(arbiter):
    """A process that claims to give back what it never had is closed, and the ledger is right."""
    arbiter.tenant("a", memory_mib=100)
    neighbour, liar = arbiter.process("a"), arbiter.process("a")
    neighbour.reserve(50 << 20)
    liar.send(MessageType.RELEASE, a=50 << 20)

    assert refused(liar) == Refusal.MALFORMED
    assert arbiter.seen("a").memory_used_mib == 50


def test_answers_for_another_epoch_are_ignored(arbiter):
    """RETURN or DRAINED of a grant that is not the current one changes nothing."""
    process = arbiter.program("a")
    epoch = process.hold()
    for wrong in (0, epoch + 5, 2**63):
        process.send(MessageType.RETURN, a=wrong)
        process.send(MessageType.DRAINED, a=wrong)
    time.sleep(0.05)

    assert process.pages[0].valid
    assert process.pages[0].epoch == epoch


def test_a_return_of_before_a_process_came_back_is_ignored(arbiter):
    """What a process that was let in again says of the epoch before does not send it away from the new one."""
    one, two = arbiter.programs("a", "a")
    one.want()
    two.want()
    first = max(one.wait_valid(), two.wait_valid())
    one.give_back()
    one.want()
    again = one.wait_valid(above=first)

    one.send(MessageType.RETURN, a=first)
    one.want()
    one.reserve(1 << 20)  # answered after both

    assert again == one.pages[0].epoch


@pytest.mark.real_time
def test_flood_is_throttled_and_neighbours_are_served(arbiter):
    """A connection that floods is not read for a while; another tenant's hand-overs go on."""
    bad, good = arbiter.programs("flood", "b")
    bad.sock.setblocking(False)
    message = MESSAGE_STRUCT.pack(MessageType.RETURN, 0, 0, 1, 0, 0, 0, 0, bytes(16))
    sent, end = 0, time.monotonic() + 10
    while time.monotonic() < end:
        try:
            bad.sock.send(message)
            sent += 1
        except BlockingIOError:
            if any(event["kind"] == "throttled" for event in arbiter.admin.events()):
                break
            time.sleep(0.001)
    began = time.monotonic()
    good.hold()

    assert time.monotonic() - began < 0.1
    assert any(event["kind"] == "throttled" for event in arbiter.admin.events())


def attached(arbiter, flags):
    """A process of tenant "many" that asked to be attached, and the answer to that."""
    process = arbiter.process("many", gpus=())
    gpu = uuid.UUID(arbiter.gpu.removeprefix("GPU-")).bytes
    answered = process.ask(MessageType.ATTACH, flags=flags, uuid_bytes=gpu)
    return process, (MessageType(answered[0]), answered[4], answered[5])


@pytest.mark.parametrize(("flags", "others"), [(0, AttachFlag.VIEW), (AttachFlag.VIEW, 0)], ids=["launch", "query"])
def test_too_many_processes_of_one_tenant_are_refused(arbiter, flags, others):
    """Of a tenant 256 processes may launch on a GPU, and 256 only query it; one more is refused with that number."""
    arbiter.tenant("many")
    arbiter.tenant("b")
    crowd = [attached(arbiter, flags)[0] for _ in range(256)]
    late, answered = attached(arbiter, flags)

    assert (MessageType.REFUSED, Refusal.TOO_MANY, 256) == answered
    assert refused(late) is None
    assert MessageType.PAGE == attached(arbiter, others)[1][0]
    arbiter.process("b").want()
    assert len(crowd) + 1 == arbiter.seen("many").processes


def test_refusals_that_repeat_are_one_event(arbiter):
    """Connections beyond all that a tenant may have are refused with the number; a hundred are one event."""
    arbiter.tenant("many")
    crowd = [arbiter.process("many", gpus=()) for _ in range(512)]
    late = [arbiter.process("many", hello=False) for _ in range(100)]

    assert {(MessageType.REFUSED, Refusal.TOO_MANY, 256)} == {
        (m[0], m[4], m[5]) for m in map(FakeProcess.receive, late)
    }
    events = [event["count"] for event in arbiter.admin.events() if event["kind"] == "too-many-processes"]
    assert ([100], 512) == (events, len(crowd))


def test_a_reader_that_never_reads_is_cut_off(arbiter):
    """A process that asks and never reads the answers loses its connection, nobody else waits."""
    arbiter.tenant("a")
    arbiter.tenant("b")
    deaf = arbiter.process("a")
    deaf.sock.settimeout(0.2)
    try:
        for _ in range(4000):
            deaf.send(MessageType.RESERVE, a=1)
    except OSError:
        pass
    good = arbiter.process("b")
    good.want()
    good.wait_valid(timeout_s=1)

    eventually(lambda: arbiter.seen("a").processes == 0)


def test_page_cannot_be_written_by_a_tenant(arbiter):
    """The grant page's descriptor refuses every way of writing."""
    import fcntl
    import mmap
    import socket

    arbiter.tenant("a")
    process = FakeProcess(str(arbiter.directory / "a.sock"))
    process.send(MessageType.ATTACH, uuid_bytes=uuid.UUID(arbiter.gpu.removeprefix("GPU-")).bytes)
    _, (fd,), _, _ = socket.recv_fds(process.sock, 65, 1)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 64)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0x8)
    os.close(fd)
    process.close()


def test_out_of_descriptors_new_processes_wait_and_the_arbiter_rests(arbiter):
    """Connections that use up the descriptors for tenants cost the arbiter no time and shut nobody else out."""
    first = arbiter.program("a")
    _, hard = resource.prlimit(arbiter.child.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(arbiter.child.pid, resource.RLIMIT_NOFILE, (arbiter.descriptors() + 80 + 40, hard))
    greedy = [arbiter.process("a", hello=False) for _ in range(100)]
    eventually(lambda: "out-of-descriptors" in {event["kind"] for event in arbiter.admin.events()})
    before_s = cpu_seconds(arbiter.child.pid)
    time.sleep(1)
    used_s = cpu_seconds(arbiter.child.pid) - before_s
    first.hold()
    for process in greedy:
        process.close()
    late = arbiter.process("a")
    late.hold()

    assert used_s < 0.5


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

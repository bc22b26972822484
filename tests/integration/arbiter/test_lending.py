"""Memory beyond a guarantee is lent, and called back when the guarantee of another tenant needs it."""

import os
import signal
import subprocess
import time
import uuid

import pytest
from waiting import eventually, stop

from aliquot.arbiter.abi import LeaseAnswer, MessageType, ReportFlag, ReserveFlag
from aliquot.arbiter.client import ArbiterError, TenantGpu, TenantRecord
from aliquot.arbiter.leases import Leases
from aliquot.arbiter.lending import END_NS
from aliquot.arbiter.report import status_of
from aliquot.arbiter.server import Server, Settings

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def lender(arbiter):
    """Tenants of a GPU of 16 GiB: `lender("a", 2, 14)` has 2 GiB guaranteed and may have 14."""

    def make(name: str, mem: int, most: int = 0, *, parks: bool = True) -> TenantRecord:
        gpu = TenantGpu(arbiter.gpu, 300, 1000, mem << 10, max_memory_mib=most << 10, device_mib=16 << 10)
        record = TenantRecord(name, str(arbiter.directory / f"{name}.sock"), [gpu], parks=parks)
        arbiter.admin.add_tenant(record)
        return record

    return make


def asked(process, size: int) -> tuple[int, int]:
    """What a process is leased of what it asks for, and what the answer says if it is nothing."""
    _, _, _, _, given, why, *_ = process.ask(MessageType.RESERVE, a=size, b=size)
    return given, why


def test_a_guarantee_is_never_refused_while_memory_is_lent(arbiter, lender):
    """It waits until the borrower, who is asked in the page, has given back; the borrower gets nothing meanwhile."""
    lender("a", 2, 14)
    lender("b", 8)
    a, b = arbiter.process("a"), arbiter.process("b")
    lent = a.reserve(12 * GIB)
    first = asked(b, 6 * GIB)
    refused = asked(a, 1 * GIB)
    called = a.pages[0].u64("memory_back_bytes")
    shown = arbiter.seen("a"), arbiter.seen("b")
    a.send(MessageType.RELEASE, a=called)

    assert (12 * GIB, (0, LeaseAnswer.CALLED_BACK), 0) == (lent, first, refused[0])
    assert 2 * GIB < called < 3 * GIB
    assert (10 << 10, called >> 20) == (shown[0].memory_lent_mib, shown[0].memory_called_mib)
    assert shown[1].memory_wait_s > 0
    eventually(lambda: asked(b, 6 * GIB) == (6 * GIB, 0), "the guarantee is had")
    assert 0 == a.pages[0].u64("memory_back_bytes")


def test_a_tenant_is_told_its_guarantee_as_the_total(arbiter, lender):
    """Or what it holds, where that is more; what it may hold and what is lent to others is beside it in the page."""
    lender("a", 2, 14)
    lender("b", 8)
    a, b = arbiter.process("a"), arbiter.process("b")
    totals = [a.pages[0].u64("memory_limit_bytes")]
    a.reserve(12 * GIB)
    totals.append(a.pages[0].u64("memory_limit_bytes"))

    assert [2 * GIB, 12 * GIB] == totals
    assert (14 * GIB, 8 * GIB) == tuple(each.pages[0].u64("memory_max_bytes") for each in (a, b))
    assert (0, 10 * GIB) == tuple(each.pages[0].u64("memory_lent_bytes") for each in (a, b))


def test_nothing_is_lent_to_a_tenant_that_could_not_give_it_back(arbiter, lender):
    """One that cannot be parked borrows once a program of it answers, and its status says why it does not before."""
    lender("a", 2, 14, parks=False)
    a = arbiter.process("a")
    before = a.reserve(3 * GIB), arbiter.seen("a").not_lent
    a.send(MessageType.REPORT, flags=ReportFlag.GIVES_BACK)

    why = "runs where nothing is parked, and no program of it answers when memory is called back (aliquot.memory)"
    assert (0, why) == before
    assert 3 * GIB == a.reserve(3 * GIB)
    assert "" == arbiter.seen("a").not_lent


def test_programs_are_asked_only_after_the_hook(arbiter, lender):
    """The page has a time for them only where one listens and what the hook gave back was not enough."""
    for name in ("a", "b"):
        lender(name, 2, 14)
    lender("c", 8)
    quiet, listener, c = (arbiter.process(name) for name in "abc")
    listener.send(MessageType.REPORT, flags=ReportFlag.GIVES_BACK)
    listener.reserve(9 * GIB)
    quiet.reserve(6 * GIB)
    asked(c, 8 * GIB)
    at_first = listener.pages[0].u64("memory_back_by_ns")

    eventually(lambda: asked(c, 8 * GIB)[0] or listener.pages[0].u64("memory_back_by_ns"), "it is asked")
    until_ns = listener.pages[0].u64("memory_back_by_ns")
    assert (0, 0) == (at_first, quiet.pages[0].u64("memory_back_by_ns"))
    assert time.monotonic_ns() < until_ns
    eventually(lambda: asked(c, 8 * GIB)[0] or arbiter.seen("a").memory_overdue, "one that does not listen is to park")


def test_a_call_back_goes_on_under_a_new_arbiter(arbiter, lender):
    """What was lent is lent still, for a borrower that is stopped too, and a guarantee that asks again waits again."""
    lender("a", 2, 14)
    lender("b", 8)
    holder = arbiter.holder(12 << 10)
    b = arbiter.process("b")
    asked(b, 6 * GIB)
    stop(holder.pid)
    arbiter.kill()
    arbiter.start()
    b = arbiter.process("b")
    b.reserve(0, flags=ReserveFlag.RESTORE)

    assert (0, LeaseAnswer.CALLED_BACK) == asked(b, 6 * GIB)
    assert 10 << 10 == arbiter.seen("a").memory_lent_mib
    holder.kill()
    eventually(lambda: asked(b, 6 * GIB)[0] == 6 * GIB, "the guarantee is had")


def test_memory_that_is_parked_is_free_until_it_comes_back(arbiter, lender):
    """It comes back where there is room for all of it, what was lent included; else it is said what is missing."""
    lender("a", 2, 14)
    lender("b", 8)
    a, b = arbiter.process("a"), arbiter.process("b")
    a.reserve(12 * GIB)
    parking = arbiter.admin.park_tenant("a")
    a.send(MessageType.PARKED, a=a.pages[0].u32("parked"))
    eventually(lambda: arbiter.admin.park_tenant("a").ready, "it is ready")
    leaving = arbiter.seen("a")
    arbiter.admin.note_away("a")
    away = arbiter.seen("a")
    given = asked(b, 6 * GIB)
    with pytest.raises(ArbiterError, match="12288 MiB are needed, 9984 MiB of its GPU are free"):
        arbiter.admin.take_back("a")
    b.send(MessageType.RELEASE, a=4 * GIB)
    eventually(lambda: arbiter.seen("b").memory_used_mib == 2 << 10)
    arbiter.admin.take_back("a")

    assert parking.is_new
    assert [(True, False, 12 << 10), (True, True, 0)] == [(x.stopped, x.parked, x.present_mib) for x in (leaving, away)]
    assert (6 * GIB, 0) == given
    assert 10 << 10 == arbiter.seen("a").memory_lent_mib


def test_a_borrower_that_gives_nothing_back_is_ended_at_last(tmp_path, capsys):
    """One that is stopped, neither answers nor can be parked: its processes end, so that the guarantee is had, and the
    log says why."""
    gpu = f"GPU-{uuid.uuid4()}"
    child = subprocess.Popen(["sleep", "1000"])
    os.kill(child.pid, signal.SIGSTOP)
    server = Server(Settings(tmp_path), Leases(tmp_path / "leases", 4096))
    try:
        for name, mem, most in (("a", 2, 14), ("b", 8, 0)):
            size = TenantGpu(gpu, 300, 1000, mem << 10, max_memory_mib=most << 10, device_mib=16 << 10)
            server.add_tenant(TenantRecord(name, str(tmp_path / f"{name}.sock"), [size], parks=True))
        a, b = (server.engine.tenants[name].grants[0] for name in "ab")
        record = server.engine.leases.take("a", a.gpu.uuid_bytes(), child.pid)
        assert record is not None
        record.store(12 * GIB)
        server.engine.leases.earlier = Leases(tmp_path / "leases", 4096).earlier
        server.restore_leases()
        now = time.monotonic_ns()
        for at_ns in (now, now + END_NS, now + END_NS + 10**9):
            given = b.memory.is_free(b, 6 * GIB, at_ns)
            server._look_at_memory(at_ns)
        ended = child.wait(10)
        said = next(t.lost_text for gpu in status_of(server).gpus for t in gpu.tenants if t.name == "a")
        for key, _ in server.selector.select(10):
            key.data()

        assert (False, -signal.SIGKILL) == (given, ended)
        assert said.startswith("it held 10.0 GiB beyond its guarantee that another's needs, did not give them")
        assert "could not be parked, for it has processes that are not connected; give back what is asked for" in said
        assert b.memory.is_free(b, 6 * GIB, now + 2 * END_NS)
        assert ["borrower-ended"] == [event["kind"] for event in server.events.recent() if "borrow" in event["kind"]]
        assert "a is ended: memory that was lent to it did not come back in time" in capsys.readouterr().err
    finally:
        child.kill()
        server.close()

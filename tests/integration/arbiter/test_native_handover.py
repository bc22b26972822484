"""Prepared hand-overs that a native thread carries out: the same ledger, the same checks."""

import contextlib
import ctypes
import random
import selectors
import socket
import threading
import time
import uuid
from dataclasses import replace

import pytest
from kit.arbiter import LIBC, OFFSET

from aliquot.arbiter.abi import MESSAGE_STRUCT, FailPolicy, MessageType
from aliquot.arbiter.engine import Dispatcher
from aliquot.arbiter.grants import GrantState, MemoryLease, Process, Tenant
from aliquot.arbiter.handover import NativeLoop, PreparedHandover, prepared
from aliquot.arbiter.pages import GrantPage
from aliquot.arbiter.protocol import Protocol
from aliquot.arbiter.records import TenantGpu, TenantRecord
from aliquot.driver.native import HANDOVER, native_part
from aliquot.tokens import TokenConfig, Turns, token_policy

FUTEX, FUTEX_WAIT_BITSET, NOT_FOR_GRANTS = 202, 9, 0x7FFFFFFF
GPU = f"GPU-{uuid.uuid4()}"


class Side:
    """An engine with tenants of one process each, whose messages lie in real sockets."""

    def __init__(self, shares, turns: Turns) -> None:
        self.engine = Dispatcher(token_policy(TokenConfig(turns=turns)), self.note)
        self.protocol = Protocol(self.engine, 1, 256)
        self.selector = selectors.EpollSelector()
        self.noted: list[str] = []
        self.processes: list[Process] = []
        self.tenants: list[socket.socket] = []
        for index, (request, limit) in enumerate(shares):
            self._add(f"t{index}", request, limit)

    def note(self, kind, _now_ns, **_facts) -> None:
        self.noted.append(kind)

    def _add(self, name, request, limit) -> None:
        gpu = TenantGpu(GPU, request, limit, 1000, 0)
        page = GrantPage(gpu, boot_id=1, fail_policy=FailPolicy.PACE, window_ms=1000, gap_us=2000, in_flight_us=4000)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        grant = GrantState(0, gpu, page)
        tenant = Tenant(TenantRecord(name, "", [gpu]), theirs, [grant])
        process = Process(ours, tenant, 0, -1, 0.0, 0, greeted=True, leases={0: MemoryLease()})
        grant.attached.add(process)
        grant.launching.add(process)
        tenant.processes.add(process)
        self.engine.add(tenant, 0)
        self.selector.register(ours, selectors.EVENT_READ)
        self.processes.append(process)
        self.tenants.append(theirs)

    def say(self, index: int, kind: int, epoch: int = 0) -> None:
        self.tenants[index].send(MESSAGE_STRUCT.pack(kind, 0, 0, 1, epoch, 0, 0, 0, bytes(16)))

    def read(self, now_ns: int) -> None:
        """What has come, one message of one process after the other, each followed by a decision."""
        for process in self.processes:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self.protocol.handle(process, process.sock.recv(65), now_ns)
                    self.engine.tick(now_ns)

    def ledger(self) -> list[tuple]:
        found = []
        for process in self.processes:
            grant = process.tenant.grants[0]
            account = self.engine.policy.account(process.tenant.name, GPU)
            owed = (account.lag.level, account.missing_ns(self.engine.policy._ticked_at_ns))
            found.append((grant.epoch, grant.valid, grant.draining, grant.handovers, account.window.total_ns, owed))
        return found

    def words(self) -> list[tuple[int, int]]:
        return [(p.tenant.grants[0].page._u32[16], p.tenant.grants[0].page._u64[9]) for p in self.processes]

    def close(self) -> None:
        self.selector.close()
        for process, theirs in zip(self.processes, self.tenants, strict=True):
            process.sock.close()
            theirs.close()
            process.tenant.grants[0].page.close()


@pytest.fixture
def sides():
    made = []

    def make(shares, turns):
        made.append(Side(shares, turns))
        return made[-1]

    yield make
    for side in made:
        side.close()


def hand_over(side: Side, loop: NativeLoop, now_ns: int, say, *, early: bool) -> int | None:
    """Put prepared hand-overs in force, let a process speak, and account for what was handed over; when, or None.

    With `early` it speaks before the gates of those that were revoked are closed.
    """
    armed = [loop.arm(ready) for ready in prepared(side.engine, now_ns)]
    assert all(armed)
    if early:
        say()
    side.engine.close_revoked()
    if not early:
        say()
    done = list(loop.take())
    for ready, at_ns, messages in done:
        ready.next.granted_epoch = ready.next_epoch
        for _ in range(messages):
            side.protocol.handle(ready.process, ready.process.sock.recv(65), at_ns)
        side.engine.tick(at_ns)
        side.engine.confirm(ready.next, ready.next_epoch, at_ns)
    return done[0].at_ns if done else None


def step(turn: random.Random, side: Side) -> tuple:
    """What happens next: who says what. The holder answers or returns, the others may ask."""
    holder = next((i for i, p in enumerate(side.processes) if p.tenant.grants[0].valid), None)
    draining = next((i for i, p in enumerate(side.processes) if p.tenant.grants[0].draining), None)
    if draining is not None:
        epoch = side.processes[draining].tenant.grants[0].epoch
        first, then = turn.choice(((1, 0), (0, 1), (0, 0)))
        want = (MessageType.WANT, 0)
        return (draining, [want] * first + [(MessageType.DRAINED, epoch)] + [want] * then)
    if holder is not None and turn.random() < 0.3:
        return (holder, [(MessageType.RETURN, side.processes[holder].tenant.grants[0].epoch)])
    return (turn.randrange(len(side.processes)), [(MessageType.WANT, 0)])


@pytest.mark.parametrize("turns", list(Turns))
@pytest.mark.parametrize("seed", range(3))
def test_the_ledger_is_that_of_the_arbiter_alone(sides, turns, seed):
    """On a random history the native thread leaves the same ledger, promises and pages as the interpreter alone."""
    turn = random.Random(seed)
    shares = [(300, 1000), (200, 500), (100, 1000), (300, 600)][: turn.randint(2, 4)]
    ahead, alone = sides(shares, turns), sides(shares, turns)
    loop = NativeLoop(native_part(HANDOVER), ahead.selector.fileno())
    handed = 0
    try:
        now = time.monotonic_ns()
        for side in (ahead, alone):
            side.engine.policy.skip(now)
        for _ in range(400):
            now = time.monotonic_ns()
            ahead.engine.decide(now)
            alone.engine.tick(now)
            index, messages = step(turn, ahead)

            def say(index=index, messages=messages):
                for kind, epoch in messages:
                    ahead.say(index, kind, epoch)
                    alone.say(index, kind, epoch)

            at_ns = hand_over(ahead, loop, now, say, early=turn.random() < 0.5)
            handed += at_ns is not None
            at_ns = at_ns or time.monotonic_ns()
            ahead.read(at_ns)
            alone.read(at_ns)
            assert alone.ledger() == ahead.ledger()
            assert alone.words() == ahead.words()
            time.sleep(turn.choice((0, 0, 0.0005, 0.003)))
    finally:
        loop.close()

    assert handed > 20
    assert "handover-taken-back" not in ahead.noted


@pytest.fixture
def revoked_pair(sides):
    """Two tenants: the first's turn was ended, its gate is still open, the second waits."""
    side = sides([(500, 1000), (500, 1000)], Turns.KUBESHARE)
    now = time.monotonic_ns()
    side.engine.policy.skip(now)
    side.say(0, MessageType.WANT)
    side.read(now)
    side.say(1, MessageType.WANT)
    side.read(now + 1)
    side.engine.policy.stop("t0", now + 2)
    side.engine.decide(time.monotonic_ns())
    loop = NativeLoop(native_part(HANDOVER), side.selector.fileno())
    yield side, loop
    loop.close()


@pytest.fixture
def drained_pair(revoked_pair):
    """Two tenants: the first's turn was ended, its process has yet to answer, the second waits."""
    side, loop = revoked_pair
    side.engine.close_revoked()
    return side, loop


def raw(kind, *, gpu=0, a=0) -> bytes:
    return MESSAGE_STRUCT.pack(kind, 0, gpu, 1, a, 0, 0, 0, bytes(16))


@pytest.mark.parametrize(
    "said",
    [
        [raw(MessageType.DRAINED, a=7)],
        [raw(MessageType.RETURN, a=1)],
        [raw(MessageType.DRAINED, gpu=1, a=1)],
        [raw(MessageType.DRAINED, a=1) + raw(MessageType.DRAINED, a=1)],
        [raw(MessageType.DRAINED, a=1)[:40]],
        [raw(MessageType.RELEASE, a=1 << 40), raw(MessageType.DRAINED, a=1)],
        [raw(MessageType.WANT)] * 8 + [raw(MessageType.DRAINED, a=1)],
        [bytes(64), raw(MessageType.DRAINED, a=1)],
    ],
    ids=["old epoch", "return after the end", "other GPU", "twice in one", "cut off", "lie before", "flood", "nothing"],
)
def test_only_the_awaited_answer_hands_over(drained_pair, said):
    """A message that is not the answer in force, or that hides it, grants nobody and wakes the arbiter to judge it."""
    side, loop = drained_pair
    before = side.words()[1]
    (ready,) = prepared(side.engine, side.engine.policy._ticked_at_ns)
    assert loop.arm(ready)
    for message in said:
        side.tenants[0].send(message)

    assert side.selector.select(2)
    assert [] == list(loop.take())
    assert before == side.words()[1]


def armed_for_long(side: Side, loop: NativeLoop) -> PreparedHandover:
    """The hand-over, which stands for longer than the test may take on a busy machine."""
    (ready,) = prepared(side.engine, side.engine.policy._ticked_at_ns)
    late_ns = time.monotonic_ns() + 60_000_000_000
    ready = replace(ready, upcoming=replace(ready.upcoming, until_ns=late_ns, until_wanting_ns=late_ns))
    assert loop.arm(ready)
    return ready


def test_a_hand_over_wakes_the_helpers_of_the_next_tenant_too(drained_pair):
    """A thread that does not sleep for grants, as a helper, is woken a moment after the hand-over."""
    side, loop = drained_pair
    armed_for_long(side, loop)
    page = side.processes[1].tenant.grants[0].page
    word = ctypes.c_void_p(page.address + OFFSET["word"])
    wait = [FUTEX, word, FUTEX_WAIT_BITSET, page._u32[16], None, None, NOT_FOR_GRANTS]
    helper = threading.Thread(target=LIBC.syscall, args=wait, daemon=True)
    helper.start()
    side.say(0, MessageType.DRAINED, 1)
    helper.join(20)

    assert not helper.is_alive()


def test_the_arbiter_hears_of_a_hand_over_by_the_messages_that_led_to_it(drained_pair):
    """The answer grants the next tenant at once and stays in the socket, where it wakes the arbiter."""
    side, loop = drained_pair
    ready = armed_for_long(side, loop)
    assert [] == side.selector.select(0)
    side.say(0, MessageType.WANT)
    side.say(0, MessageType.DRAINED, 1)

    assert side.selector.select(2)
    word, deadline = side.words()[1]
    (done,) = loop.take()
    assert (1 << 2 | 1, done.at_ns + ready.upcoming.quota_ns) == (word, deadline)
    assert 2 == done.messages
    assert raw(MessageType.WANT) == side.processes[0].sock.recv(65)


def test_a_gate_that_is_still_open_is_closed_before_the_next_one_opens(revoked_pair):
    """A process that answers while its gate is being closed finds it closed once the next tenant is granted."""
    side, loop = revoked_pair
    armed_for_long(side, loop)
    assert 1 << 2 | 1 == side.words()[0][0]
    side.say(0, MessageType.DRAINED, 1)

    assert side.selector.select(2)
    assert [1 << 2, 1 << 2 | 1] == [word for word, _ in side.words()]


def test_a_hand_over_that_was_taken_back_is_not_carried_out(drained_pair):
    """An answer that comes after the arbiter took the hand-over back is the arbiter's."""
    side, loop = drained_pair
    (ready,) = prepared(side.engine, side.engine.policy._ticked_at_ns)
    loop.arm(ready)
    assert [] == list(loop.take())
    before = side.words()
    side.say(0, MessageType.DRAINED, 1)

    assert side.selector.select(2)
    time.sleep(0.02)
    assert before == side.words()


def test_a_holder_that_dies_is_left_to_the_arbiter(drained_pair):
    """A connection that closes before its answer grants nobody; the arbiter is woken for it."""
    side, loop = drained_pair
    (ready,) = prepared(side.engine, side.engine.policy._ticked_at_ns)
    loop.arm(ready)
    side.tenants[0].close()

    assert side.selector.select(2)
    assert [] == list(loop.take())


def test_a_grant_that_the_policy_did_not_decide_is_taken_back():
    """A gate that was opened against the policy is closed, and its epoch not used again."""
    seen: list[str] = []
    engine = Dispatcher(token_policy(TokenConfig()), lambda kind, _now, **_facts: seen.append(kind))
    gpu = TenantGpu(GPU, 300, 1000, 1000, 0)
    page = GrantPage(gpu, boot_id=1, fail_policy=FailPolicy.PACE, window_ms=1000, gap_us=2000, in_flight_us=4000)
    grant = GrantState(0, gpu, page, epoch=4)
    page.grant(5, 0, 1)

    engine.confirm(grant, 5, 0)

    assert (5, 5 << 2) == (grant.epoch, page._u32[16])
    assert ["handover-taken-back"] == seen
    page.close()

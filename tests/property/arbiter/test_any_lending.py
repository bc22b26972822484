"""Memory that is lent, over any history in virtual time: of allocations, frees, ends, parks and arbiters.

What decides is the arbiter's own `GpuMemory` over grant states; programs and the engine that parks are small models.
"""

import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aliquot.arbiter.abi import FailPolicy
from aliquot.arbiter.grants import GrantState, MemoryLease
from aliquot.arbiter.lending import ASK_NS, CLOSED_NS, END_NS, HOOK_NS, GpuMemory
from aliquot.arbiter.pages import GrantPage
from aliquot.arbiter.records import TenantGpu

MIB = 1 << 20
SIZE_MIB = 1000
GPU = f"GPU-{uuid.uuid4()}"
ROUND_NS = 250_000_000
ASK_AGAIN_NS = 20_000_000
DRAWS = st.integers(0, 99)
SIZES = st.sampled_from([1, 50, 100, 200, 300, 500])


@dataclass(eq=False)
class Program:
    """One tenant with one process. `used` of what is leased is in use; a wish is an allocation that waits."""

    name: str
    grant: GrantState
    answers: bool
    parkable: bool
    lease: MemoryLease = field(default_factory=MemoryLease)
    used: int = 0
    wish: int = 0
    since_ns: int = 0
    ended: bool = False

    @property
    def borrows(self) -> bool:
        """Whether what it is lent would come back without its end."""
        return self.answers or self.parkable


class AnyLending(RuleBasedStateMachine):
    """Tenants of one GPU whose guarantees fit in it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10**12
        self.memory = GpuMemory(SIZE_MIB * MIB)
        self.programs: list[Program] = []

    def teardown(self) -> None:
        """The pages are files."""
        for program in self.programs:
            program.grant.page.close()

    def one(self, draw: int) -> Program:
        return self.programs[draw % len(self.programs)]

    def state(self, gpu: TenantGpu, listens: bool) -> GrantState:
        """A grant state of the GPU among its tenants."""
        page = GrantPage(gpu, boot_id=1, fail_policy=FailPolicy.PACE, window_ms=1000, gap_us=2000, in_flight_us=2000)
        grant = GrantState(0, gpu, page, memory=self.memory, listens=listens)
        self.memory.grants.append(grant)
        return grant

    # -- what tenants do ---------------------------------------------------------------------------------------------

    @initialize(
        kinds=st.lists(st.tuples(st.sampled_from([100, 300, 500]), *[st.booleans()] * 2), min_size=3, max_size=4)
    )
    def begin(self, kinds: list[tuple[int, bool, bool]]) -> None:
        """Some are there from the start, and have borrowed what they get."""
        for mib, answers, parkable in kinds:
            self.come(mib, 900, answers, parkable)
        for program in self.programs[1:]:
            self.reserve(program, program.grant.guarantee_bytes + 250 * MIB)
        self.allocate(0, max(1, self.programs[0].grant.gpu.memory_mib))

    @precondition(lambda self: len(self.programs) < 5)
    @rule(mib=st.integers(0, 600), more=st.integers(0, 900), answers=st.booleans(), parkable=st.booleans())
    def come(self, mib: int, more: int, answers: bool, parkable: bool) -> None:
        """One comes with as much of a guarantee as there is."""
        mib = min(mib, SIZE_MIB - sum(program.grant.gpu.memory_mib for program in self.programs))
        gpu = TenantGpu(GPU, 100, 1000, mib, max_memory_mib=mib + more)
        name = f"t{len(self.programs)}"
        self.programs.append(Program(name, self.state(gpu, answers), answers, parkable))

    @precondition(lambda self: self.programs)
    @rule(draw=DRAWS, mib=SIZES)
    def allocate(self, draw: int, mib: int) -> None:
        """Within its guarantee it is never refused; beyond that never while bytes are called back, or were just now."""
        program = self.one(draw)
        if program.wish or program.grant.away:
            return
        needed = max(0, program.used + mib * MIB - program.lease.leased_bytes)
        within = program.grant.charged_bytes + needed <= program.grant.guarantee_bytes
        closed = bool(self.memory.needs) or self.now_ns < self.memory.closed_until_ns
        got = self.reserve(program, mib * MIB)
        if within:
            assert got or program.grant in self.memory.needs
        else:
            assert not got or (program.borrows and not closed) or not needed
            assert program.grant not in self.memory.needs
        if not got and within:
            program.wish, program.since_ns = mib * MIB, self.now_ns

    def reserve(self, program: Program, size: int) -> bool:
        """As the hook does: what is leased and not used is taken first."""
        needed = program.used + size - program.lease.leased_bytes
        got = needed <= 0 or program.grant.reserve(
            program.lease, needed, needed + 64 * MIB, borrows=program.borrows, now_ns=self.now_ns
        )
        program.used += size if got else 0
        return bool(got)

    @precondition(lambda self: self.programs)
    @rule(draw=DRAWS, mib=SIZES)
    def free(self, draw: int, mib: int) -> None:
        """What is freed stays leased until it is asked for."""
        program = self.one(draw)
        if not program.grant.away:
            program.used = max(0, program.used - mib * MIB)

    @precondition(lambda self: self.programs)
    @rule(draw=DRAWS)
    def end(self, draw: int) -> None:
        """One ends, wherever its memory is."""
        program = self.one(draw)
        self.programs.remove(program)
        self.memory.grants.remove(program.grant)
        self.memory.needs.pop(program.grant, None)
        program.grant.page.close()

    @precondition(lambda self: self.programs)
    @rule(draw=DRAWS, mib=st.integers(0, 600))
    def resize(self, draw: int, mib: int) -> None:
        """Another guarantee, as much as there is; what it holds beyond it is lent from then on."""
        program = self.one(draw)
        before = program.grant.gpu
        others = sum(other.grant.gpu.memory_mib for other in self.programs if other is not program)
        gpu = TenantGpu(GPU, 100, 1000, min(mib, SIZE_MIB - others), max_memory_mib=before.limit_mib)
        if program.grant.charged_bytes <= gpu.limit_mib * MIB:
            program.grant.resize(gpu)

    @rule()
    def arbiter_starts_anew(self) -> None:
        """The next one knows what each holds, and nothing of who waits; those ask again."""
        self.memory = GpuMemory(SIZE_MIB * MIB)
        for program in self.programs:
            before, program.grant = program.grant, self.state(program.grant.gpu, program.answers)
            program.grant.away = before.away
            before.page.close()
            held, program.lease = program.lease.leased_bytes, MemoryLease()
            program.grant.add(program.lease, held)
            program.since_ns = self.now_ns  # its time begins anew

    # -- what time does ----------------------------------------------------------------------------------------------

    @rule(rounds=st.sampled_from([1, 4, 25]), engine=st.booleans())
    def time_passes(self, rounds: int, engine: bool) -> None:
        """Those that wait ask again, hooks and programs answer, an engine that is there parks; the arbiter looks."""
        for _ in range(rounds):
            self.now_ns += ROUND_NS - ASK_AGAIN_NS
            over = self.memory.look(self.now_ns)
            self.now_ns += ASK_AGAIN_NS
            for program in [*self.programs]:
                grant = program.grant
                called, by_ns = grant.called
                if called:
                    assert grant.lent_bytes > 0
                    self.give_back(program, program.lease.leased_bytes - program.used)
                if by_ns and program.answers:
                    assert self.now_ns - grant.called_ns >= HOOK_NS or self.now_ns < self.memory.closed_until_ns
                    program.used -= min(called, program.used)
                    self.give_back(program, program.lease.leased_bytes - program.used)
                if self.memory.is_overdue(grant, self.now_ns) and program.parkable and engine:
                    assert not program.answers or self.now_ns - grant.called_ns >= ASK_NS
                    grant.away = True
                if grant in over:
                    assert self.now_ns - grant.called_ns > END_NS
                    self.end(self.programs.index(program))
            for program in self.programs:
                if program.wish and (self.reserve(program, program.wish) or program.grant not in self.memory.needs):
                    program.wish = 0  # or its guarantee is smaller now

    def give_back(self, program: Program, size: int) -> None:
        """A release of leases."""
        program.grant.add(program.lease, -size)

    @precondition(lambda self: any(program.grant.away for program in self.programs))
    @rule(draw=DRAWS)
    def come_back(self, draw: int) -> None:
        """A parked one comes back where what it holds is free, or called back for it."""
        away = [program for program in self.programs if program.grant.away]
        grant = away[draw % len(away)].grant
        if grant.charged_bytes <= self.memory.free_bytes():
            grant.away = False

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def no_byte_is_given_twice(self) -> None:
        """What is on the GPU fits in it, whatever was lent."""
        assert sum(program.grant.present_bytes for program in self.programs) <= SIZE_MIB * MIB
        assert all(program.grant.charged_bytes <= program.grant.limit_bytes for program in self.programs)

    @invariant()
    def who_waits_waits_for_what_is_lent_and_not_for_long(self) -> None:
        """As long as a guarantee waits, enough is called back; and it is over when the last borrower's time is."""
        for program in self.programs:
            if program.wish:
                assert self.now_ns - program.since_ns <= len(self.programs) * (END_NS + 4 * ROUND_NS)
        if self.memory.needs and self.memory.free_bytes() < min(n.needed_bytes for n in self.memory.needs.values()):
            self.memory.look(self.now_ns)
            assert any(program.grant.called_ns for program in self.programs)

    @rule()
    def in_the_end_every_guarantee_is_had(self) -> None:
        """Once all that wait have waited out everybody's time, all of them have their memory."""
        for _ in range(len(self.programs) * (END_NS + CLOSED_NS) // ROUND_NS):
            if any(program.wish for program in self.programs):
                self.time_passes(1, engine=False)
        assert not any(program.wish for program in self.programs)


TestAnyLending = AnyLending.TestCase
TestAnyLending.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.fixture
def case():
    """A GPU without tenants."""
    case = AnyLending()
    yield case
    case.teardown()


def test_nothing_is_lent_to_a_tenant_that_would_not_give_it_back(case):
    """One that neither answers nor can be parked has its guarantee, and not a byte more."""
    case.come(100, 800, answers=False, parkable=False)
    case.come(100, 800, answers=True, parkable=False)
    first, second = case.programs

    assert (True, False) == (case.reserve(first, 100 * MIB), case.reserve(first, MIB))
    assert case.reserve(second, 700 * MIB)

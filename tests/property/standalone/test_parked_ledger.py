"""The ledger of a machine over any history of tenants that come, are parked, come back and end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import Device, GpuRequest, Plan
from aliquot.placement.cluster import LedgerError
from aliquot.placement.machine import MachineLedger, NoRoom

GPUS, GPU_MIB = 2, 16_384
SIZES = st.integers(1, 12).map(lambda gib: gib * 1024)


class ParkedLedger(RuleBasedStateMachine):
    """`held` is what each tenant was promised, whether its memory is on a GPU or not."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MachineLedger([Device(n, GpuUuid(f"GPU-{n}"), "V100", GPU_MIB) for n in range(GPUS)])
        self.held: dict[TenantName, Plan] = {}
        self.number = 0

    def _one(self, draw: int, names: list[TenantName]) -> TenantName:
        return sorted(names)[draw % len(names)]

    @rule(mib=SIZES, parkable=st.booleans())
    def comes(self, mib, parkable):
        """A tenant that has room is placed."""
        request = GpuRequest(20, memory=Memory(mib=mib), park_after_s=60.0 if parkable else 0.0, movable=True)
        name = TenantName(f"t{self.number}")
        try:
            plan = self.ledger.plan(request)
        except NoRoom:
            return
        self.number += 1
        self.ledger.reserve(name, plan, request)
        self.held[name] = plan

    @precondition(lambda self: self.held.keys() - self.ledger.parked.keys())
    @rule(draw=st.integers(0, 99), rarely=st.integers(0, 19))
    def is_parked(self, draw, rarely):
        """An awake one gives its memory to others; rarely one of those that only people park."""
        name = self._one(draw, [*(self.held.keys() - self.ledger.parked.keys())])
        if rarely and not self.ledger.request_of(name).park_after_s:
            return
        self.ledger.park(name)

    @precondition(lambda self: self.held.keys() - self.ledger.parked.keys())
    @rule(draw=st.integers(0, 99), mib=SIZES)
    def is_resized(self, draw, mib):
        """An awake one has another size, where there is room for it."""
        name = self._one(draw, [*(self.held.keys() - self.ledger.parked.keys())])
        request = replace(self.ledger.request_of(name), memory=Memory(mib=mib))
        try:
            plan = self.ledger.without(name).plan_on(self.held[name].uuids, request)
        except NoRoom:
            return
        self.ledger.resize(name, plan, request)
        self.held[name] = plan

    @rule(mib=SIZES)
    def moves_are_asked_for(self, mib):
        """The moves that make room do, one after another, and no single other one does where two are named."""
        request, before = GpuRequest(20, memory=Memory(mib=mib)), self.ledger.plans
        moves = [] if self.ledger.has_room(request) else self.ledger.moves_for(request)
        trial = self.ledger.copy()
        for name, gpu in moves:
            assert not trial.has_room(request)
            trial.begin_move(name, str(gpu))
            trial.change_gpu(name)
            trial.end_move(name)

        assert not moves or trial.has_room(request)
        assert before == self.ledger.plans

    @precondition(lambda self: self.ledger.parked)
    @rule(draw=st.integers(0, 99))
    def comes_back(self, draw):
        """A parked one has its memory again exactly where that fits and takes no other's; if not, nothing changes."""
        name = self._one(draw, [*self.ledger.parked])
        (piece,) = self.held[name].slices
        fits = self.used_mib(piece.gpu) + piece.memory_mib <= GPU_MIB
        if not self.ledger.request_of(name).park_after_s:
            sizes = {True: [0], False: [piece.memory_mib]}
            for other, plan in self.held.items():
                parkable = self.ledger.request_of(other).park_after_s > 0
                if plan.slices[0].gpu == piece.gpu and (parkable or other not in self.ledger.parked):
                    sizes[parkable].append(plan.slices[0].memory_mib)
            fits &= max(sizes[True]) == 0 or sum(sizes[False]) + max(sizes[True]) <= GPU_MIB
        try:
            self.ledger.unpark(name)
        except LedgerError:
            assert not fits
            assert name in self.ledger.parked
        else:
            assert fits

    @precondition(lambda self: self.held)
    @rule(draw=st.integers(0, 99))
    def ends(self, draw):
        """Where its memory is makes no difference."""
        name = self._one(draw, [*self.held])
        self.ledger.release(name)
        del self.held[name]

    @rule()
    def engine_starts_anew(self):
        """A ledger that is filled from what each tenant holds is the same, in whatever order."""
        fresh = self.ledger.empty()
        for name in sorted(self.held):
            parked = name in self.ledger.parked
            fresh.reserve(name, self.held[name], self.ledger.request_of(name), parked=parked)
        assert (fresh.plans, fresh.parked) == (self.ledger.plans, self.ledger.parked)
        self.ledger = fresh

    def used_mib(self, gpu: GpuUuid) -> int:
        """Of a GPU, by the ledger."""
        return sum(p.memory_mib for plan in self.ledger.plans.values() for p in plan.slices if p.gpu == gpu)

    @invariant()
    def no_gpu_is_promised_twice(self):
        """The awake ones fit, each with all of its memory; nothing of a parked one is lost."""
        assert all(self.used_mib(device.uuid) <= GPU_MIB for device in self.ledger.devices)
        shown = {name: self.ledger.parked.get(name, plan) for name, plan in self.ledger.plans.items()}
        assert shown == self.held

    @invariant()
    def each_that_may_be_parked_can_come_back(self):
        """With all others of its kind away it fits beside those that stay."""
        for name in self.held:
            if self.ledger.request_of(name).park_after_s and name in self.ledger.parked:
                trial = self.ledger.copy()
                for other in self.held.keys() - trial.parked.keys():
                    if trial.request_of(other).park_after_s:
                        trial.park(other)
                trial.unpark(name)


TestParkedLedger = ParkedLedger.TestCase
TestParkedLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_tenant_that_stays_grows_as_far_as_one_that_is_parked_comes_back():
    """Another size is given beside those that may be parked by the rule by which a new tenant is."""
    ledger = MachineLedger([Device(0, GpuUuid("GPU-0"), "V100", GPU_MIB)])
    for name, mib, park_after_s in (("parked", 10_240, 60.0), ("stays", 5_120, 0.0)):
        request = GpuRequest(20, memory=Memory(mib=mib), park_after_s=park_after_s)
        ledger.reserve(TenantName(name), ledger.plan(request), request)
    ledger.park(TenantName("parked"))
    others = ledger.without(TenantName("stays"))

    with pytest.raises(NoRoom, match="would not find its 10"):
        others.plan_on([GpuUuid("GPU-0")], GpuRequest(20, memory=Memory(mib=6_145)))
    assert others.plan_on([GpuUuid("GPU-0")], GpuRequest(20, memory=Memory(mib=6_144)))

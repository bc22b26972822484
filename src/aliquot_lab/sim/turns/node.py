"""A node in virtual time: processes that run programs on GPUs, by the turns that a policy gives.

What a process does is what the hook does: it asks for a turn when it has work and no valid grant, keeps a bounded
amount of work queued, stops launching at a revocation and says when its work has drained, and gives the turn back when
it has been idle for a moment. A GPU runs the kernels of one process in order, and gives processes that have some at the
same time equal parts, as time slices do. A hand-over takes a message to the arbiter and one from it. Not modelled: the
time between two kernels of one queue, the length of a slice, processors that are busy.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from aliquot.tokens import Grant, Revoke, Share, TokenPolicy

from .mixes import MS, SECOND, Burst, Member, Mix, Rest, Restart, Step

STEP_NS: Final = 50 * MS
AT_ONCE_NS: Final = 50_000
PAUSES: Final = 9
"""The last pauses, from which the time that a turn is kept without work is learned."""
JUDGE_NS: Final = SECOND // 4


@dataclass(frozen=True, slots=True)
class MachineSpeeds:
    """How fast messages are, how much work may be queued, and how long a turn is kept without work."""

    handover_ns: int = 300_000
    queued_ns: int = 2 * MS
    stay_ns: int = 2 * MS
    """While no tenant waits; otherwise as learned from the pauses: see native/hook/token/stay.c."""


@dataclass(slots=True, eq=False)
class SharedGpu:
    """The processes that have kernels queued, which share it."""

    at_ns: int = 0
    active: list[SimulatedProcess] = field(default_factory=list)
    turn: int = 0  # counts changes, so that an event knows whether it still holds

    def advance(self, now_ns: int) -> None:
        """Let the kernels at the heads of the queues run up to now."""
        span, self.at_ns = now_ns - self.at_ns, now_ns
        if self.active and span > 0:
            part = span // len(self.active)
            for process in self.active:
                process.queued[0] -= part
                process.tenant.ran_ns += part


@dataclass(slots=True, eq=False)
class SimulatedTenant:
    """The record of one tenant: what it ran and wanted, at every step."""

    member: Member
    processes: list[SimulatedProcess] = field(default_factory=list)
    granted: bool = False
    epoch: int = 0
    pending: int = 0
    ran_ns: int = 0
    phases: list[list[int]] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    waits_ns: list[int] = field(default_factory=list)
    burst_began_ns: int | None = None
    active_ns: int = 0


@dataclass(slots=True, eq=False)
class SimulatedProcess:
    """One process of a tenant."""

    tenant: SimulatedTenant
    steps: Any
    gpus: tuple[SharedGpu, ...]
    todo: Burst | None = None
    left: int = 0
    queued: list[int] = field(default_factory=list)  # what is left of each piece of queued work
    valid: bool = False
    asked: bool = False
    draining: bool = False
    idle: int = 0  # counts, so that a check knows that something happened since
    idle_at_ns: int | None = None
    pauses_ns: deque[int] = field(default_factory=lambda: deque(maxlen=PAUSES))
    woke_at_ns: int | None = None


class SimulatedNode:
    """A mix under a policy for `seconds`; `run` gives what was measured."""

    def __init__(
        self, policy: TokenPolicy, mix: Mix, seed: int, seconds: float, machine: MachineSpeeds | None = None
    ) -> None:
        self.policy = policy
        self.mix = mix
        self.machine = machine or MachineSpeeds()
        self.now = 0
        self.end_ns = int(seconds * SECOND)
        self.handovers = 0
        self.lags: dict[str, list[float]] = {member.name: [] for member in mix.members}
        self._latency_ns = self.machine.handover_ns // 2
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._wake = 0
        self._gpus = {gpu: SharedGpu() for gpu in mix.gpus}
        self.tenants: dict[str, SimulatedTenant] = {}
        for number, member in enumerate(mix.members):
            self._join(member, Random(f"{seed} {number}"))

    def run(self) -> SimulatedNode:
        """Let the time pass."""
        self._at(0, self._sample)
        self._at(JUDGE_NS, self._judge)
        while self._events and self._events[0][0] <= self.end_ns:
            self.now, _, call, facts = heapq.heappop(self._events)
            call(*facts)
        for tenant in self.tenants.values():
            if tenant.phases and tenant.phases[-1][1] < 0:
                tenant.phases[-1][1] = self.end_ns
        return self

    def share(self, tenant: str, from_s: float, to_s: float) -> float:
        """The part of a GPU that a tenant's kernels took between two of the samples."""
        ran = self.tenants[tenant].ran
        first, last = (round(at_s * SECOND) // STEP_NS for at_s in (from_s, to_s))
        return (ran[last] - ran[first]) / ((last - first) * STEP_NS)

    def _join(self, member: Member, rng: Random) -> None:
        tenant = self.tenants[member.name] = SimulatedTenant(member)
        self._add(member)
        gpus = tuple(self._gpus[gpu] for gpu in member.gpus)
        for _ in range(member.processes):
            process = SimulatedProcess(tenant, member.program(lambda: self.now, rng), gpus)
            tenant.processes.append(process)
            self._at(rng.randrange(5 * MS), self._step, process)

    def _add(self, member: Member) -> None:
        share = Share(member.request_milli, member.limit_milli)
        self.policy.add_tenant(member.name, dict.fromkeys(member.gpus, share), self.now)

    def _at(self, when_ns: int, call: Callable[..., None], *facts: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_ns, self._count, call, facts))

    # What a program does.

    def _step(self, process: SimulatedProcess) -> None:
        """The last step is over."""
        step: Step = next(process.steps)
        tenant = process.tenant
        if isinstance(step, Burst):
            if not tenant.phases or tenant.phases[-1][1] >= 0:
                tenant.phases.append([self.now, -1])
            process.todo, process.left = step, step.kernels
            self._pump(process)
        elif isinstance(step, Restart):
            self._restart(process, step)
        else:
            if isinstance(step, Rest):
                tenant.phases[-1:] = [[tenant.phases[-1][0], self.now]] if tenant.phases else []
            self._at(self.now + step.span_ns, self._woken, process, isinstance(step, Rest))

    def _woken(self, process: SimulatedProcess, rested: bool) -> None:
        if rested:
            process.woke_at_ns = self.now
        self._step(process)

    def _restart(self, process: SimulatedProcess, step: Restart) -> None:
        tenant = process.tenant
        process.valid = process.asked = False
        process.idle += 1
        tenant.granted, tenant.epoch, tenant.pending = False, tenant.epoch + 1, 0
        if step.rejoin:
            self.policy.remove_tenant(tenant.member.name, self.now)
            self._add(tenant.member)
        else:
            self.policy.dead(tenant.member.name, self.now)
        process.draining = False
        self._at(self.now + step.span_ns, self._step, process)
        self._tick()

    def _pump(self, process: SimulatedProcess) -> None:
        """Queue as much as may be, or ask for a turn."""
        if not process.valid:
            if not process.asked and not process.draining:
                process.asked = True
                self._at(self.now + self._latency_ns, self._want, process)
            return
        todo, tenant = process.todo, process.tenant
        assert todo is not None
        gpu = process.gpus[todo.gpu]
        process.idle += 1
        if process.idle_at_ns is not None:
            process.pauses_ns.append(self.now - process.idle_at_ns)
            process.idle_at_ns = None
        if tenant.burst_began_ns is None:
            tenant.burst_began_ns = self.now
        gpu.advance(self.now)
        max_ns, at_once = self.machine.queued_ns, max(1, self.machine.queued_ns // 4 // todo.kernel_ns)
        while process.left:
            kernels = min(process.left, at_once)
            if process.queued and sum(process.queued) + kernels * todo.kernel_ns > max_ns:
                break
            process.left -= kernels
            process.queued.append(kernels * todo.kernel_ns)
        if process not in gpu.active:
            gpu.active.append(process)
        if process.woke_at_ns is not None:
            tenant.waits_ns.append(self.now - process.woke_at_ns)
            process.woke_at_ns = None
        self._schedule(gpu)

    def _schedule(self, gpu: SharedGpu) -> None:
        """Come back when the next piece of queued work has run."""
        gpu.turn += 1
        if gpu.active:
            left_ns = max(0, min(process.queued[0] for process in gpu.active))
            self._at(self.now + left_ns * len(gpu.active), self._ran, gpu, gpu.turn)

    def _ran(self, gpu: SharedGpu, turn: int) -> None:
        if turn != gpu.turn:
            return
        gpu.advance(self.now)
        done = [process for process in gpu.active if process.queued[0] <= 0]
        for process in done:
            process.queued.pop(0)
            if not process.queued:
                gpu.active.remove(process)
        self._schedule(gpu)
        for process in done:
            self._done(process)

    def _done(self, process: SimulatedProcess) -> None:
        """A piece of queued work has run."""
        tenant = process.tenant
        tenant.active_ns = self.now
        if process.left:
            if process.valid:
                self._pump(process)
        elif not process.queued:
            self._step(process)
            if process.valid and not process.queued:
                self._go_idle(process)
        if process.draining and not process.queued:
            self._at(self.now + self._latency_ns, self._drained, process, tenant.epoch)

    # What the hook does.

    def _go_idle(self, process: SimulatedProcess) -> None:
        process.idle += 1
        process.idle_at_ns = self.now
        self._check_later(process)

    def _check_later(self, process: SimulatedProcess) -> None:
        if not process.tenant.member.clings:
            self._at(self.now + AT_ONCE_NS, self._idle_check, process, process.idle)

    def _idle_check(self, process: SimulatedProcess, idle: int) -> None:
        if process.idle != idle or not process.valid or process.queued or process.idle_at_ns is None:
            return
        if self.now - process.idle_at_ns < self._stay_ns(process):
            self._check_later(process)
            return
        process.valid = False
        self._at(self.now + self._latency_ns, self._returned, process.tenant, process.tenant.epoch)

    def _stay_ns(self, process: SimulatedProcess) -> int:
        """How long an idle holder keeps its turn: while others wait, only where its pauses are mostly short."""
        if not any(self.policy.waiters(gpu) for gpu in process.tenant.member.gpus):
            return self.machine.stay_ns
        both_ways_ns, pauses = 2 * self.machine.handover_ns, sorted(process.pauses_ns)
        short = not pauses or pauses[len(pauses) // 2] < both_ways_ns
        return min(2 * both_ways_ns, self.machine.stay_ns) if short else AT_ONCE_NS

    def _want(self, process: SimulatedProcess) -> None:
        tenant = process.tenant
        if not process.asked:
            return
        if tenant.granted:
            self._at(self.now + self._latency_ns, self._open, process, tenant.epoch)
            return
        self.policy.want(tenant.member.name, self.now, self._burst(tenant))
        self._tick()

    def _open(self, process: SimulatedProcess, epoch: int) -> None:
        tenant = process.tenant
        if epoch != tenant.epoch or not tenant.granted:
            return
        process.asked, process.valid = False, True
        if process.left:
            self._pump(process)
        elif not process.queued:
            self._go_idle(process)

    def _returned(self, tenant: SimulatedTenant, epoch: int) -> None:
        if epoch != tenant.epoch or not tenant.granted or any(p.valid or p.asked for p in tenant.processes):
            return
        tenant.granted = False
        self.policy.returned(tenant.member.name, self.now, self._burst(tenant))
        tenant.burst_began_ns = None
        self._tick()

    def _drained(self, process: SimulatedProcess, epoch: int) -> None:
        tenant = process.tenant
        if process.draining:
            process.draining = False
            if process.left and not process.valid:
                self._pump(process)
        if epoch == tenant.epoch and tenant.pending:
            tenant.pending -= 1
            if not tenant.pending:
                for gpu in tenant.member.gpus:
                    self.policy.drained(tenant.member.name, gpu, self.now, self._burst(tenant))
                    self.policy.caught_up(tenant.member.name, gpu, self.now)
                tenant.burst_began_ns = None
                self._tick()

    def _burst(self, tenant: SimulatedTenant) -> int:
        return 0 if tenant.burst_began_ns is None else max(0, tenant.active_ns - tenant.burst_began_ns)

    # What the arbiter does.

    def _tick(self) -> None:
        for action in self.policy.tick(self.now):
            tenant = self.tenants[action.tenant]
            if isinstance(action, Grant):
                self.handovers += 1
                tenant.granted = True
                tenant.epoch += 1
                for process in tenant.processes:
                    self._at(self.now + self._latency_ns, self._open, process, tenant.epoch)
            elif isinstance(action, Revoke):
                self._revoke(tenant)
        self._wake += 1
        wake = self.policy.next_wake_ns()
        if wake is not None:
            self._at(max(wake, self.now + 1000), self._awake, self._wake)

    def _awake(self, number: int) -> None:
        if number == self._wake:
            self._tick()

    def _revoke(self, tenant: SimulatedTenant) -> None:
        tenant.granted = False
        tenant.pending = len(tenant.processes)
        for process in tenant.processes:
            process.valid = process.asked = False
            process.idle += 1
            process.draining = True
            if not process.queued:
                self._at(self.now + self._latency_ns, self._drained, process, tenant.epoch)
            if process.left:
                process.asked = True
                self._at(self.now + self._latency_ns + tenant.member.late_ns, self._want, process)

    # What is measured.

    def _sample(self) -> None:
        for gpu in self._gpus.values():
            gpu.advance(self.now)
        for tenant in self.tenants.values():
            tenant.ran.append(tenant.ran_ns)
        for member in self.mix.members:
            account = self.policy.account(member.name, member.gpus[0])
            self.lags[member.name].append(account.lag.owed_ns(self.now) / SECOND)
        self._at(self.now + STEP_NS, self._sample)

    def _judge(self) -> None:
        self.policy.judge(self.now)
        self._at(self.now + JUDGE_NS, self._judge)

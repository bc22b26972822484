"""Between the policy and the pages: turns what processes say into policy events, and actions into stored words.

No I/O but stores to pages, no logging, no clock: the loop hands in the time. One thing is read: whether a process that
others no longer wait for is stopped. Everything a process says about another
grant than the current one is old and ignored; what it says may shorten its own time only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aliquot.tokens import Grant, Renew, Revoke, Share, TokenPolicy

from .linux import is_stopped
from .records import TenantRecord
from .seats import Process, Seat, Seen, Tenant
from .turns import TurnLog
from .wakes import shortest_wake_us

STUCK_FACTOR: Final = 4
LONGEST_KERNEL_US: Final = 3_600_000_000

Emit = Callable[..., None]


class Dispatcher:
    """All tenants on the policy; `emit(kind, now_ns, **facts)` receives what is worth telling."""

    def __init__(self, policy: TokenPolicy, emit: Emit) -> None:
        self.policy = policy
        self.tenants: dict[str, Tenant] = {}
        self.turns = TurnLog()
        self.seen: Seen | None = None
        self.context_bytes: dict[str, int] = {}  # by GPU: the least that one context was seen to take
        self.closing: list[Seat] = []  # revoked, and the gates are still open
        self._emit = emit

    def add(self, tenant: Tenant, now_ns: int) -> None:
        """Put a tenant under the policy.

        Raises:
            ValueError: a share cannot be kept.
        """
        self.policy.add_tenant(tenant.name, shares_of(tenant.record), now_ns)
        self.tenants[tenant.name] = tenant
        for seat in tenant.seats:
            if seat.ungated:
                seat.page.open_for_good(seat.epoch + 1)

    def remove(self, tenant: Tenant, now_ns: int) -> None:
        """Take a tenant out; its gates close."""
        self._close_gates(tenant)
        self._end_turns(tenant, now_ns)
        for seat in tenant.seats:
            if seat.ungated:
                seat.page.close_gate(seat.epoch + 1)
        self.policy.remove_tenant(tenant.name, now_ns)
        del self.tenants[tenant.name]

    def want(self, process: Process, seat: Seat, burst_ns: int, now_ns: int) -> None:
        """A process has work to launch."""
        tenant = process.tenant
        if seat.ungated:
            return
        seat.launching.add(process)
        if seat.valid and not tenant.stopping:
            if process in seat.returned:
                self._reopen(process, seat, now_ns)
            seat.users.add(process)
            return
        seat.wanting.add(process)
        first = not tenant.wanted_at_ns
        if first:
            tenant.wanted_at_ns = now_ns
        self.policy.want(tenant.name, now_ns, burst_ns)
        if first and seat.gpu.wake_us:
            seat.woke = self.policy.account(tenant.name, seat.gpu.uuid).is_urgent(now_ns)

    def give_back(self, process: Process, seat: Seat, epoch: int, burst_ns: int, now_ns: int) -> None:
        """A process is idle and gives the token back."""
        if not seat.valid or not seat.first_epoch <= epoch <= seat.epoch:
            return
        seat.returned.add(process)
        seat.users.discard(process)
        self._maybe_idle(process.tenant, burst_ns, now_ns)

    def drained(self, process: Process, seat: Seat, epoch: int, burst_ns: int, now_ns: int) -> None:
        """After a revocation: nothing of this process runs any more. One that answers late answers for its old work."""
        self._catch_up(process, seat, now_ns)
        if seat.draining and epoch == seat.epoch:
            seat.pending.discard(process)
            self._maybe_drained(process.tenant, seat, burst_ns, now_ns)

    def report(self, process: Process, unrouted: int, ungated_ns: int, now_ns: int) -> None:
        """A process says what of it went past the hook so far: sums, so a lost or repeated report is harmless."""
        tenant = process.tenant
        if unrouted and not process.unrouted:
            self._emit("unrouted", now_ns, tenant=tenant.name, pid=process.pid, functions=unrouted)
        if ungated_ns and not process.ungated_ns:
            self._emit("ungated", now_ns, tenant=tenant.name, pid=process.pid, ms=ungated_ns // 1_000_000)
        tenant.unrouted += max(0, unrouted - process.unrouted)
        tenant.ungated_ns += max(0, ungated_ns - process.ungated_ns)
        process.unrouted = max(process.unrouted, unrouted)
        process.ungated_ns = max(process.ungated_ns, ungated_ns)

    def attach(self, process: Process, seat: Seat) -> None:
        """From now on the process takes part in turns."""
        seat.launching.add(process)
        self._show_company({seat.gpu.uuid})

    def note_kernel(self, process: Process, seat: Seat, longest_ns: int) -> None:
        """The longest kernel or graph that a process lately saw of its own on a GPU."""
        seat.kernels_us[process] = min(longest_ns // 1000, LONGEST_KERNEL_US)

    def leave(self, process: Process, now_ns: int) -> None:
        """A process has ended, in order or not: its memory is free, nobody waits for its answers."""
        tenant = process.tenant
        tenant.processes.discard(process)
        slots = list(process.leases)
        for slot in slots:
            self._catch_up(process, tenant.seats[slot], now_ns)
            tenant.seats[slot].forget(process)
        self._show_company({tenant.seats[slot].gpu.uuid for slot in slots})
        if not any(seat.launching for seat in tenant.gated):
            self._all_gone(tenant, now_ns)
            return
        for slot in slots:
            self._maybe_drained(tenant, tenant.seats[slot], 0, now_ns)
        self._maybe_idle(tenant, 0, now_ns)
        if not any(seat.wanting for seat in tenant.seats):
            tenant.wanted_at_ns = 0
            self.policy.unwant(tenant.name, now_ns)

    def tick(self, now_ns: int) -> None:
        """Carry out what the policy decides now."""
        self.decide(now_ns)
        self.close_revoked()

    def decide(self, now_ns: int) -> None:
        """The same, but gates whose turn has ended stay open until `close_revoked`, or until another tenant is granted.

        Work goes on behind them meanwhile, so what is to be prepared for its end costs the GPU no time.
        """
        for action in self.policy.tick(now_ns):
            tenant = self.tenants[action.tenant]
            if isinstance(action, Grant):
                self._grant(tenant, action, now_ns)
            elif isinstance(action, Renew):
                for seat in tenant.gated:
                    seat.deadline_ns = action.deadline_ns
                    seat.page.renew(action.deadline_ns)
            elif isinstance(action, Revoke):
                self._revoke(tenant, now_ns)

    def close_revoked(self) -> None:
        """Close the gates of those that were revoked."""
        for seat in self.closing:
            seat.page.close_gate(seat.epoch)
        self.closing.clear()

    def is_awaited(self) -> bool:
        """Whether a tenant has lost its turn and has yet to say that its work has ended."""
        return any(seat.draining for tenant in self.tenants.values() for seat in tenant.gated)

    def confirm(self, seat: Seat, epoch: int, now_ns: int) -> None:
        """What the native loop has granted is what the policy has decided since; if not, it is taken back."""
        if seat.valid and seat.epoch == epoch:
            return
        seat.epoch = epoch  # was seen, so it is not used again
        seat.page.close_gate(epoch)
        self._emit("handover-taken-back", now_ns, gpu=seat.gpu.uuid)

    def show_waiters(self) -> None:
        """Tell every holder how many others wait for its GPU."""
        waiting: dict[str, int] = {}
        for tenant in self.tenants.values():
            if tenant.wanted_at_ns:
                for seat in tenant.gated:
                    waiting[seat.gpu.uuid] = waiting.get(seat.gpu.uuid, 0) + 1
        for tenant in self.tenants.values():
            own = 1 if tenant.wanted_at_ns else 0
            for seat in tenant.gated:
                seat.page.set_waiters(waiting.get(seat.gpu.uuid, 0) - own)

    def show_life(self, now_ns: int) -> None:
        """Give a sign of life in every page, by which the hook tells a hung arbiter from a slow one."""
        for tenant in self.tenants.values():
            for seat in tenant.seats:
                seat.page.beat(now_ns)

    def release_stuck(self, now_ns: int, timeout_ns: int) -> None:
        """Stop waiting for processes that have not answered a revocation for very long, such as stopped ones."""
        for tenant in self.tenants.values():
            for seat in tenant.seats:
                if seat.draining and now_ns - seat.revoked_at_ns > STUCK_FACTOR * timeout_ns:
                    pids = [process.pid for process in seat.pending]
                    self._emit("drain-timeout", now_ns, tenant=tenant.name, gpu=seat.gpu.uuid, pids=pids)
                    seat.pending.clear()
                    self._maybe_drained(tenant, seat, 0, now_ns)

    def close_all(self) -> None:
        """Close every gate."""
        for tenant in self.tenants.values():
            self._close_gates(tenant)

    def _grant(self, tenant: Tenant, action: Grant, now_ns: int) -> None:
        self.close_revoked()
        for seat in tenant.gated:  # the GPU waits for these stores, all else comes after them
            seat.first_epoch = seat.epoch = (seat.epoch + 1) & 0x3FFFFFFF
            if seat.granted_epoch == seat.epoch:  # by the native loop, which knew the least that this deadline could be
                seat.page.renew(action.deadline_ns)
            else:
                seat.page.grant(seat.epoch, now_ns, action.deadline_ns)
        waited = now_ns - tenant.wanted_at_ns if tenant.wanted_at_ns else 0
        tenant.wanted_at_ns = 0
        tenant.stopping = False
        for seat in tenant.gated:
            if seat.draining:
                seat.behind |= seat.pending
            seat.valid, seat.draining, seat.deadline_ns = True, False, action.deadline_ns
            seat.returned.clear()
            seat.handovers += 1
            seat.first_grant_ns = seat.first_grant_ns or now_ns
            seat.waits_ns.append(waited)
            seat.waited_ns += waited
            if seat.woke:
                seat.woke = False
                seat.wakes_ns.append(waited)
            seat.users = set(seat.wanting)
            seat.wanting.clear()
            self.turns.began(seat.gpu.uuid, tenant.name, now_ns)
        self.note_stopped(now_ns, {seat.gpu.uuid for seat in tenant.gated})

    def note_stopped(self, now_ns: int, gpus: set[str] | None = None) -> None:
        """Find stopped processes that others no longer wait for: they cannot say when their work has ended.

        The time they take says nothing about kernels, and they are not charged for it.
        """
        for other in self.tenants.values():
            for seat in other.seats:
                gpu = seat.gpu.uuid
                passed_over = seat.draining and not seat.stopped and self.policy.holder(gpu) is not None
                if passed_over and (gpus is None or gpu in gpus) and any(is_stopped(p.pid) for p in seat.pending):
                    seat.stopped = True
                    self.policy.stopped(other.name, gpu, now_ns)

    def _show_company(self, gpus: set[str]) -> None:
        """Tell every tenant of these GPUs whether others take turns on them; one without turns bounds nothing."""
        for gpu in gpus:
            seats = [seat for t in self.tenants.values() for seat in t.seats if seat.gpu.uuid == gpu]
            taking = [seat for seat in seats if seat.launching and not seat.ungated]
            for seat in seats:
                others = [other for other in taking if other is not seat and not seat.ungated]
                seat.page.set_company(bool(others), shortest_wake_us(others))

    def _reopen(self, process: Process, seat: Seat, now_ns: int) -> None:
        """The process gave its part back while others of the tenant go on: a new epoch lets it in again."""
        seat.returned.discard(process)
        seat.epoch = (seat.epoch + 1) & 0x3FFFFFFF
        seat.page.grant(seat.epoch, now_ns, seat.deadline_ns)

    def _revoke(self, tenant: Tenant, now_ns: int) -> None:
        tenant.stopping = False
        self.closing += tenant.gated
        for seat in tenant.gated:
            seat.valid, seat.draining, seat.revoked_at_ns = False, True, now_ns
            seat.pending = seat.launching - seat.returned
            seat.users.clear()
        for seat in tenant.gated:
            self._maybe_drained(tenant, seat, 0, now_ns)

    def _catch_up(self, process: Process, seat: Seat, now_ns: int) -> None:
        """Work that a process took over from an earlier grant has ended."""
        if process in seat.behind:
            seat.behind.discard(process)
            if not seat.behind:
                self.policy.caught_up(process.tenant.name, seat.gpu.uuid, now_ns, usual=not seat.stopped)
                seat.stopped &= seat.draining

    def _maybe_drained(self, tenant: Tenant, seat: Seat, burst_ns: int, now_ns: int) -> None:
        if seat.draining and not seat.pending:
            seat.draining = False
            self.turns.ended(seat.gpu.uuid, tenant.name, now_ns)
            self.policy.drained(tenant.name, seat.gpu.uuid, now_ns, burst_ns, usual=not seat.stopped)
            seat.stopped &= bool(seat.behind)

    def _maybe_idle(self, tenant: Tenant, burst_ns: int, now_ns: int) -> None:
        """When every user of every GPU has returned, the tenant has; a gang returns as a whole or not at all."""
        held = [seat for seat in tenant.seats if seat.valid]
        if not held or any(seat.users or (seat.launching and not seat.returned) for seat in held):
            return
        if any(seat.launching - seat.returned for seat in held):
            tenant.stopping = True
            self.policy.stop(tenant.name, now_ns)
            return
        self._close_gates(tenant)
        self._end_turns(tenant, now_ns)
        self.policy.returned(tenant.name, now_ns, burst_ns)

    def _all_gone(self, tenant: Tenant, now_ns: int) -> None:
        self._close_gates(tenant)
        self._end_turns(tenant, now_ns)
        tenant.wanted_at_ns = 0
        tenant.stopping = False
        for seat in tenant.seats:
            seat.draining = False
            seat.behind.clear()
        self.policy.dead(tenant.name, now_ns)

    def _end_turns(self, tenant: Tenant, now_ns: int) -> None:
        for seat in tenant.gated:
            self.turns.ended(seat.gpu.uuid, tenant.name, now_ns)

    def _close_gates(self, tenant: Tenant) -> None:
        for seat in tenant.seats:
            if seat.valid:
                seat.valid = False
                seat.page.close_gate(seat.epoch)
                seat.users.clear()


def shares_of(record: TenantRecord) -> dict[str, Share]:
    """The shares of a record on the GPUs that take turns; on all, if none does.

    Raises:
        ValueError: a share cannot be kept, or a GPU is named twice.
    """
    if len({gpu.uuid for gpu in record.gpus}) != len(record.gpus):
        raise ValueError(f"tenant {record.name!r} names a GPU twice")
    gates = record.gates()
    gated = [gpu for gpu in gates if gpu.enforce == "all"] or gates
    return {gpu.uuid: Share(gpu.request_milli, gpu.limit_milli, gpu.wake_us * 1000) for gpu in gated}

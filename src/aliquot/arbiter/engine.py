"""Between the policy and the pages: turns what processes say into policy events, and actions into stored words.

No I/O but stores to pages, no logging, no clock: the loop hands in the time. The only exception is to read whether a
process that others no longer wait for is stopped. A message about any grant but the current one is outdated and
ignored; what a process reports can only shorten its own time.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final

import msgspec

from aliquot.tokens import Grant, Renew, Revoke, Share, TokenPolicy

from .grants import GrantState, Process, Seen, Tenant
from .leases import Leases
from .lending import GpuMemory
from .linux import is_stopped
from .records import TenantRecord, TurnLog

STUCK_FACTOR: Final = 4
MAX_REPORTED: Final = 1 << 62
"""Of sums that processes report; JSON has no larger numbers for all readers."""
MAX_MIB: Final = 1 << 30
"""More than any GPU has, and what the hook and the page can add up in bytes."""
LONGEST_KERNEL_US: Final = 3_600_000_000

Emit = Callable[..., None]


class Dispatcher:
    """All tenants under the policy; `emit(kind, now_ns, **facts)` receives the events."""

    def __init__(self, policy: TokenPolicy, emit: Emit, leases: Leases | None = None) -> None:
        self.policy = policy
        self.tenants: dict[str, Tenant] = {}
        self.turns = TurnLog()
        self.seen: Seen | None = None
        self.context_bytes: dict[str, int] = {}  # by GPU: the least that one context was seen to take
        self.memories: dict[str, GpuMemory] = {}  # by GPU
        self.leases = leases or Leases(None, mmap.PAGESIZE)
        self.closing: list[GrantState] = []  # revoked, and the gates are still open
        self._emit = emit

    def add(self, tenant: Tenant, now_ns: int) -> None:
        """Add a tenant to the policy.

        Raises:
            ValueError: a share cannot be kept.
        """
        self.policy.add_tenant(tenant.name, shares_of(tenant.record), now_ns)
        self.tenants[tenant.name] = tenant
        tenant.active_ns = now_ns
        for grant in tenant.grants:
            grant.away = tenant.record.away
            self._place(grant)
            if grant.ungated:
                grant.page.open_for_good(grant.epoch + 1)
        self.park(tenant, tenant.record.parked)

    def resize(self, tenant: Tenant, record: TenantRecord, now_ns: int) -> None:
        """Give a tenant the shares and the memory of another record of it, or the only one of its GPUs in place of it.

        Raises:
            ValueError: a share cannot be kept.
        """
        before, shares = tenant.grants[0].gpu.uuid, shares_of(record)
        if moves := record.gates()[0].uuid != before:
            account = self.policy.account(tenant.name, before)
            used_ns, debt_ns, total_ns = (
                account.window.used_ns(now_ns),
                account.debt_ns(now_ns),
                account.window.total_ns,
            )
            self.policy.remove_tenant(tenant.name, now_ns)
            self.policy.add_tenant(tenant.name, shares, now_ns)
            self.policy.restore(
                tenant.name, *shares, used_ns=used_ns, debt_ns=debt_ns, total_ns=total_ns, now_ns=now_ns
            )
        else:
            self.policy.resize(tenant.name, shares, now_ns)
        moves_from = tenant.record.moves_from
        if moves:
            moves_from = "" if record.gpus[0].uuid == moves_from else before
        tenant.record = msgspec.structs.replace(
            record, parked=tenant.record.parked, away=tenant.record.away, moves_from=moves_from
        )
        for grant, gpu in zip(tenant.grants, record.gates(), strict=True):
            grant.resize(gpu)
            if moves:
                grant.memory.remove(grant)
                self._place(grant)
                grant.move(tenant.name, self.leases)
                self._show_company({before, gpu.uuid})

    def _place(self, grant: GrantState) -> None:
        """Count what is held among the memory of its GPU."""
        grant.memory = self.memories.setdefault(grant.gpu.uuid, GpuMemory())
        grant.memory.add(grant, grant.gpu.device_mib)

    def park(self, tenant: Tenant, number: int) -> None:
        """Have a tenant's calls of the driver wait from now on; `number` 0 lets them go on."""
        tenant.record = msgspec.structs.replace(tenant.record, parked=number)
        tenant.woken = False
        for grant in tenant.grants:
            grant.parked.clear()
            grant.page.park(number)

    def halt(self, tenant: Tenant, now_ns: int) -> None:
        """End a tenant's turn, and its wait for the next one until it is unparked."""
        tenant.wanted_at_ns = 0
        self.policy.unwant(tenant.name, now_ns)
        self.policy.stop(tenant.name, now_ns)

    def unpark(self, tenant: Tenant, now_ns: int) -> None:
        """Let a tenant's calls of the driver go on; those that wanted the GPU meanwhile wait for it from now on."""
        self.park(tenant, 0)
        tenant.record = msgspec.structs.replace(tenant.record, moves_from="")
        self.set_away(tenant, False)
        tenant.active_ns = now_ns
        if any(grant.wanting for grant in tenant.grants):
            tenant.wanted_at_ns = now_ns
            self.policy.want(tenant.name, now_ns, 0)

    def set_away(self, tenant: Tenant, away: bool) -> None:
        """Note whether what a tenant holds is off its GPUs, where others have it."""
        tenant.record = msgspec.structs.replace(tenant.record, away=away)
        for grant in tenant.grants:
            grant.away = away
            grant.memory.show_lent()

    def wake(self, tenant: Tenant, now_ns: int) -> None:
        """A tenant that is parked needs the GPU."""
        if tenant.record.parked and not tenant.woken:
            tenant.woken = True
            self._emit("woken", now_ns, tenant=tenant.name)

    def remove(self, tenant: Tenant, now_ns: int) -> None:
        """Remove a tenant; its gates close."""
        self._end_turns(tenant, now_ns)
        for grant in tenant.grants:
            grant.memory.remove(grant)
            if grant.ungated:
                grant.page.close_gate(grant.epoch + 1)
        self.policy.remove_tenant(tenant.name, now_ns)
        del self.tenants[tenant.name]

    def want(self, process: Process, grant: GrantState, burst_ns: int, now_ns: int) -> None:
        """A process has work to launch."""
        tenant = process.tenant
        if grant.ungated:
            return
        grant.launching.add(process)
        tenant.active_ns = now_ns
        if tenant.record.parked:
            grant.wanting.add(process)
            self.wake(tenant, now_ns)
            return
        if grant.valid and not tenant.stopping:
            if process in grant.returned:
                # It gave its part back while others of the tenant go on: a new epoch lets it in again.
                grant.returned.discard(process)
                grant.readmitted[process] = grant.epoch = (grant.epoch + 1) & 0x3FFFFFFF
                grant.page.grant(grant.epoch, now_ns, grant.deadline_ns)
            grant.users.add(process)
            return
        grant.wanting.add(process)
        first = not tenant.wanted_at_ns
        if first:
            tenant.wanted_at_ns = now_ns
        self.policy.want(tenant.name, now_ns, burst_ns)
        if first and grant.gpu.wake_us:
            grant.woke = self.policy.account(tenant.name, grant.gpu.uuid).is_urgent(now_ns)

    def give_back(self, process: Process, grant: GrantState, epoch: int, burst_ns: int, now_ns: int) -> None:
        """A process is idle and gives the token back."""
        if not grant.valid or epoch not in grant.may_return(process):
            return
        process.tenant.active_ns = now_ns
        grant.returned.add(process)
        grant.users.discard(process)
        self._maybe_idle(process.tenant, burst_ns, now_ns)

    def drained(self, process: Process, grant: GrantState, epoch: int, burst_ns: int, now_ns: int) -> None:
        """After a revocation: nothing of this process runs any more. A late answer counts for its old work."""
        self._catch_up(process, grant, now_ns)
        process.tenant.active_ns = now_ns
        if grant.draining and epoch == grant.epoch:
            grant.pending.discard(process)
            self._maybe_drained(process.tenant, grant, burst_ns, now_ns)

    def report(self, process: Process, unrouted: int, ungated_ns: int, now_ns: int) -> None:
        """A process reports what bypassed the hook so far: sums, so a lost or repeated report is harmless."""
        tenant = process.tenant
        if unrouted and not process.unrouted:
            self._emit("unrouted", now_ns, tenant=tenant.name, pid=process.pid, functions=unrouted)
        if ungated_ns and not process.ungated_ns:
            self._emit("ungated", now_ns, tenant=tenant.name, pid=process.pid, ms=ungated_ns // 1_000_000)
        unrouted, ungated_ns = min(unrouted, MAX_REPORTED), min(ungated_ns, MAX_REPORTED)
        tenant.unrouted = min(MAX_REPORTED, tenant.unrouted + max(0, unrouted - process.unrouted))
        tenant.ungated_ns = min(MAX_REPORTED, tenant.ungated_ns + max(0, ungated_ns - process.ungated_ns))
        process.unrouted = max(process.unrouted, unrouted)
        process.ungated_ns = max(process.ungated_ns, ungated_ns)

    def attach(self, process: Process, grant: GrantState) -> None:
        """From now on the process takes part in turns."""
        grant.launching.add(process)
        self._show_company({grant.gpu.uuid})

    def note_kernel(self, process: Process, grant: GrantState, longest_ns: int) -> None:
        """The longest kernel or graph that a process lately saw of its own on a GPU."""
        grant.kernels_us[process] = min(longest_ns // 1000, LONGEST_KERNEL_US)

    def leave(self, process: Process, now_ns: int) -> None:
        """A connection has ended, in order or not: its answers are no longer waited for. See `GrantState.forget`."""
        tenant = process.tenant
        tenant.processes.discard(process)
        tenant.note_listeners()
        slots = list(process.leases)
        for slot in slots:
            self._catch_up(process, tenant.grants[slot], now_ns)
            tenant.grants[slot].forget(process)
        self._show_company({tenant.grants[slot].gpu.uuid for slot in slots})
        if not any(grant.launching for grant in tenant.gated):
            self._end_turns(tenant, now_ns)
            tenant.wanted_at_ns = 0
            tenant.stopping = False
            for grant in tenant.grants:
                grant.draining = False
                grant.behind.clear()
            self.policy.dead(tenant.name, now_ns)
            return
        for slot in slots:
            self._maybe_drained(tenant, tenant.grants[slot], 0, now_ns)
        self._maybe_idle(tenant, 0, now_ns)
        if not any(grant.wanting for grant in tenant.grants):
            tenant.wanted_at_ns = 0
            self.policy.unwant(tenant.name, now_ns)

    def tick(self, now_ns: int) -> None:
        """Carry out what the policy decides now."""
        self.decide(now_ns)
        self.close_revoked()

    def decide(self, now_ns: int) -> None:
        """As `tick`, but gates whose turn has ended stay open until `close_revoked`, or until another tenant is
        granted.

        Work goes on behind them meanwhile, so what is to be prepared for its end costs the GPU no time.
        """
        for action in self.policy.tick(now_ns):
            tenant = self.tenants[action.tenant]
            if isinstance(action, Grant):
                self._grant(tenant, action, now_ns)
            elif isinstance(action, Renew):
                for grant in tenant.gated:
                    grant.deadline_ns = action.deadline_ns
                    grant.page.renew(action.deadline_ns)
            elif isinstance(action, Revoke):
                tenant.stopping = False
                self.closing += tenant.gated
                for grant in tenant.gated:
                    grant.valid, grant.draining, grant.revoked_at_ns = False, True, now_ns
                    # What a process left running before it was stopped is known; it has launched nothing since.
                    stopped = {process for process in grant.behind if is_stopped(process.pid)}
                    grant.pending = grant.launching - grant.returned - stopped
                    grant.users.clear()
                for grant in tenant.gated:
                    self._maybe_drained(tenant, grant, 0, now_ns)

    def close_revoked(self) -> None:
        """Close the gates of those that were revoked."""
        for grant in self.closing:
            grant.page.close_gate(grant.epoch)
        self.closing.clear()

    def is_awaited(self) -> bool:
        """Whether a tenant has lost its turn and has yet to say that its work has ended."""
        return any(grant.draining for tenant in self.tenants.values() for grant in tenant.gated)

    def confirm(self, grant: GrantState, epoch: int, now_ns: int) -> None:
        """What the native loop has granted is what the policy has decided since; if not, it is taken back."""
        if grant.valid and grant.epoch == epoch:
            return
        grant.epoch = epoch  # was seen, so it is not used again
        grant.page.close_gate(epoch)
        self._emit("handover-taken-back", now_ns, gpu=grant.gpu.uuid)

    def show_neighbours(self) -> None:
        """Show each tenant how many others wait for its GPU and, while it has work there, how many may have some too.

        The time in which work overlaps is divided among them.
        """
        waiting: dict[str, int] = {}
        running: dict[str, int] = {}
        grants = [(grant, tenant.wanted_at_ns > 0) for tenant in self.tenants.values() for grant in tenant.gated]
        for grant, waits in grants:
            uuid = grant.gpu.uuid
            waiting[uuid] = waiting.get(uuid, 0) + waits
            running[uuid] = running.get(uuid, 0) + grant.may_have_work
        for grant, waits in grants:
            uuid = grant.gpu.uuid
            grant.page.set_neighbours(waiting[uuid] - waits, running[uuid] - 1 if grant.may_have_work else 0)

    def show_life(self, now_ns: int) -> None:
        """Write a heartbeat to every page, by which the hook tells a hung arbiter from a slow one."""
        for tenant in self.tenants.values():
            for grant in tenant.grants:
                grant.page.beat(now_ns)

    def release_stuck(self, now_ns: int, timeout_ns: int) -> None:
        """Stop waiting for processes that have not answered a revocation for `timeout_ns`, such as stopped ones."""
        for tenant in self.tenants.values():
            for grant in tenant.grants:
                if grant.draining and now_ns - grant.revoked_at_ns > STUCK_FACTOR * timeout_ns:
                    pids = [process.pid for process in grant.pending]
                    self._emit("drain-timeout", now_ns, tenant=tenant.name, gpu=grant.gpu.uuid, pids=pids)
                    grant.pending.clear()
                    self._maybe_drained(tenant, grant, 0, now_ns)

    def close_all(self, now_ns: int) -> None:
        """Close every gate."""
        for tenant in self.tenants.values():
            self._end_turns(tenant, now_ns)

    def _grant(self, tenant: Tenant, action: Grant, now_ns: int) -> None:
        self.close_revoked()
        for grant in tenant.gated:  # the GPU waits for these stores, all else comes after them
            grant.first_epoch = grant.epoch = (grant.epoch + 1) & 0x3FFFFFFF
            if grant.granted_epoch == grant.epoch:
                # Granted by the native loop, which knew the earliest that this deadline could be.
                grant.page.renew(action.deadline_ns)
            else:
                grant.page.grant(grant.epoch, now_ns, action.deadline_ns)
        waited = now_ns - tenant.wanted_at_ns if tenant.wanted_at_ns else 0
        tenant.wanted_at_ns = 0
        tenant.stopping = False
        for grant in tenant.gated:
            if grant.draining:
                grant.behind |= grant.pending
            grant.valid, grant.draining, grant.deadline_ns = True, False, action.deadline_ns
            grant.returned.clear()
            grant.readmitted.clear()
            grant.handovers += 1
            grant.first_grant_ns = grant.first_grant_ns or now_ns
            grant.waits_ns.append(waited)
            grant.waited_ns += waited
            if grant.woke:
                grant.woke = False
                grant.wakes_ns.append(waited)
            grant.users = set(grant.wanting)
            grant.wanting.clear()
            self.turns.began(grant.gpu.uuid, tenant.name, now_ns)
        self.note_stopped(now_ns, {grant.gpu.uuid for grant in tenant.gated})

    def note_stopped(self, now_ns: int, gpus: set[str] | None = None) -> None:
        """Find stopped processes that others no longer wait for: they cannot report when their work ends.

        The time they take says nothing about kernels, and they are not charged for it.
        """
        for other in self.tenants.values():
            for grant in other.grants:
                gpu = grant.gpu.uuid
                passed_over = grant.draining and not grant.stopped and self.policy.holder(gpu) is not None
                if passed_over and (gpus is None or gpu in gpus) and any(is_stopped(p.pid) for p in grant.pending):
                    grant.stopped = True
                    self.policy.stopped(other.name, gpu, now_ns)

    def _show_company(self, gpus: set[str]) -> None:
        """Tell every tenant of these GPUs whether others take turns on them; one without turns bounds nothing."""
        for gpu in gpus:
            grants = [grant for t in self.tenants.values() for grant in t.grants if grant.gpu.uuid == gpu]
            taking = [grant for grant in grants if grant.launching and not grant.ungated]
            for grant in grants:
                others = [other for other in taking if other is not grant and not grant.ungated]
                wakes_us = (other.gpu.wake_us for other in others if other.gpu.wake_us)
                grant.page.set_company(bool(others), min(wakes_us, default=0))

    def _catch_up(self, process: Process, grant: GrantState, now_ns: int) -> None:
        """Work that a process took over from an earlier grant has ended."""
        if process in grant.behind:
            grant.behind.discard(process)
            if not grant.behind:
                self.policy.caught_up(process.tenant.name, grant.gpu.uuid, now_ns, usual=not grant.stopped)
                grant.stopped &= grant.draining

    def _maybe_drained(self, tenant: Tenant, grant: GrantState, burst_ns: int, now_ns: int) -> None:
        if grant.draining and not grant.pending:
            grant.draining = False
            self.turns.ended(grant.gpu.uuid, tenant.name, now_ns)
            self.policy.drained(tenant.name, grant.gpu.uuid, now_ns, burst_ns, usual=not grant.stopped)
            grant.stopped &= bool(grant.behind)

    def _maybe_idle(self, tenant: Tenant, burst_ns: int, now_ns: int) -> None:
        """When every user of every GPU has returned, the tenant has; a gang returns as a whole or not at all."""
        held = [grant for grant in tenant.grants if grant.valid]
        if not held or any(grant.users or (grant.launching and not grant.returned) for grant in held):
            return
        if any(grant.launching - grant.returned for grant in held):
            tenant.stopping = True
            self.policy.stop(tenant.name, now_ns)
            return
        self._end_turns(tenant, now_ns)
        self.policy.returned(tenant.name, now_ns, burst_ns)

    def _end_turns(self, tenant: Tenant, now_ns: int) -> None:
        """Close the tenant's gates: it holds no GPU from now on."""
        for grant in tenant.grants:
            if grant.valid:
                grant.valid = False
                grant.page.close_gate(grant.epoch)
                grant.users.clear()
        for grant in tenant.gated:
            self.turns.ended(grant.gpu.uuid, tenant.name, now_ns)


def shares_of(record: TenantRecord) -> dict[str, Share]:
    """The shares of a record on the GPUs that take turns; on all, if none does.

    Raises:
        ValueError: a share or memory cannot be kept, or a GPU is named twice.
    """
    if len({gpu.uuid for gpu in record.gpus}) != len(record.gpus):
        raise ValueError(f"tenant {record.name!r} names a GPU twice")
    for gpu in record.gpus:
        sizes = (gpu.memory_mib, gpu.context_mib, gpu.max_memory_mib, gpu.device_mib)
        if not 0 <= min(sizes) <= max(sizes) <= MAX_MIB:
            given = "memory_mib {}, context_mib {}, max_memory_mib {} and device_mib {}".format(*sizes)
            raise ValueError(f"tenant {record.name!r}: {given} of GPU {gpu.uuid} must be 0 to {MAX_MIB}")
    gates = record.gates()
    gated = [gpu for gpu in gates if gpu.enforce == "all"] or gates
    return {gpu.uuid: Share(gpu.request_milli, gpu.limit_milli, gpu.wake_us * 1000) for gpu in gated}

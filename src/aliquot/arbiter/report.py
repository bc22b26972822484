"""The status of everything at one moment, from the policy's accounts and the grant states."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from statistics import median
from typing import Final

from aliquot.model.wake import longest_kernel_us
from aliquot.status.tenants import PromiseStatus, TenantStatus, Unregistered, WakeStatus

from .engine import Dispatcher
from .grants import GrantState, Tenant, why_not_lent, why_not_parked
from .records import GpuStatus, Status
from .server import Server

SEEN_FOR_NS: Final = 5_000_000_000
MAX_UNREGISTERED: Final = 64
MIN_WAKES: Final = 100
"""A p99 of fewer values means nothing."""


def status_of(server: Server) -> Status:
    """A consistent picture; charges are brought up to now first."""
    engine, settings, tokens = server.engine, server.settings, server.settings.tokens
    window = tokens.window_ns
    now = time.monotonic_ns()
    engine.tick(now)
    gpus: dict[str, GpuStatus] = {}
    for tenant in engine.tenants.values():
        for grant in tenant.grants:
            uuid = grant.gpu.uuid
            if uuid not in gpus:
                context_mib = engine.context_bytes.get(uuid, 0) >> 20
                gpus[uuid] = GpuStatus(uuid, engine.policy.holder(uuid), 0.0, [], context_mib=context_mib)
            gpus[uuid].tenants.append(_tenant_status(engine, tenant, grant, now))
    for gpu in gpus.values():
        gated = [t for t in gpu.tenants if t.enforce == "all"]
        used = sum(engine.policy.account(t.name, gpu.uuid).window.used_ns(now) for t in gated)
        measured = sum(t.usage for t in gpu.tenants if t.enforce != "all")
        gpu.busy = min(1.0, used / window + measured)
    compared = _compare(engine, gpus, now)
    return Status(
        now_ns=now,
        boot_id=server.boot_id,
        pid=os.getpid(),
        window_ms=window // 1_000_000,
        turns=tokens.turns.value,
        quota_ms=tokens.quota_ns // 1_000_000,
        handover=tokens.handover.value,
        fail_policy=settings.fail_policy.name.lower(),
        connections=sum(len(t.processes) for t in engine.tenants.values()),
        gpus=sorted(gpus.values(), key=lambda g: g.uuid),
        compared=compared,
    )


def _compare(engine: Dispatcher, gpus: dict[str, GpuStatus], now_ns: int) -> bool:
    """Note the processes that NVML sees on tenants' GPUs and that are not attached; whether that could be told.

    It cannot where NVML has told nothing for a while, nor where its numbers are of another pid namespace than ours: a
    tenant's process has no number then, or none of those that have a context is in NVML's list.
    """
    seen, attached = engine.seen, set()
    computing = []
    for tenant, grant in [(owner, grant) for owner in engine.tenants.values() for grant in owner.grants]:
        attached |= {(grant.gpu.uuid, process.pid) for process in grant.attached}
        if tenant.record.parked:
            continue
        computing += [
            (grant.gpu.uuid, process.pid) for process in grant.attached if process.leases[grant.slot].contexts
        ]
    if seen is None or now_ns - seen.at_ns > SEEN_FOR_NS or any(not pid for _, pid in attached):
        return False
    if seen.used and computing and not any(key in seen.used for key in computing):
        return False
    rest = sorted((-(used or 0), uuid, pid) for (uuid, pid), used in seen.used.items() if (uuid, pid) not in attached)
    for used, uuid, pid in rest:
        if uuid not in gpus:
            continue
        bare = any(tenant.enforce == "never" for tenant in gpus[uuid].tenants)
        listed = gpus[uuid].bare if bare else gpus[uuid].unregistered
        if len(listed) < MAX_UNREGISTERED:
            listed.append(Unregistered(pid, -used >> 20))
    return True


def _tenant_status(engine: Dispatcher, tenant: Tenant, grant: GrantState, now_ns: int) -> TenantStatus:
    status = TenantStatus(
        name=tenant.name,
        request_milli=grant.gpu.request_milli,
        limit_milli=grant.gpu.limit_milli,
        usage=0.0,
        charged_ns=0,
        memory_used_mib=(grant.leased_bytes + grant.context_bytes) >> 20,
        memory_limit_mib=grant.gpu.memory_mib,
        memory_context_mib=grant.context_bytes >> 20,
        memory_pending_mib=-(-grant.pending_bytes >> 20),
        wait_ms_p50=round(median(grant.waits_ns) / 1e6, 3) if grant.waits_ns else 0.0,
        debt_ms=0.0,
        quota_ms=round(engine.policy.quota_ns(tenant.name) / 1e6, 3),
        handovers=grant.handovers,
        processes=len(grant.attached),
        waiting=False,
        waited_ns=0,
        memory_refusals=grant.memory_refusals,
        unrouted=tenant.unrouted,
        ungated_ms=round(tenant.ungated_ns / 1e6, 3),
        enforce=grant.gpu.enforce,
        kernel_ms=grant.kernel_us / 1000,
        wake=wake_status(grant, engine.tenants.values()),
        first_grant_ns=grant.first_grant_ns,
        stopped=tenant.record.parked > 0,
        parked=tenant.record.away,
        moves_from=tenant.record.moves_from,
        woken=tenant.woken,
        idle_s=0.0 if tenant.is_busy else round((now_ns - tenant.active_ns) / 1e9, 3),
        stays=why_not_parked(tenant),
        memory_lent_mib=grant.lent_bytes >> 20,
        memory_called_mib=grant.called[0] >> 20,
        memory_overdue=grant.memory.is_overdue(grant, now_ns),
        not_lent=why_not_lent(tenant) if grant.limit_bytes > grant.guarantee_bytes else "",
        lost=tenant.lost,
    )
    if (need := grant.memory.needs.get(grant)) is not None:
        status.memory_wait_s = round((now_ns - need.since_ns) / 1e9, 3)
    if grant.ungated:
        status.usage = round(grant.measured_usage(now_ns, engine.policy.config.window_ns), 4)
        status.charged_ns = grant.used_ns
        seen = engine.seen
        if grant.gpu.enforce == "never" and seen is not None and now_ns - seen.at_ns <= SEEN_FOR_NS:
            # No program of it is attached; the GPU is its own, so what NVML sees there is its.
            held = [used or 0 for (uuid, _), used in seen.used.items() if uuid == grant.gpu.uuid]
            status.memory_used_mib, status.processes = sum(held) >> 20, len(held)
        return status
    account = engine.policy.account(tenant.name, grant.gpu.uuid)
    kept = account.kept
    status.usage = round(account.usage(now_ns), 4)
    status.charged_ns = account.window.total_ns
    status.debt_ms = round(max(0, account.debt_ns(now_ns)) / 1e6, 3)
    status.waiting = tenant.wanted_at_ns > 0
    status.waited_ns = grant.waited_ns + (now_ns - tenant.wanted_at_ns if tenant.wanted_at_ns else 0)
    status.promise = PromiseStatus(
        windows=kept.windows,
        kept=kept.kept,
        busy_windows=kept.busy_windows,
        busy_kept=kept.busy_kept,
        wanted_ns=account.lag.wanted_ns,
        fluid_error=round(kept.error, 4),
        fluid_error_p95=round(kept.error_p95(), 4),
        fluid_error_worst=round(kept.error_worst, 4),
    )
    return status


def wake_status(grant: GrantState, tenants: Iterable[Tenant]) -> WakeStatus | None:
    """What was promised and measured, and the neighbour with the longest kernels if they are too long; None without a
    promise."""
    if not grant.gpu.wake_us:
        return None
    others = [(t.name, s) for t in tenants for s in t.grants if s is not grant and s.gpu.uuid == grant.gpu.uuid]
    rivals = sum(other.gpu.wake_us > 0 for _, other in others)
    allowed_us = longest_kernel_us(grant.gpu.wake_us, rivals)
    longest_us, name = max(((other.kernel_us, name) for name, other in others), default=(0, ""))
    too_long = longest_us > allowed_us
    ordered = sorted(grant.wakes_ns)
    p50, p99 = (
        round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1e6, 3) if ordered else 0.0
        for part in (0.50, 0.99)
    )
    late = len(ordered) >= MIN_WAKES and p99 > grant.gpu.wake_us / 1000
    return WakeStatus(
        promised_ms=grant.gpu.wake_us / 1000,
        p50_ms=p50,
        p99_ms=p99,
        count=len(ordered),
        kept=not (too_long or late),
        allowed_ms=max(0, allowed_us) / 1000,
        longest_ms=longest_us / 1000,
        longest_by=name,
    )

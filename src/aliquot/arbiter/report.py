"""The status of everything at one moment, from the policy's accounts and the seats."""

from __future__ import annotations

import os
import time
from statistics import median

from .engine import Engine
from .records import GpuStatus, Status, TenantStatus
from .seats import Seat, Tenant
from .settings import Settings


def status_of(engine: Engine, settings: Settings, boot_id: int) -> Status:
    """A consistent picture; charges are brought up to now first."""
    now = time.monotonic_ns()
    engine.tick(now)
    gpus: dict[str, GpuStatus] = {}
    for tenant in engine.tenants.values():
        for seat in tenant.seats:
            uuid = seat.gpu.uuid
            if uuid not in gpus:
                gpus[uuid] = GpuStatus(uuid, engine.policy.holder(uuid), 0.0, [])
            gpus[uuid].tenants.append(_tenant_status(engine, tenant, seat, now))
    window = settings.tokens.window_ns
    for gpu in gpus.values():
        used = sum(engine.policy.account(t.name, gpu.uuid).window.used_ns(now) for t in gpu.tenants)
        gpu.busy = min(1.0, used / window)
    tokens = settings.tokens
    return Status(
        now_ns=now,
        boot_id=boot_id,
        pid=os.getpid(),
        window_ms=window // 1_000_000,
        quota_mode=tokens.quota_mode.value,
        quota_ms=tokens.quota_ns // 1_000_000,
        handover=tokens.handover.value,
        fail_policy=settings.fail_policy.name.lower(),
        connections=sum(len(t.processes) for t in engine.tenants.values()),
        gpus=sorted(gpus.values(), key=lambda g: g.uuid),
    )


def _tenant_status(engine: Engine, tenant: Tenant, seat: Seat, now_ns: int) -> TenantStatus:
    account = engine.policy.account(tenant.name, seat.gpu.uuid)
    return TenantStatus(
        name=tenant.name,
        request_milli=seat.gpu.request_milli,
        limit_milli=seat.gpu.limit_milli,
        usage=round(account.usage(now_ns), 4),
        charged_ns=account.window.total_ns,
        memory_used_mib=(seat.leased_bytes + seat.context_bytes) >> 20,
        memory_limit_mib=seat.gpu.memory_mib,
        memory_context_mib=seat.context_bytes >> 20,
        wait_ms_p50=round(median(seat.waits_ns) / 1e6, 3) if seat.waits_ns else 0.0,
        debt_ms=round(account.promise.debt_ns(now_ns) / 1e6, 3),
        quota_ms=round(engine.policy.quota_ns(tenant.name) / 1e6, 3),
        handovers=seat.handovers,
        processes=len(seat.attached),
        waiting=tenant.wanted_at_ns > 0,
        waited_ns=seat.waited_ns + (now_ns - tenant.wanted_at_ns if tenant.wanted_at_ns else 0),
        memory_refusals=seat.memory_refusals,
    )

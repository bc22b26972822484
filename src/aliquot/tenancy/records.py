"""What the arbiter is given about a tenant, and what its status says about all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from aliquot.arbiter.records import Status, TenantGpu, TenantRecord
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import Enforce, Plan, Slice

UNKNOWN_MIB: Final = 300
LEAST_CONTEXT_MIB: Final = 64
"""Less than a context takes on any GPU, for models of which nothing is known."""


def tenant_record(
    name: str,
    socket: Path,
    slices: Iterable[Slice],
    models: Mapping[str, str],
    *,
    enforce: Enforce,
    wake_us: int,
    uid: int | None = None,
    max_memory: Memory | None = None,
    device_mib: Mapping[GpuUuid, int] | None = None,
    parks: bool = False,
) -> TenantRecord:
    """The record of a tenant with these slices; `models` are those of the machine's GPUs, by UUID.

    Its socket is for programs of the account `uid` alone, or for all that can reach it. Up to `max_memory` what is free
    of its GPUs is lent to it, where their sizes are given.
    """
    sizes_mib = device_mib or {}
    gpus = [
        TenantGpu(
            **msgspec.structs.asdict(piece),
            context_mib=context_allowance_mib(models[piece.gpu], piece.memory_mib),
            enforce=enforce,
            wake_us=wake_us,
            max_memory_mib=0 if max_memory is None else max_memory.on(sizes_mib.get(piece.gpu, 0)),
            device_mib=sizes_mib.get(piece.gpu, 0),
        )
        for piece in slices
    ]
    return TenantRecord(name=name, socket=str(socket), gpus=gpus, uid=uid, parks=parks)


def context_allowance_mib(model: str, memory_mib: int) -> int:
    """MiB to charge for a context on a GPU of this model, to a tenant that may have `memory_mib` of it.

    A context takes hundreds of MiB of its own, and a program may fill its limit within milliseconds of making it; so
    the arbiter charges this at once and corrects it by what NVML says a second later.

    The profile of the same model says it, and a tenant with less memory than that has no context. For another model it
    is a guess, and half of the tenant's memory at most: a tenant with little may run until the truth is measured.
    """
    return known_context_mib(model) or min(UNKNOWN_MIB, memory_mib // 2)


def known_context_mib(model: str) -> int:
    """MiB that a context takes on a GPU of this model; 0 if no profile says it."""
    from aliquot.driver.emulation import PROFILES

    return next((profile.context_mib for profile in PROFILES.values() if profile.model == model), 0)


def no_context_fits(memory_mib: int, model: str) -> str:
    """Why so much memory of a GPU is no use to a program, with what was probably meant; empty if a context fits in."""
    known = known_context_mib(model)
    if memory_mib >= (known or LEAST_CONTEXT_MIB):
        return ""
    needs = f"about {known} MiB on {model}" if known else "some hundred MiB"
    way_out = f"did you mean {memory_mib}Gi?" if memory_mib < LEAST_CONTEXT_MIB else "ask for more"
    return f"{memory_mib} MiB of GPU memory is less than one CUDA context needs ({needs}); {way_out}"


def tenant_names(status: Status) -> set[str]:
    """The tenants that the arbiter knows."""
    return {tenant.name for gpu in status.gpus for tenant in gpu.tenants}


def kernel_lengths_us(status: Status) -> dict[str, dict[str, int]]:
    """How long kernels were lately, by GPU and tenant; of GPUs and tenants of which something was seen."""
    measured = {
        gpu.uuid: {tenant.name: round(tenant.kernel_ms * 1000) for tenant in gpu.tenants if tenant.kernel_ms}
        for gpu in status.gpus
    }
    return {uuid: found for uuid, found in measured.items() if found}


def at_arbiter(name: TenantName, held: Plan, status: Status) -> Plan:
    """A plan with the memory that the arbiter lets its tenant keep: the limit there, and what is yet to be freed.

    Where the arbiter does not know the tenant, it may keep what it has.
    """
    kept = {
        gpu.uuid: now.memory_limit_mib + now.memory_pending_mib
        for gpu in status.gpus
        for now in gpu.tenants
        if now.name == name
    }
    pieces = held.slices
    return Plan(tuple(structs.replace(piece, memory_mib=kept.get(piece.gpu, piece.memory_mib)) for piece in pieces))


def moved_at(name: TenantName, plan: Plan, status: Status) -> Plan:
    """A plan of one slice on the GPU where the arbiter has its tenant: it may have been moved."""
    gpus = [gpu.uuid for gpu in status.gpus for now in gpu.tenants if now.name == name]
    if len(gpus) != 1 or len(plan.slices) != 1:
        return plan
    return Plan((structs.replace(plan.slices[0], gpu=GpuUuid(gpus[0])),))


def at_least(plan: Plan, other: Plan) -> Plan:
    """A plan with the memory of another one of the same GPUs where that is more."""
    pairs = zip(plan.slices, other.slices, strict=True)
    return Plan(tuple(structs.replace(own, memory_mib=max(own.memory_mib, its.memory_mib)) for own, its in pairs))

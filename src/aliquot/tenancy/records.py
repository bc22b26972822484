"""What the arbiter is given about a tenant, and what its status says about all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from aliquot.arbiter.records import Status, TenantGpu, TenantRecord
from aliquot.driver.allowance import context_allowance_mib
from aliquot.model.requests import Enforce, Slice


def tenant_record(
    name: str, socket: Path, slices: Iterable[Slice], models: Mapping[str, str], *, enforce: Enforce, wake_us: int
) -> TenantRecord:
    """The record of a tenant with these slices; `models` are those of the machine's GPUs, by UUID."""
    gpus = [
        TenantGpu(
            piece.gpu, piece.request_milli, piece.limit_milli, piece.memory_mib,
            context_allowance_mib(models[piece.gpu], piece.memory_mib), enforce, wake_us,
        )
        for piece in slices
    ]  # fmt: skip
    return TenantRecord(name=name, socket=str(socket), gpus=gpus)


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

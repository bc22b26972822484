"""The books of a machine's GPUs: who holds what, and what is left.

The one place where devices are given away. Labels on devices are derived from the residents, never stored beside them,
so a tenant that leaves takes its labels along. `check` states the invariants; tests call it after every step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import MILLI
from aliquot.model.requests import Device, Labels, Plan, Slice


class LedgerError(AliquotError):
    """A booking that contradicts the books: the name is taken, the device unknown or full."""


@dataclass(frozen=True)
class Resident:
    """One tenant on one device."""

    tenant: TenantName
    piece: Slice
    labels: Labels
    gpu_id: str


class Ledger:
    """What every tenant holds of every device of one machine."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = {device.uuid: device for device in devices}
        self._residents: dict[GpuUuid, dict[TenantName, Resident]] = {uuid: {} for uuid in self._devices}
        self._plans: dict[TenantName, Plan] = {}

    @property
    def devices(self) -> list[Device]:
        """All devices, in the order of their index."""
        return sorted(self._devices.values(), key=lambda device: device.index)

    @property
    def plans(self) -> dict[TenantName, Plan]:
        """A copy of what every tenant holds."""
        return dict(self._plans)

    def residents(self, gpu: GpuUuid) -> list[Resident]:
        """Who is on a device, in the order of arrival."""
        return list(self._residents[gpu].values())

    def free_milli(self, gpu: GpuUuid) -> int:
        """Milli-GPU of a device that nobody has reserved."""
        return MILLI - sum(resident.piece.request_milli for resident in self._residents[gpu].values())

    def free_memory_mib(self, gpu: GpuUuid) -> int:
        """MiB of a device that nobody has reserved."""
        held = sum(resident.piece.memory_mib for resident in self._residents[gpu].values())
        return self._devices[gpu].memory_mib - held

    def reserve(self, tenant: TenantName, plan: Plan, labels: Labels | None = None, gpu_id: str = "") -> None:
        """Write a plan into the books, all of it or nothing.

        Raises:
            LedgerError: the tenant holds something already, or a slice does not fit.
        """
        if tenant in self._plans:
            raise LedgerError(f'a tenant "{tenant}" is running already; choose another name or end it first')
        if len(set(plan.uuids)) != len(plan.slices):
            raise LedgerError(f'the plan of "{tenant}" names a GPU twice')
        for piece in plan.slices:
            self._require_room(tenant, piece)
        self._plans[tenant] = plan
        for piece in plan.slices:
            self._residents[piece.gpu][tenant] = Resident(tenant, piece, labels or Labels(), gpu_id)

    def release(self, tenant: TenantName) -> None:
        """Strike a tenant from the books; one that is not in them is no error."""
        self._plans.pop(tenant, None)
        for residents in self._residents.values():
            residents.pop(tenant, None)

    def check(self) -> None:
        """Raise AssertionError unless the books are in order: nothing over-promised, plans and residents agree."""
        for uuid in self._devices:
            assert 0 <= self.free_milli(uuid) <= MILLI
            assert 0 <= self.free_memory_mib(uuid) <= self._devices[uuid].memory_mib
        booked = {(name, piece) for name, plan in self._plans.items() for piece in plan.slices}
        seated = {(name, r.piece) for residents in self._residents.values() for name, r in residents.items()}
        assert booked == seated

    def _require_room(self, tenant: TenantName, piece: Slice) -> None:
        if piece.gpu not in self._devices:
            raise LedgerError(f'the plan of "{tenant}" names {piece.gpu}, which is not on this machine')
        if piece.request_milli > self.free_milli(piece.gpu) or piece.memory_mib > self.free_memory_mib(piece.gpu):
            raise LedgerError(f'the plan of "{tenant}" does not fit on {piece.gpu} any more')

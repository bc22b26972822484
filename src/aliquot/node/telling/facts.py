"""One picture of the node at one moment, from its machine, seats and arbiter; all that is told comes from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aliquot.arbiter.records import Status, TenantStatus
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI
from aliquot.node.machine import Machine


@dataclass(frozen=True)
class Owner:
    """Whose a tenant is."""

    namespace: str
    pod: str
    container: str
    uid: str = ""


@dataclass(frozen=True)
class Use:
    """One container on one GPU; `number` counts the container's GPUs from 0 by their index."""

    owner: Owner
    number: int
    status: TenantStatus


@dataclass(frozen=True)
class GpuUse:
    """One GPU with who is on it; `sick` is empty, or why nothing is placed there."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    busy: float
    holder: str
    sick: str
    uses: tuple[Use, ...]

    @property
    def free_milli(self) -> int:
        """What is not promised to anybody; never negative."""
        return max(0, MILLI - sum(use.status.request_milli for use in self.uses))

    @property
    def memory_used_mib(self) -> int:
        """Memory in use by tenants."""
        return sum(use.status.memory_used_mib for use in self.uses)


@dataclass(frozen=True)
class NodeFacts:
    """`answers` is whether the arbiter told anything; without it no GPU shows a use."""

    node: str
    driver: str
    gpus: tuple[GpuUse, ...]
    answers: bool
    window_ms: int = 0


@dataclass(frozen=True)
class Sources:
    """Where a picture comes from. Each function is quick or blocks shortly, and may be called from any thread."""

    node: str
    machine: Machine
    status: Callable[[], Status | None]
    """The arbiter's; None while it does not answer."""
    owners: Callable[[], Mapping[str, Owner]]
    """By the name of the arbiter's record."""
    sick: Callable[[], Mapping[GpuUuid, str]] = dict


def look(sources: Sources) -> NodeFacts:
    """The picture now."""
    status = sources.status()
    owners, sick = dict(sources.owners()), dict(sources.sick())
    known = {gpu.uuid: gpu for gpu in status.gpus} if status else {}
    numbers: dict[str, int] = {}
    gpus = []
    for gpu in sources.machine.gpus:
        now = known.get(gpu.uuid)
        uses = []
        for tenant in now.tenants if now else ():
            number = numbers[tenant.name] = numbers.get(tenant.name, -1) + 1
            uses.append(Use(owners.get(tenant.name) or owner_of(tenant.name), number, tenant))
        busy, holder = (now.busy, now.holder or "") if now else (0.0, "")
        gpus.append(
            GpuUse(
                gpu.index,
                gpu.uuid,
                gpu.model,
                gpu.memory_mib,
                busy,
                holder,
                sick.get(GpuUuid(gpu.uuid), ""),
                tuple(uses),
            )
        )
    driver = sources.machine.gpus[0].driver if sources.machine.gpus else ""
    return NodeFacts(sources.node, driver, tuple(gpus), status is not None, status.window_ms if status else 0)


def owner_of(record: str) -> Owner:
    """Whose a record is by its name alone, `namespace/pod/container`, as for a tenant that nobody seats any more."""
    parts = record.split("/", 2)
    return Owner(*parts) if len(parts) == 3 else Owner("", record, "")

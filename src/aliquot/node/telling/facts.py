"""A snapshot of the node, from its machine, tenants and arbiter; every page is drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from aliquot.arbiter.records import GpuTurns, Status, TenantStatus, Unregistered
from aliquot.driver.sensors import Sensors
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI
from aliquot.node.machine import Machine


@dataclass(frozen=True)
class Owner:
    """The owner of a tenant."""

    namespace: str
    pod: str
    container: str
    uid: str = ""


@dataclass(frozen=True)
class AuditTotals:
    """The audit's result: GPU's UUID -> programs bypassing Aliquot now; found and killed since the agent started.

    `works` is whether the last check could compare.
    """

    works: bool = False
    standing: Mapping[str, int] = field(default_factory=dict)
    found: int = 0
    ended: int = 0


@dataclass(frozen=True)
class Use:
    """One container on one GPU; `number` counts the container's GPUs from 0 by their index."""

    owner: Owner
    number: int
    status: TenantStatus


@dataclass(frozen=True)
class GpuUse:
    """One GPU with its tenants; `sick` is empty, or why nothing is placed there.

    `unregistered` are the programs on it that belong to no tenant, new ones too; `bypassing` counts those beyond the
    audit's grace period. `bare` are those on a GPU whose owner is not enforced: its own, unless they are
    another pod's. `sensors` has temperature, power and clocks where they are read.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    busy: float
    holder: str
    sick: str
    uses: tuple[Use, ...]
    unregistered: tuple[Unregistered, ...] = ()
    bare: tuple[Unregistered, ...] = ()
    bypassing: int = 0
    pci: str = ""
    sensors: Sensors | None = None

    @property
    def free_milli(self) -> int:
        """The part that is not promised; never negative."""
        return max(0, MILLI - sum(use.status.request_milli for use in self.uses))

    @property
    def memory_used_mib(self) -> int:
        """Memory in use by tenants."""
        return sum(use.status.memory_used_mib for use in self.uses)


@dataclass(frozen=True)
class NodeFacts:
    """`answers` is whether the arbiter answered; without it no GPU shows a use. `now_ns` is its CLOCK_MONOTONIC.

    `compared` is whether it compares NVML's processes with those registered; `boot_id` changes with each arbiter.
    """

    node: str
    driver: str
    gpus: tuple[GpuUse, ...]
    answers: bool
    window_ms: int = 0
    now_ns: int = 0
    compared: bool = False
    boot_id: int = 0
    audit: AuditTotals = AuditTotals()
    turns: str = ""


@dataclass(frozen=True)
class Sources:
    """The sources of a snapshot. Each function is quick or blocks shortly, and may be called from any thread."""

    node: str
    machine: Machine
    status: Callable[[], Status | None]
    """The arbiter's; None while it does not answer."""
    owners: Callable[[], Mapping[str, Owner]]
    """By the name of the arbiter's record."""
    sick: Callable[[], Mapping[GpuUuid, str]] = dict
    audit: Callable[[], AuditTotals] = AuditTotals
    driver: Callable[[], str] = str
    """The version that new containers are shown; empty where only the machine's is known."""
    turns: Callable[[str], GpuTurns | None] = lambda gpu: None
    """The turns of the last minute on a GPU; None while the arbiter does not answer."""
    sensors: Callable[[], Mapping[str, Sensors]] = dict
    """By UUID what NVML measures; called for pages only, so that nothing is read before there is a viewer."""


def driver_of(sources: Sources) -> str:
    """The driver's version; empty if unknown."""
    return sources.driver() or (sources.machine.gpus[0].driver if sources.machine.gpus else "")


def look(sources: Sources, *, sensors: bool = False) -> NodeFacts:
    """The picture now, with `sensors` too if that is set."""
    status, sensed = sources.status(), sources.sensors() if sensors else {}
    owners, sick, audit = dict(sources.owners()), dict(sources.sick()), sources.audit()
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
                tuple(now.unregistered) if now else (),
                tuple(now.bare) if now else (),
                audit.standing.get(gpu.uuid, 0),
                gpu.pci,
                sensed.get(gpu.uuid),
            )
        )
    facts = NodeFacts(sources.node, driver_of(sources), tuple(gpus), status is not None, audit=audit)
    if status is None:
        return facts
    return replace(
        facts, window_ms=status.window_ms, turns=status.turns, now_ns=status.now_ns, compared=status.compared,
        boot_id=status.boot_id,
    )  # fmt: skip


def owner_of(record: str) -> Owner:
    """Parse the owner from a record's name, `namespace/pod/container`, for tenants without a current allocation."""
    parts = record.split("/", 2)
    return Owner(*parts) if len(parts) == 3 else Owner("", record, "")

"""The report of a node's agent on its GPUs: the source of its pages, metrics and `/node.json`, which dashboards decode.

Every optional field has a default, so that the reports of older agents are readable.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aliquot.model.quantities import MILLI
from aliquot.status.sensors import Sensors
from aliquot.status.tenants import TenantStatus, Unregistered


class Owner(msgspec.Struct, frozen=True):
    """The container and pod of a tenant."""

    namespace: str
    pod: str
    container: str
    uid: str = ""

    @property
    def tenant(self) -> str:
        """`namespace/pod/container`, the name in the ledger."""
        return f"{self.namespace}/{self.pod}/{self.container}"


class Use(msgspec.Struct, frozen=True):
    """One container on one GPU; `number` counts the container's GPUs from 0 by their index."""

    owner: Owner
    status: TenantStatus
    number: int = 0


class NodeGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU with its tenants; `unhealthy` is the reason why nothing is placed there, empty for a healthy GPU.

    `unregistered` are the programs on it that belong to no tenant, including new ones; `bypassing` counts those past
    the audit's grace period. `bare` are those on a GPU whose owner is not enforced: its own, unless they are another
    pod's. `sensors` has temperature, power and clocks where they are read.
    """

    index: int = 0
    uuid: str
    model: str = ""
    memory_mib: int = 0
    busy: float = 0.0
    holder: str = ""
    unhealthy: str = ""
    uses: tuple[Use, ...] = ()
    unregistered: tuple[Unregistered, ...] = ()
    bare: tuple[Unregistered, ...] = ()
    bypassing: int = 0
    pci: str = ""
    sensors: Sensors | None = None

    @property
    def busy_milli(self) -> int:
        """The part of the window that was charged to its tenants."""
        return round(self.busy * MILLI)

    @property
    def free_milli(self) -> int:
        """Thousandths of the GPU that are not promised; never negative."""
        return max(0, MILLI - sum(use.status.request_milli for use in self.uses))

    @property
    def memory_used_mib(self) -> int:
        """Memory in use by tenants."""
        return sum(use.status.memory_used_mib for use in self.uses)

    def of(self, tenant: str) -> TenantStatus | None:
        """The measured values of a tenant, by its name in the ledger; None if it is not on the GPU."""
        return next((use.status for use in self.uses if use.owner.tenant == tenant), None)


class AuditTotals(msgspec.Struct, frozen=True):
    """The audit's result: GPU's UUID -> programs bypassing Aliquot now; found and killed since the agent started.

    `works` is whether the last check could compare.
    """

    works: bool = False
    standing: Mapping[str, int] = {}
    found: int = 0
    ended: int = 0


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """`answers` is whether the arbiter answered; without it no GPU shows a use. `now_ns` is its CLOCK_MONOTONIC.

    `compared` is whether it compares NVML's processes with those registered; `boot_id` changes with each arbiter.
    """

    node: str = ""
    driver: str = ""
    gpus: tuple[NodeGpu, ...]
    answers: bool = msgspec.field(default=True, name="arbiter_answers")
    window_ms: int = 0
    now_ns: int = 0
    compared: bool = False
    boot_id: int = 0
    audit: AuditTotals = AuditTotals()
    turns: str = ""

"""A snapshot of the node, from its machine, tenants and arbiter; every page is drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.arbiter.records import GpuTurns, Status
from aliquot.model.ids import GpuUuid
from aliquot.node.machine import Machine
from aliquot.node.provisioner import TenantProvisioner
from aliquot.status.nodes import AuditTotals, NodeGpu, NodeReport, Owner, Use
from aliquot.status.sensors import Sensors

_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True)
class Sources:
    """The sources of a snapshot. Each function is quick or blocks shortly, and may be called from any thread."""

    node: str
    machine: Machine
    status: Callable[[], Status | None]
    """The arbiter's; None while it does not answer."""
    owners: Callable[[], Mapping[str, Owner]]
    """By the name of the arbiter's record."""
    unhealthy: Callable[[], Mapping[GpuUuid, str]] = dict
    audit: Callable[[], AuditTotals] = AuditTotals
    driver: Callable[[], str] = str
    """The version that new containers are shown; empty where only the machine's is known."""
    turns: Callable[[str], GpuTurns | None] = lambda gpu: None
    """The turns of the last minute on a GPU; None while the arbiter does not answer."""
    sensors: Callable[[], Mapping[str, Sensors]] = dict
    """By UUID what NVML measures; called for pages only, so that nothing is read before there is a viewer."""


def sources_of(
    provisioner: TenantProvisioner,
    runtime_dir: Path,
    audit: Callable[[], AuditTotals] = AuditTotals,
    sensors: Callable[[], Mapping[str, Sensors]] = dict,
) -> Sources:
    """The sources of a node whose arbiter listens in `runtime_dir`."""

    def owners() -> dict[str, Owner]:
        tenants = [(tenant, tenant.owner) for tenant in list(provisioner.tenants.values())]
        return {t.record.name: Owner(o.namespace, o.pod, t.container, o.user or o.uid) for t, o in tenants}

    def turns(gpu: str) -> GpuTurns | None:
        try:
            with ArbiterClient(runtime_dir, timeout_s=_TIMEOUT_S) as client:
                return client.turns(gpu)
        except (ArbiterError, OSError, msgspec.MsgspecError):
            return None

    return Sources(
        provisioner.node,
        provisioner.machine,
        lambda: arbiter_status(runtime_dir),
        owners,
        lambda: provisioner.offer.unhealthy,
        audit,
        lambda: provisioner.machine.gpus[0].driver,
        turns,
        sensors,
    )


def arbiter_status(runtime_dir: Path) -> Status | None:
    """The arbiter's status; None while it does not answer. It uses a separate connection, so any thread may call it.

    An arbiter in another pid namespace than ours names processes by other numbers: then nothing counts as compared.
    """
    try:
        with ArbiterClient(runtime_dir, timeout_s=_TIMEOUT_S) as client:
            status = client.status()
            status.compared = status.compared and client.process() == status.pid
            return status
    except (ArbiterError, OSError, msgspec.MsgspecError):
        return None


def driver_of(sources: Sources) -> str:
    """The driver's version; empty if unknown."""
    return sources.driver() or (sources.machine.gpus[0].driver if sources.machine.gpus else "")


def read_report(sources: Sources, *, sensors: bool = False) -> NodeReport:
    """The picture now, with `sensors` too if that is set."""
    status, sensed = sources.status(), sources.sensors() if sensors else {}
    owners, unhealthy, audit = dict(sources.owners()), dict(sources.unhealthy()), sources.audit()
    known = {gpu.uuid: gpu for gpu in status.gpus} if status else {}
    numbers: dict[str, int] = {}
    gpus = []
    for gpu in sources.machine.gpus:
        now = known.get(gpu.uuid)
        uses = []
        for tenant in now.tenants if now else ():
            number = numbers[tenant.name] = numbers.get(tenant.name, -1) + 1
            uses.append(Use(owners.get(tenant.name) or owner_of(tenant.name), tenant, number))
        gpus.append(
            NodeGpu(
                index=gpu.index,
                uuid=gpu.uuid,
                model=gpu.model,
                memory_mib=gpu.memory_mib,
                busy=now.busy if now else 0.0,
                holder=(now.holder or "") if now else "",
                unhealthy=unhealthy.get(GpuUuid(gpu.uuid), ""),
                uses=tuple(uses),
                unregistered=tuple(now.unregistered) if now else (),
                bare=tuple(now.bare) if now else (),
                bypassing=audit.standing.get(gpu.uuid, 0),
                pci=gpu.pci,
                sensors=sensed.get(gpu.uuid),
            )
        )
    report = NodeReport(
        node=sources.node, driver=driver_of(sources), gpus=tuple(gpus), answers=status is not None, audit=audit
    )
    if status is None:
        return report
    return msgspec.structs.replace(
        report, window_ms=status.window_ms, turns=status.turns, now_ns=status.now_ns, compared=status.compared,
        boot_id=status.boot_id,
    )  # fmt: skip


def owner_of(record: str) -> Owner:
    """Parse the owner from a record's name, `namespace/pod/container`, for tenants without a current allocation."""
    parts = record.split("/", 2)
    return Owner(*parts) if len(parts) == 3 else Owner("", record, "")

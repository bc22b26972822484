"""Connects the agent's parts to the pages: its tenants, its arbiter, its unhealthy GPUs; and writes its events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client.registry import Collector

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.arbiter.records import GpuTurns, Status
from aliquot.driver.sensors import SensorReader
from aliquot.http.listening import PortTaken
from aliquot.node.audit import Audit, Auditing
from aliquot.node.display.facts import Sources, read_report
from aliquot.node.display.notices import Notices
from aliquot.node.display.server import application, serving
from aliquot.node.events import Events
from aliquot.node.pods import NodePods
from aliquot.node.processes import read_program
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings
from aliquot.status.nodes import AuditTotals, Owner
from aliquot.status.sensors import Sensors

_TIMEOUT_S: Final = 2.0


def sources_of(
    provisioner: TenantProvisioner,
    runtime_dir: Path,
    audit: Callable[[], AuditTotals] = AuditTotals,
    sensors: Callable[[], Mapping[str, Sensors]] = dict,
) -> Sources:
    """The sources of a node whose arbiter listens in `runtime_dir`."""

    def owners() -> dict[str, Owner]:
        tenants = list(provisioner.tenants.values())
        return {s.record.name: Owner(s.owner.namespace, s.owner.pod, s.container, s.owner.uid) for s in tenants}

    def driver() -> str:
        return provisioner.machine.gpus[0].driver

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
        driver,
        turns,
        sensors,
    )


class Display:
    """The node's pages and what goes with their facts: the audit, and the events on pods that have news."""

    def __init__(
        self, settings: NodeSettings, provisioner: TenantProvisioner, pods: NodePods, events: Events,
        collectors: Iterable[Collector] = (),
    ) -> None:  # fmt: skip
        """`collectors` are further metrics."""
        self._settings = settings
        self._collectors = collectors
        self._sensors = SensorReader(provisioner.machine.libnvml)
        audit = Audit(read_program, settings.audit_grace_s)
        self._sources = sources_of(provisioner, Path(settings.runtime_dir), lambda: audit.totals, self._sensors.read)
        auditing = Auditing(audit, self._sources, pods, events, kill=settings.audit_kill)
        period_s = settings.health_period_s
        self.tasks: tuple[tuple[str, Callable[[], Coroutine[Any, Any, None]]], ...] = (
            ("notices", lambda: report_notices(self._sources, events, period_s)),
            ("audit", lambda: auditing.run(period_s)),
        )

    async def open(self, opened: contextlib.AsyncExitStack) -> str:
        """Serve the pages until `opened` is closed; returns their address, or why they are not served.

        No share depends on them.
        """
        where, port = self._settings.display_address, self._settings.display_port
        opened.callback(self._sensors.close)
        if not port:
            return "not requested"
        app = application(self._sources, self._settings.aliases, self._collectors)
        try:
            await opened.enter_async_context(serving(app, port, where))
        except PortTaken as error:
            return f"not served: {error}"
        return f"http://{where}:{port}/graph"


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


async def report_notices(sources: Sources, events: Events, period_s: float) -> None:
    """Check until cancelled, and write an event on each pod that has news."""
    notices = Notices()
    while True:
        facts = await asyncio.to_thread(read_report, sources)
        for notice in notices.new_notices(facts, asyncio.get_running_loop().time()):
            owner = notice.owner
            await events.about_pod(owner.namespace, owner.pod, owner.uid, notice.reason, notice.text, "Warning")
        await asyncio.sleep(period_s)

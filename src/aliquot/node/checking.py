"""The allocation check as a task: runs periodically, reports or replaces what `check` finds, and cleans up.

Releases of a pod's resources that did not complete, because a step failed or the pod ended while the agent
recovered, are found here and retried: a tenant that is never released keeps its part of a GPU from all others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from aliquot.kube.api import Api
from aliquot.kube.errors import KubeError
from aliquot.kube.resources import PODS
from aliquot.node.allotments import Allotments
from aliquot.node.check import Finding, findings
from aliquot.node.checkpoint import CheckpointError, PodKey
from aliquot.node.desk import Outcome
from aliquot.node.events import Events
from aliquot.node.identity import Noted
from aliquot.node.kubelet import PodResources, noted
from aliquot.node.leaving import remove_specs
from aliquot.node.pods import Pods
from aliquot.node.seating import Seating
from aliquot.node.settings import Settings


class AllocationCheck:
    """The check of one node; `leave` starts the release of an ended pod."""

    def __init__(
        self,
        settings: Settings,
        api: Api,
        pods: Pods,
        resources: PodResources,
        allotments: Allotments,
        seating: Seating,
        events: Events,
        leave: Callable[[PodKey], None],
    ) -> None:
        self._settings = settings
        self._cdi = Path(settings.cdi_dir)
        self._api = api
        self._pods = pods
        self._resources = resources
        self._allotments = allotments
        self._seating = seating
        self._events = events
        self._leave = leave
        self._refused: dict[str, dict[str, str]] = {}
        self._missing: set[str] = set()
        self._over: set[str] = set()

    def note(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Record the outcome of a container: a refusal stands until it is provisioned or its pod has ended."""
        if outcome == "refused":
            self._refused.setdefault(owner.uid, {})[container] = why
        elif outcome == "seated":
            self._refused.get(owner.uid, {}).pop(container, None)

    def forget(self, owner: PodKey) -> None:
        """The pod is over."""
        self._refused.pop(owner.uid, None)

    async def look(self) -> None:
        """One check; skipped while kubelet does not answer."""
        try:
            held = await self._resources.held()
        except OSError:
            return
        entries = await asyncio.to_thread(noted, self._settings.device_plugins)
        refused = {uid: next(iter(whys.values())) for uid, whys in self._refused.items() if whys}
        for found in findings(self._pods, held, entries, refused):
            await self._act(found)
        await self._tidy_names(entries)
        self._tidy_pods()

    async def _act(self, found: Finding) -> None:
        owner, where = found.owner, f"container {found.container}: " if found.container else ""
        replace = found.replace and self._settings.replace_pods and found.kind != "slipped"
        reason = "GpuShareMissing" if found.kind == "slipped" else "GpuShareReplaced" if replace else "GpuShareFailed"
        what = "; the pod is deleted, so that its controller makes another" if replace else ""
        text = f"{where}{found.why}{what}"
        await self._events.about_pod(owner.namespace, owner.pod, owner.uid, reason, text, "Warning")
        if replace:
            with contextlib.suppress(KubeError):
                await self._api.delete(PODS, owner.pod, namespace=owner.namespace, uid=owner.uid)

    async def _tidy_names(self, entries: Sequence[Noted] | None) -> None:
        """Forget names that kubelet does not have (any more): twice in a row, for it writes them after we answer."""
        if entries is None:
            return
        known = {name for entry in entries for name in entry.names}
        missing = {allotment.name for allotment in self._allotments if allotment.name not in known}
        gone = [name for name in sorted(missing & self._missing) if not self._pods.lives(self._uid_of(name))]
        self._missing = missing
        with contextlib.suppress(CheckpointError):  # tried again at the next check
            await self._allotments.drop(remove_specs(self._cdi, gone))

    def _tidy_pods(self) -> None:
        """Release ended pods that still have something, found twice in a row: most are being released just now."""
        if not self._pods.synced:
            return
        owners = {allotment.uid: allotment.owner for allotment in self._allotments if allotment.owner is not None}
        owners |= {seat.owner.uid: seat.owner for seat in list(self._seating.seats.values())}
        over = {uid for uid in owners if not self._pods.lives(uid)}
        for uid in sorted(over & self._over):
            self._leave(owners[uid])
        self._over = over

    def _uid_of(self, name: str) -> str:
        allotment = self._allotments.get(name)
        return allotment.uid if allotment is not None else ""

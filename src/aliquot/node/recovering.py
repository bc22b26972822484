"""The recovery as a task: queries every source, continues with the result of `recovery`, removes the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aliquot.kube.names import PLAN
from aliquot.kube.plan import BadPlan, ContainerPlan, read_plan
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.node.allotments import Allotments
from aliquot.node.cdi import Edits, write_spec
from aliquot.node.checkpoint import Allotment, read_checkpoint
from aliquot.node.events import Events
from aliquot.node.kubelet import PodResources, noted
from aliquot.node.leaving import sweep
from aliquot.node.pods import Pods
from aliquot.node.recovery import Known, recover
from aliquot.node.seating import Seating
from aliquot.node.settings import Settings

_LOG: Final = Logger("node")


class Recovering:
    """`run` is done once, before anything new is given."""

    def __init__(
        self,
        settings: Settings,
        pods: Pods,
        resources: PodResources,
        allotments: Allotments,
        seating: Seating,
        events: Events,
    ) -> None:
        self._settings = settings
        self._pods = pods
        self._resources = resources
        self._allotments = allotments
        self._seating = seating
        self._events = events
        self._cdi = Path(settings.cdi_dir)

    async def run(self) -> str:
        """Restore every allocation; returns a short summary."""
        content, trouble = await asyncio.to_thread(read_checkpoint, self._settings.checkpoint)
        if trouble:
            await self._events.about_node("CheckpointLost", trouble)
        kept = content.allotments if content.node in ("", self._settings.name) else ()
        try:
            held = await self._resources.held()
        except OSError:
            held = []
        entries = await asyncio.to_thread(noted, self._settings.device_plugins)
        found = recover(held, entries, kept, self._known())
        for difference in found.differences:
            _LOG.warning("difference", what=difference)
            await self._events.about_node("BooksDiffer", difference)
        await self._allotments.start_with(found.allotments)
        standing = [allotment for allotment in found.allotments if not self._over(allotment, found.allotments)]
        seated = [allotment for allotment in standing if await self._seat_again(allotment)]
        swept = await asyncio.to_thread(sweep, self._cdi, self._allotments, self._seating)
        return f"{len(seated)} seats, {len(found.differences)} differences, {swept} left-overs removed"

    def _known(self) -> dict[str, Known] | None:
        """The node's pods; None while the API server has not listed them."""
        if not self._pods.synced:
            return None
        return {pod.key.uid: Known(pod.key, pod.metadata.annotations.get(PLAN, ""), pod.ended) for pod in self._pods}

    def _over(self, allotment: Allotment, all_: Sequence[Allotment]) -> bool:
        """Whether it belongs to an ended init container: the pod says so, or a later container was provisioned."""
        own = _container(allotment)
        if own is None or own.init <= 0:
            return False
        pod = self._pods.get(allotment.uid)
        others = [_container(other) for other in all_ if other.uid == allotment.uid]
        later = any(other is not None and other.starts > own.starts for other in others)
        return later or (pod is not None and pod.status.initialized)

    async def _seat_again(self, allotment: Allotment) -> bool:
        """Whether its container has its share again; a failure is reported on its pod."""
        owner = allotment.owner
        if owner is None or not allotment.plan:
            return False
        try:
            plan = read_plan({PLAN: allotment.plan})
            assert plan is not None
            had = allotment.driver
            seat = await asyncio.to_thread(self._seating.take, owner, allotment.container, plan, driver=had, again=True)
            write_spec(self._cdi, allotment.name, seat.edits + Edits(allotment.env))
        except (AliquotError, OSError) as error:
            _LOG.warning("not-seated-again", pod=str(owner), container=allotment.container, why=str(error))
            text = f"container {allotment.container}: {error}"
            await self._events.about_pod(owner.namespace, owner.pod, owner.uid, "GpuShareLost", text, "Warning")
            return False
        return True


def _container(allotment: Allotment) -> ContainerPlan | None:
    """What the plan in force says about the container."""
    with contextlib.suppress(BadPlan):
        plan = read_plan({PLAN: allotment.plan}) if allotment.plan else None
        return plan.containers.get(allotment.container) if plan is not None else None
    return None

"""The outcome of each plan on the node: an event for a failure, and the annotation `aliquot.dev/plan-status`.

Failures, and their ends, are written at once; successes when the load has fallen. Every write to a pod is sent to
all watchers of pods, and when many pods start together that work would delay their start. A repeated outcome, as while
a container waits for its share, is written once. A success is written together with the annotations by which another
project's tools recognise that a pod has its devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, RealClock
from aliquot.kube.errors import Conflict, KubeError, NotFound
from aliquot.kube.names import PLAN_STATUS
from aliquot.kube.planstatus import Outcome, written_outcome
from aliquot.kube.resources import PODS
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.events import Events

POLL_S: Final = 0.5
SUCCESS_DELAY_S: Final = 15.0
"""Delay before a success is written: longer than a large batch of pods takes to start."""
AGAIN_S: Final = 5.0
STATUS_BYTES: Final = 1000


class Outcomes:
    """Writes outcomes while `run` runs; what it has not written at its end is lost."""

    def __init__(
        self,
        api: Api,
        events: Events,
        clock: Clock | None = None,
        started: Callable[[PodKey], Mapping[str, str]] = lambda owner: {},
    ) -> None:
        self._api = api
        self._events = events
        self._clock = clock or RealClock()
        self._started = started
        self._provisioned: set[PodKey] = set()
        self._outcomes: dict[PodKey, dict[str, str]] = {}
        self._written: dict[PodKey, str] = {}
        self._due_s: dict[PodKey, float] = {}

    async def report(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Record the outcome of an announced container."""
        self._outcomes.setdefault(owner, {})[container] = written_outcome(container, outcome, why)
        if outcome == "provisioned":
            self._provisioned.add(owner)
        wait_s = SUCCESS_DELAY_S if outcome == "provisioned" and owner not in self._written else 0.0
        due_s = self._clock.monotonic_s() + wait_s
        self._due_s[owner] = min(due_s, self._due_s.get(owner, due_s))
        if outcome != "provisioned":
            verb = "is without" if outcome == "missing" else "does not get"
            message = f"container {container} {verb} its share: {why}"
            reason = f"GpuShare{outcome.capitalize()}"
            await self._events.about_pod(owner.namespace, owner.pod, owner.uid, reason, message, "Warning")

    def forget(self, owner: PodKey) -> None:
        """The pod is over."""
        self._provisioned.discard(owner)
        for known in (self._outcomes, self._written, self._due_s):
            known.pop(owner, None)

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        while True:
            await self._clock.sleep(POLL_S)
            await self.step()

    async def step(self) -> None:
        """Write what is due now."""
        now_s = self._clock.monotonic_s()
        for owner in [owner for owner, due_s in self._due_s.items() if due_s <= now_s]:
            self._due_s.pop(owner, None)
            await self._write(owner)

    async def _write(self, owner: PodKey) -> None:
        text = "; ".join(self._outcomes.get(owner, {}).values())[:STATUS_BYTES]
        if text == self._written.get(owner, ""):
            return
        theirs = self._started(owner) if owner in self._provisioned else {}
        body = {"metadata": {"uid": owner.uid, "annotations": {PLAN_STATUS: text, **theirs}}}
        try:
            await self._api.patch(PODS, owner.pod, body, namespace=owner.namespace)
        except (NotFound, Conflict):
            self.forget(owner)  # it has ended, or another pod has its name: a late record would stay here forever
            return
        except KubeError:
            self._due_s.setdefault(owner, self._clock.monotonic_s() + AGAIN_S)
            return
        if owner in self._outcomes:
            self._written[owner] = text

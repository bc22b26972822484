"""Events that the agent writes on pods and the node. A failed write never stops the work."""

from __future__ import annotations

import os
import time
from typing import Final, Literal

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, seconds_time
from aliquot.kube.errors import KubeError
from aliquot.kube.objects import EVENTS, Event, Meta, ObjectReference
from aliquot.lib.bounded import Bounded
from aliquot.lib.log import Logger
from aliquot.node.allocation.checkpoint import PodKey

_LOG: Final = Logger("node")
MAX_REMEMBERED: Final = 1000
AGAIN_S: Final = 60.0
Kind = Literal["Normal", "Warning"]


class Events:
    """Writes events; an identical event about the same object at most once a minute."""

    def __init__(self, api: Api, node: str, clock: Clock | None = None) -> None:
        self._api = api
        self._node = node
        self._clock = clock or Clock()
        self._written_s: Bounded[tuple[str, str, str], float] = Bounded(MAX_REMEMBERED)
        self._number = 0

    async def about_pod(self, pod: PodKey, reason: str, message: str) -> None:
        """Write a warning on a pod, for a claim on the pod that it was prepared for."""
        uid = pod.user or pod.uid
        subject = ObjectReference(api_version="v1", kind="Pod", name=pod.pod, namespace=pod.namespace, uid=uid)
        await self._write(subject, reason, message, "Warning")

    async def about_node(self, reason: str, message: str, kind: Kind = "Warning") -> None:
        """Write an event on the node."""
        subject = ObjectReference(api_version="v1", kind="Node", name=self._node, uid=self._node)
        await self._write(subject, reason, message, kind)

    async def _write(self, subject: ObjectReference, reason: str, message: str, kind: Kind) -> None:
        key, now_s = (subject.uid or subject.name, reason, message), self._clock.monotonic_s()
        if now_s - self._written_s.get(key, -AGAIN_S) < AGAIN_S:
            return
        self._written_s[key] = now_s
        self._number += 1
        log = _LOG.warning if kind == "Warning" else _LOG.info
        log("event", about=f"{subject.kind}/{subject.name}", reason=reason, message=message)
        moment = seconds_time(self._clock.wall())
        namespace = subject.namespace or "default"
        event = Event(
            metadata=Meta(name=f"{subject.name[:200]}.{time.time_ns():x}.{os.getpid()}-{self._number}"),
            involved_object=subject,
            reason=reason,
            message=message[:1000],
            type=kind,
            count=1,
            first_timestamp=moment,
            last_timestamp=moment,
            reporting_component="aliquot-node",
            reporting_instance=self._node,
        )
        try:
            await self._api.create(EVENTS, event, namespace=namespace)
        except KubeError as error:
            _LOG.warning("event-lost", reason=reason, why=str(error))

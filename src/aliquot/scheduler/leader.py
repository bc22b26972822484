"""What a leader writes for others: its address, and for the next leader what its placement policy has learned.

The address is published in the EndpointSlice of the extender's Service. Every replica is Ready as soon as its caches
are whole, so that a rollout, a drain and `helm --wait` see the real state. The endpoint is separate. The Service has no
selector; its one EndpointSlice is written by the leader. The next leader overwrites it, so it never contains more than
one address. A leader that was cut off may still hold connections from kube-scheduler; see `extender/server.py`, which
closes them.

What the policy has learned is kept in a ConfigMap beside the lease. Only the leader writes, every few minutes while
something new was learned, and when it ends; the next leader reads it before its first decision. What is kept is
statistics of arrivals, not a promise: a write of a leader that has just been replaced does no harm, and a record that
cannot be read or written is a warning and a cold start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock
from aliquot.kube.errors import KubeError
from aliquot.kube.objects import ApiObject, Resource
from aliquot.lib.log import Logger, Repeats
from aliquot.placement.policy import BadMemory, Policy, pack, unpack
from aliquot.scheduler.settings import SchedulerSettings, address

log = Logger("scheduler")
OWNER: Final = "aliquot-scheduler"
SERVICES: Final = Resource(ApiObject, "Service", "services")
SLICES: Final = Resource(ApiObject, "EndpointSlice", "endpointslices", "discovery.k8s.io")
CHECK_S: Final = 0.5
AGAIN_S: Final = 10.0
"""How soon an address that another client changed is corrected."""
NAME: Final = "aliquot-learned"
KEY: Final = "learned.json"
EVERY_S: Final = 300.0
ANSWER_S: Final = 3.0
"""How long a take-over or an end waits for the API server because of what was learned."""


@dataclass
class LeaderEndpoint:
    """Keeps the slice correct while this process leads; `leads` is checked right before each write."""

    api: Api
    settings: SchedulerSettings
    leads: Callable[[], bool]
    _repeats: Repeats = field(default_factory=Repeats)

    async def run(self) -> None:
        """Until cancelled. The last address stays: an ended process does not answer; the next leader overwrites it."""
        loop = asyncio.get_running_loop()
        written_s = float("-inf")
        while True:
            if not self.leads():
                written_s = float("-inf")
            elif loop.time() - written_s >= AGAIN_S and await self.write():
                written_s = loop.time()
            await asyncio.sleep(CHECK_S)

    async def write(self) -> bool:
        """Publish this process's address; returns whether that was done."""
        s = self.settings
        name, namespace = s.leader_service, s.lease_namespace
        family, (_, port) = "IPv6" if ":" in s.leader_address else "IPv4", address(s.bind, "--bind")
        target = {"kind": "Pod", "namespace": namespace, "name": s.candidate}
        try:
            service = await self.api.get(SERVICES, name, namespace=namespace)
            if not self.leads():
                return False
            owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": service.metadata.uid}
            labels = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "aliquot.dev"}
            body = {
                "metadata": {
                    "name": f"{name}-{family.lower()}",  # a slice keeps its address family
                    "namespace": namespace,
                    "labels": labels,
                    "ownerReferences": [owner],
                },
                "addressType": family,
                "endpoints": [{"addresses": [s.leader_address], "conditions": {"ready": True}, "targetRef": target}],
                "ports": [{"name": "extender", "port": port, "protocol": "TCP"}],
            }
            await self.api.apply(SLICES, body, manager=OWNER)
        except KubeError as error:
            if self._repeats.news(str(error)):
                log.warning("service %s/%s does not lead here: %s", namespace, name, error)
            return False
        self._repeats.news("")
        return True


class ConfigMap(ApiObject):
    """A ConfigMap."""

    data: dict[str, str] = msgspec.field(default_factory=dict)


CONFIG_MAPS: Final = Resource(ConfigMap, "ConfigMap", "configmaps")


@dataclass
class LearnedConfigMap:
    """What one policy has learned, in one namespace; `leads` is asked right before a write."""

    api: Api
    namespace: str
    policy: Policy
    leads: Callable[[], bool]
    clock: Clock = field(default_factory=Clock)
    _there: str = ""
    """The text that is there as far as this process knows; at first that of a policy that knows nothing yet."""
    _repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        self._there = pack(self.policy)

    async def run(self) -> None:
        """Keep it until cancelled."""
        while True:
            await self.clock.sleep(EVERY_S)
            await self.keep()

    async def recall(self) -> None:
        """Let the policy go on from what is there, unless that is what this process wrote or read last."""
        try:
            found = await asyncio.wait_for(self.api.find(CONFIG_MAPS, NAME, namespace=self.namespace), ANSWER_S)
            text = found.data.get(KEY, "") if found is not None else ""
            if text and text != self._there:
                unpack(self.policy, text)
                self._there = text
                log.info("placement goes on with what configmap %s/%s says", self.namespace, NAME)
        except (KubeError, BadMemory, TimeoutError) as error:
            self._warn("used", error, "placement learns anew")

    async def keep(self) -> None:
        """Write it, if this process leads and something new was learned."""
        text = pack(self.policy)
        if not text or text == self._there or not self.leads():
            return
        body = {"metadata": {"name": NAME, "namespace": self.namespace}, "data": {KEY: text}}
        try:
            await asyncio.wait_for(self.api.apply(CONFIG_MAPS, body, manager=OWNER), ANSWER_S)
            self._there = text
            self._repeats.news("")
        except (KubeError, TimeoutError) as error:
            self._warn("written", error, "a restart loses what placement learned")

    def _warn(self, verb: str, error: Exception, effect: str) -> None:
        reason = str(error) or f"no answer in {ANSWER_S:g} s"
        text = f"configmap {self.namespace}/{NAME} cannot be {verb}: {reason}; {effect}"
        if self._repeats.news(text):
            log.warning(text)

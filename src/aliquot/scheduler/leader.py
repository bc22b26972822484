"""Leader election, and what a leader writes for others: its address, and what its placement policy has learned.

One Lease, one holder, whatever the clocks say (client-go: leaderelection). A candidate never compares the times written
in a lease with its own clock, since clocks differ. It watches the record: as long as the record changes, its holder
renews it; when it has not changed for a whole lease duration by the candidate's own monotonic clock, its holder is gone
and the lease may be taken. Every write names the version it replaces, so of two takers one fails.

The holder counts from before it sent its last good renewal. `leads()` is false once `renew_within_s` have passed since
then, which is earlier than any other candidate may take the lease: so a holder that was stopped or cut off notices in
time, without any message. Work that only the leader may do checks `leads()` right before it.

The address is published in the EndpointSlice of the extender's Service. Every replica is Ready as soon as its caches
are whole, so that a rollout, a drain and `helm --wait` see the real state. The endpoint is separate. The Service has no
selector; its one EndpointSlice is written by the leader. The next leader overwrites it, so it never contains more than
one address. A leader that was cut off may still hold connections from kube-scheduler; see `extender/server.py`, which
closes them.

What the policy has learned is kept in a ConfigMap beside the lease. Only the leader writes, every few minutes while
something new was learned, and when it ends; the next leader reads it before its first decision. What is kept is
statistics of arrivals, not a promise: a write of a leader that has just been replaced does no harm, and a record that
cannot be read or written is a warning and a cold start.

Source: the algorithm of client-go's leaderelection, and Kubernetes' API conventions for coordination.k8s.io/v1.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, micro_time
from aliquot.kube.errors import Conflict, KubeError, NotFound
from aliquot.kube.objects import LEASES, ApiObject, Lease, Resource
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


@dataclass(frozen=True)
class Terms:
    """The times of a lease, in seconds; `renew_within_s` must be less than `lasts_s`, by more than a request takes."""

    lasts_s: int = 15
    renew_within_s: float = 10.0
    every_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.every_s < self.renew_within_s < self.lasts_s:
            raise ValueError(f"{self} is no order of times: every_s < renew_within_s < lasts_s")


@dataclass
class Elector:
    """One candidate for one lease. `on_change` is called with True when it begins to lead and False when it ends."""

    api: Api
    namespace: str
    name: str
    identity: str
    terms: Terms = Terms()
    clock: Clock = field(default_factory=Clock)
    on_change: Callable[[bool], None] = lambda leads: None
    random: random.Random = field(default_factory=random.Random)
    holder: str = ""
    _seen: Lease | None = None
    _seen_s: float = 0.0
    _renewed_s: float | None = None
    _told: bool = False

    def leads(self) -> bool:
        """Whether leader-only work may be done now. At most until another candidate could hold the lease."""
        if self._renewed_s is None:
            return False
        return self.clock.monotonic_s() < self._renewed_s + self.terms.renew_within_s

    async def run(self) -> None:
        """Stand for election until cancelled; then the lease is given back, so that the next need not wait."""
        try:
            while True:
                await self.step()
                await self.clock.sleep(self.terms.every_s * (0.9 + 0.2 * self.random.random()))
        finally:
            await self.resign()

    async def step(self) -> None:
        """Read the lease once, and try once to take or renew it if that is allowed."""
        with contextlib.suppress(KubeError):
            await self._take_or_renew()
        self._tell()

    async def resign(self) -> None:
        """Give the lease back, if it is ours; a failure to do so costs the next holder only the wait."""
        held, self._renewed_s = self.leads(), None
        self._tell()
        if held and self._seen is not None:
            with contextlib.suppress(KubeError):
                await self._write(self._seen, {"holderIdentity": "", "leaseDurationSeconds": 1})

    def _tell(self) -> None:
        leads = self.leads()
        if leads != self._told:
            self._told = leads
            self.on_change(leads)

    async def _take_or_renew(self) -> None:
        began_s = self.clock.monotonic_s()
        try:
            lease = await self.api.get(LEASES, self.name, namespace=self.namespace)
        except NotFound:
            now = micro_time(self.clock.wall())
            spec = {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.terms.lasts_s,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            }
            body = {"metadata": {"name": self.name, "namespace": self.namespace}, "spec": spec}
            try:
                self._won(await self.api.create(LEASES, body, namespace=self.namespace), began_s)
            except Conflict:
                self._renewed_s = None  # another candidate was quicker
            return
        self._observe(lease, began_s)
        ours = lease.spec.holder_identity == self.identity
        if not ours:
            # A later holder may have led meanwhile: report an unnoticed end before the new beginning.
            self._renewed_s = None
            self._tell()
            # The lease is free when it has not been renewed for its duration, by our own observation.
            lasts_s = lease.spec.lease_duration_seconds or self.terms.lasts_s
            if lease.spec.holder_identity and self.clock.monotonic_s() < self._seen_s + lasts_s:
                return
        now = micro_time(self.clock.wall())
        change: dict[str, Any] = {"renewTime": now, "leaseDurationSeconds": self.terms.lasts_s}
        if not ours:
            turns = (lease.spec.lease_transitions or 0) + 1
            change |= {"holderIdentity": self.identity, "acquireTime": now, "leaseTransitions": turns}
        began_s = self.clock.monotonic_s()
        try:
            self._won(await self._write(lease, change), began_s)
        except Conflict:
            self._renewed_s = None if not ours else self._renewed_s

    def _observe(self, lease: Lease, now_s: float) -> None:
        if self._seen is None or self._seen.metadata.resource_version != lease.metadata.resource_version:
            self._seen, self._seen_s = lease, now_s
        self.holder = lease.spec.holder_identity or ""

    async def _write(self, lease: Lease, change: dict[str, Any]) -> Lease:
        body = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": change}
        return await self.api.patch(LEASES, self.name, body, namespace=self.namespace, repeat=False)

    def _won(self, lease: Lease, began_s: float) -> None:
        self._observe(lease, began_s)
        self._renewed_s = began_s


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

"""Leader election: one Lease, one holder, whatever the clocks say (client-go: leaderelection).

A candidate never compares the times written in a lease with its own clock, since clocks differ. It watches the record:
as long as the record changes, its holder renews it; when it has not changed for a whole lease duration by the
candidate's own monotonic clock, its holder is gone and the lease may be taken. Every write names the version it
replaces, so of two takers one fails.

The holder counts from before it sent its last good renewal. `leads()` is false once `renew_within_s` have passed since
then, which is earlier than any other candidate may take the lease: so a holder that was stopped or cut off notices in
time, without any message. Work that only the leader may do checks `leads()` right before it.

Source: the algorithm of client-go's leaderelection, and Kubernetes' API conventions for coordination.k8s.io/v1.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, micro_time
from aliquot.kube.errors import Conflict, KubeError, NotFound
from aliquot.kube.objects import LEASES, Lease


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

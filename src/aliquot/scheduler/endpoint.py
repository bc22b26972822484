"""Publish the leader's address in the EndpointSlice of the extender's Service.

Every replica is Ready as soon as its caches are whole, so that a rollout, a drain and `helm --wait` see the real state.
The endpoint is separate. The Service has no selector; its one EndpointSlice is written by the leader.
The next leader overwrites it, so it never contains more than one address.

A leader that was cut off may still hold connections from kube-scheduler; see `server`, which closes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aliquot.kube.api import Api
from aliquot.kube.errors import KubeError
from aliquot.kube.objects import MetaOnly
from aliquot.kube.resources import Resource
from aliquot.lib.log import Logger, Repeats

log = Logger("scheduler")
SERVICES: Final = Resource(MetaOnly, "Service", "services")
SLICES: Final = Resource(MetaOnly, "EndpointSlice", "endpointslices", "discovery.k8s.io")
OWNER: Final = "aliquot-scheduler"
LOOK_S: Final = 0.5
AGAIN_S: Final = 10.0
"""How soon an address that another client changed is corrected."""


@dataclass(frozen=True)
class Address:
    """Where this process is reached, and by which Service: `pod` is its pod's name, `port_name` that of the Service."""

    namespace: str
    service: str
    ip: str
    port: int
    pod: str
    port_name: str = "extender"


@dataclass
class LeaderEndpoint:
    """Keeps the slice correct while this process leads; `leads` is checked right before each write."""

    api: Api
    address: Address
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
            await asyncio.sleep(LOOK_S)

    async def write(self) -> bool:
        """Publish this process's address; returns whether that was done."""
        a = self.address
        try:
            service = await self.api.get(SERVICES, a.service, namespace=a.namespace)
            if not self.leads():
                return False
            await self.api.apply(SLICES, self._slice(service), manager=OWNER)
        except KubeError as error:
            if self._repeats.news(str(error)):
                log.warning("service %s/%s does not lead here: %s", a.namespace, a.service, error)
            return False
        self._repeats.news("")
        return True

    def _slice(self, service: MetaOnly) -> dict[str, Any]:
        a = self.address
        owner = {"apiVersion": "v1", "kind": "Service", "name": a.service, "uid": service.metadata.uid}
        labels = {"kubernetes.io/service-name": a.service, "endpointslice.kubernetes.io/managed-by": "aliquot.dev"}
        family = "IPv6" if ":" in a.ip else "IPv4"
        return {
            # A slice keeps its address family, so each family has its own.
            "metadata": {
                "name": f"{a.service}-{family.lower()}",
                "namespace": a.namespace,
                "labels": labels,
                "ownerReferences": [owner],
            },
            "addressType": family,
            "endpoints": [
                {
                    "addresses": [a.ip],
                    "conditions": {"ready": True},
                    "targetRef": {"kind": "Pod", "namespace": a.namespace, "name": a.pod},
                }
            ],
            "ports": [{"name": a.port_name, "port": a.port, "protocol": "TCP"}],
        }

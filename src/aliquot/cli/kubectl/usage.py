"""Current use by tenants: queried from each node's agent, through the API server's proxy to its pod."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from aliquot.cli.kubectl.scene import ClusterScene, Target
from aliquot.kube.api import Api
from aliquot.kube.errors import KubeError
from aliquot.kube.objects import Pod
from aliquot.scheduler.agents import PAGE, NodeMeasure, UnreadableReport, is_agent, measure_of, read_report, tenant_key
from aliquot.scheduler.cluster_source import NO_AGENT
from aliquot.status.tenants import TenantStatus

NAMED: Final = 3


@dataclass
class Usage:
    """The measurements of each node's agent, and why nodes did not answer, by their name."""

    nodes: dict[str, NodeMeasure] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)

    def of(self, node: str, uuid: str, tenant: str) -> TenantStatus | None:
        """A tenant's use by its name in the ledger; None where its node does not know it."""
        told = self.nodes.get(node)
        gpu = told.gpus.get(uuid) if told else None
        return gpu.of(tenant_key(tenant)) if gpu else None

    def unknown(self) -> Iterator[str]:
        """Where the use is not known and why, a sentence for each reason."""
        nodes = defaultdict(list)
        for node, why in sorted(self.silent.items()):
            nodes[why].append(node)
        for why, names in nodes.items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            yield f"use is not known on {', '.join(names[:NAMED])}{more}: {why}"


async def read_usage(target: Target, scene: ClusterScene, port: int) -> Usage:
    """Query the agent of every node with GPUs at once; one that does not answer is named and does no harm."""
    found = Usage(silent=dict.fromkeys(scene.ledger.cluster.index, NO_AGENT))
    async with target.connect() as api:
        await asyncio.gather(*(_ask(api, pod, port, found) for pod in scene.pods if is_agent(pod)))
    return found


def proxied(pod: Pod, port: int) -> str:
    """Where the API server has the page of an agent."""
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}:{port}/proxy{PAGE}"


async def _ask(api: Api, pod: Pod, port: int, found: Usage) -> None:
    node = pod.spec.node_name
    try:
        body = await api.request("GET", proxied(pod, port), timeout_s=5.0)
        found.nodes[node] = measure_of(read_report(body))
        found.silent.pop(node, None)
    except (KubeError, UnreadableReport) as error:
        found.silent[node] = str(error)

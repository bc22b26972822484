"""What tenants use now: asked of each node's agent, through the API server's proxy to its pod."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from aliquot.cli.kubectl.scene import Scene, Target
from aliquot.kube.api import Api
from aliquot.kube.errors import BadAnswer, KubeError
from aliquot.kube.objects import Pod

WHO = {"app.kubernetes.io/name": "aliquot", "app.kubernetes.io/component": "node"}
"""The labels of the agents' pods, as the chart writes them."""


class _Owner(msgspec.Struct):
    namespace: str
    pod: str
    container: str


class _Status(msgspec.Struct):
    usage: float
    memory_used_mib: int


class _Use(msgspec.Struct):
    owner: _Owner
    status: _Status


class _Gpu(msgspec.Struct):
    uuid: str
    uses: list[_Use] = []


class _Node(msgspec.Struct):
    gpus: list[_Gpu] = []


@dataclass
class Usage:
    """(part of the GPU's time, MiB) by (UUID, tenant), and why nodes told nothing, by their name."""

    of: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


async def read_usage(target: Target, scene: Scene, port: int) -> Usage:
    """Ask every agent at once; one that does not answer is named and does no harm."""
    found = Usage()
    async with target.connect() as api:
        await asyncio.gather(*(_ask(api, pod, port, found) for pod in scene.pods if is_agent(pod)))
    return found


def is_agent(pod: Pod) -> bool:
    """Whether a pod is the agent of a node."""
    labels: Mapping[str, str] = pod.metadata.labels
    return bool(pod.spec.node_name) and not pod.ended and WHO.items() <= labels.items()


async def _ask(api: Api, pod: Pod, port: int, found: Usage) -> None:
    meta, node = pod.metadata, pod.spec.node_name
    path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{port}/proxy/node.json"
    try:
        read(await api.request("GET", path, timeout_s=5.0), found)
    except KubeError as error:
        found.silent[node] = str(error)


def read(body: bytes, found: Usage) -> None:
    """Take in what one agent tells.

    Raises:
        BadAnswer: it is not in the form of an agent's page.
    """
    try:
        node = msgspec.json.decode(body, type=_Node)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"an agent's page that can not be read: {error}") from None
    for gpu in node.gpus:
        for use in gpu.uses:
            owner = use.owner
            tenant = f"{owner.namespace}/{owner.pod}/{owner.container}"
            found.of[gpu.uuid, tenant] = (use.status.usage, use.status.memory_used_mib)


def key(uuid: str, tenant: str) -> tuple[str, str]:
    """The key for a tenant by its name in the books, where parts and namesakes have a suffix."""
    return uuid, tenant.partition("#")[0].partition("@")[0]

"""What the node says of itself is said until the API server shows it, and a GPU's health before anything else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from aliquot.driver.gpu import Gpu
from aliquot.kube.api import Api
from aliquot.kube.errors import Unreachable
from aliquot.kube.inventory import KernelLengths, read_kernels, write_kernels
from aliquot.kube.names import GPU_KERNELS, GPU_MEMORY, GPUS
from aliquot.kube.objects import Node as ApiNode
from aliquot.model.ids import GpuUuid
from aliquot.node.agent import Agent
from aliquot.node.driver import NodeDriver
from aliquot.node.health import Health
from aliquot.node.machine import Machine, NodeOffer
from aliquot.node.settings import NodeSettings
from aliquot.node.status import NodeAdvertiser

MACHINE = Machine((Gpu(0, "GPU-0", "V100", 16384, "570.1", [], [], 0),), Path("libcuda"), Path("libnvml"))


class Server:
    """An API server with one node; while it is `away` it does not answer."""

    def __init__(self) -> None:
        self.away = False
        self.node: dict[str, Any] = {}
        self.writes = 0
        self.made_anew()

    def made_anew(self) -> None:
        """As by a kubelet that registers again: nothing of ours is on it."""
        self.node = {"metadata": {"annotations": {}, "labels": {}}, "status": {"capacity": {}}}

    def seen(self) -> ApiNode:
        return msgspec.convert(msgspec.to_builtins(self.node), type=ApiNode)

    async def patch(self, _: object, name: str, body: Mapping[str, Any], *, sub: str = "") -> ApiNode:
        if self.away:
            raise Unreachable("the API server does not answer", may_have_happened=False)
        await asyncio.sleep(0)
        self.writes += 1
        where = sub or "metadata"
        for part, fields in body[where].items():
            merged = self.node[where][part] | fields
            self.node[where][part] = {key: value for key, value in merged.items() if value is not None}
        return self.seen()


class Plugin:
    """Counts how often the devices were sent to kubelet, which has them."""

    sent = 0
    listed = True

    async def send_devices(self) -> None:
        self.sent += 1

    def memory_more_mib(self, gpus: object) -> int:
        return 0


class Tenants:
    """A provisioner that has all it needs."""

    def __init__(self) -> None:
        self.kernels = ""
        self.offer = NodeOffer(MACHINE)

    def check_arbiter(self) -> str:
        return ""


class Records:
    """A checkpoint that can be written."""

    failure = ""


class OneUnhealthy:
    """A watch that has one thing to say."""

    async def run(self) -> AsyncIterator[Health]:
        yield Health({GpuUuid("GPU-0"): "is lost"})


class Node:
    """A node's status with all that it is made of."""

    def __init__(self, server: Server, events: object = None, **settings: Any) -> None:
        self.tenants, self.plugin = Tenants(), Plugin()
        parts: Any = (self.tenants, Records(), self.plugin, OneUnhealthy(), server, events)
        self.status = NodeAdvertiser(NodeSettings(node_name="node-1", **settings), *parts)

    def check(self) -> None:
        asyncio.run(self.status.check())


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def node(server: Server) -> Node:
    return Node(server)


def test_what_the_api_server_did_not_take_is_told_again(node: Node, server: Server):
    """A node without its annotation is given no pods, so one that started beside a dead API server goes on telling."""
    server.away = True
    node.check()
    server.away = False

    node.check()

    assert '"uuid":"GPU-0"' in server.node["metadata"]["annotations"][GPUS]
    assert str(16384 << 20) == server.node["status"]["capacity"][GPU_MEMORY]


def test_memory_is_offered_only_while_kubelet_has_the_devices(node: Node, server: Server):
    """Who comes earlier would be refused by kubelet for good; what the node is, is told all the same."""
    plugin = node.plugin
    plugin.listed = False
    node.check()
    assert GPUS in server.node["metadata"]["annotations"]
    assert GPU_MEMORY not in server.node["status"]["capacity"]

    plugin.listed = True
    node.check()
    assert str(16384 << 20) == server.node["status"]["capacity"][GPU_MEMORY]


VCUDA = {"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "64"}


def test_gpushares_resources_are_offered_on_request_and_otherwise_left_to_others(server: Server):
    """A node counts whole units of each GPU; without the request another plugin's resource of that name stays."""
    for wanted in (False, True):
        node = Node(server, gpushare_inspect=wanted)
        server.node["status"]["capacity"] = {"aliyun.com/gpu-mem": "7"}
        node.check()
        capacity = {name: value for name, value in server.node["status"]["capacity"].items() if "aliyun" in name}
        assert (
            {"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"} if wanted else {"aliyun.com/gpu-mem": "7"}
        ) == capacity


def test_gpu_managers_resources_are_offered_on_request_and_otherwise_left_to_others(server: Server):
    """A node counts hundredths of its GPUs and whole blocks of 256 MiB, beside gpushare's where both are wanted."""
    for wanted, offered in ((False, {"tencent.com/vcuda-core": "7"}), (True, VCUDA)):
        node = Node(server, gpushare_inspect=True, vcuda_resources=wanted)
        server.node["status"]["capacity"] = {"tencent.com/vcuda-core": "7"}
        node.check()
        capacity = server.node["status"]["capacity"]

        assert offered == {name: value for name, value in capacity.items() if name.startswith("tencent")}
        assert "16" == capacity["aliyun.com/gpu-mem"]


def test_a_node_that_shows_it_is_left_alone_and_one_made_anew_is_told(node: Node, server: Server):
    """Each look compares with what the watch brought last."""
    node.check()
    once = server.writes
    node.check()
    assert once == server.writes

    server.made_anew()
    node.status.publisher._now = server.seen()
    node.check()

    assert GPUS in server.node["metadata"]["annotations"]
    assert "aliquot.dev/gpu-model" in server.node["metadata"]["labels"]


def test_labels_of_models_that_left_go_and_the_administrators_own_stay(server: Server):
    """A node whose GPUs were replaced is not found by the old model; labels of the settings are kept on it."""
    node = Node(server, labels="team=vision, example.com/rack=r1")
    server.node["metadata"]["labels"] = {"aliquot.dev/gpu-model.K80": "2", "other": "x"}
    node.status.publisher._now = server.seen()

    node.check()

    labels = server.node["metadata"]["labels"]
    assert "1" == labels["aliquot.dev/gpu-model.V100"]
    assert ("vision", "r1", "x") == (labels["team"], labels["example.com/rack"], labels["other"])
    assert "aliquot.dev/gpu-model.K80" not in labels


async def test_an_unhealthy_gpu_is_withdrawn_before_any_event_is_written(server: Server):
    """An API server that hangs holds no GPU on offer."""

    class Hanging:
        async def about_node(self, *_: object) -> None:
            await asyncio.Event().wait()

    node = Node(server, Hanging())

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(node.status.watch_health(), 0.2)

    assert ({"GPU-0": "is lost"}, 1) == (node.tenants.offer.unhealthy, node.plugin.sent)


async def test_what_is_withdrawn_at_the_end_stays_withdrawn(server: Server, tmp_path: Path):
    """No part of the agent that is about to end offers it once more."""
    settings = NodeSettings(node_name="node-1", runtime_dir=str(tmp_path), kubelet_dir=str(tmp_path))
    agent = Agent(settings, cast("Api", server), MACHINE, cast("NodeDriver", None))

    async def offers() -> None:
        while True:
            await agent.status.publisher.advertise({GPU_MEMORY: 1})
            await asyncio.sleep(0)

    agent._tasks.critical("offers", offers())
    while GPU_MEMORY not in server.node["status"]["capacity"]:
        await asyncio.sleep(0)
    await agent.end()

    assert GPU_MEMORY not in server.node["status"]["capacity"]


async def test_what_is_measured_of_kernels_is_told_where_it_changes(node: Node, server: Server):
    """The node's annotation has the lengths that the arbiter measured, and a node that shows them is left alone."""
    await node.status.describe()
    assert GPU_KERNELS not in server.node["metadata"]["annotations"]
    node.tenants.kernels = write_kernels(KernelLengths("fluid", {"GPU-a": {"default/a/main": 20_000}}))
    await node.status.describe()
    told = read_kernels(server.node["metadata"]["annotations"])

    assert KernelLengths("fluid", {"GPU-a": {"default/a/main": 20480}}) == told

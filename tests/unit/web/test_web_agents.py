"""What nodes' agents measure: from a real agent's own server, and from answers that are meant to do harm."""

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("lightkube", reason="the parts for a cluster are not installed: no nodes to ask")

import httpx2

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.driver.gpu import Gpu as Card
from aliquot.kube.objects import Meta, Pod, PodSpec, PodStatus
from aliquot.node.display.facts import Sources
from aliquot.node.display.server import application, serving
from aliquot.node.machine import Machine
from aliquot.scheduler.agents import (
    AGENT_LABELS,
    Agents,
    AgentThread,
    Pace,
    UnreadableReport,
    agent_addresses,
    bounded_get,
    measure_of,
    read_report,
    tenant_key,
)
from aliquot.status.history import PromiseHistory
from aliquot.status.nodes import NodeReport, Owner
from aliquot.status.sensors import Sensors
from aliquot.status.tenants import TenantStatus

CARD = "GPU-00000000-0000-0000-0000-000000000000"
NAME = "team/train/main"
BOMB = gzip.compress(b" " * (8 << 20))
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def tenant(*, usage: float = 0.25, charged_s: float = 0.0, waited_s: float = 0.0) -> TenantStatus:
    """A tenant with a request of 0.3."""
    return TenantStatus(
        name=NAME, request_milli=300, limit_milli=800, usage=usage, charged_ns=int(charged_s * 1e9),
        memory_used_mib=1024, memory_limit_mib=4096, memory_context_mib=100, wait_ms_p50=12.0, debt_ms=3.0,
        quota_ms=100.0, handovers=7, processes=2, waiting=True, waited_ns=int(waited_s * 1e9),
    )  # fmt: skip


def real_agent(status: Callable[[], Status | None]) -> Any:
    """The pages of a node's agent with one GPU."""
    card = Card(0, CARD, "Tesla V100", 16384, "570", [], ["X"])
    machine = Machine((card,), Path("/libcuda.so.1"), Path("/libnvidia-ml.so.1"))
    owners = {NAME: Owner("team", "train", "main", "uid")}
    return application(Sources("node-a", machine, status, lambda: owners))


def status_now() -> Status:
    """One tenant, who runs."""
    return Status(5, 1, 1, 10_000, "fixed", 100, "early", "pace", 3, [GpuStatus(CARD, NAME, 0.75, [tenant()])])


def body(**gpu: Any) -> bytes:
    """An answer with one GPU of this."""
    return json.dumps({"gpus": [{"uuid": CARD, **gpu}]}).encode()


@asynccontextmanager
async def server(handler: Handler):
    """A server that does what it likes; gives its address."""
    writers: list[asyncio.StreamWriter] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError, asyncio.CancelledError):
            await handler(reader, writer)

    listening = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/node.json"
    finally:
        listening.close()
        for writer in writers:
            writer.close()


async def asked(address: str, *, answer_s: float = 2.0) -> Agents:
    """The agents after one ask of one node."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        agents = Agents(bounded_get(client), pace=Pace(answer_s=answer_s))
        agents.places = {"node-a": address}
        agents.step()
        while agents._running:
            await asyncio.sleep(0.01)
        agents.step()
        return agents


async def test_a_real_agents_answer_is_what_pages_get():
    """Usage, memory, waits, holder and health of a GPU come from the agent's own server over a real connection."""
    async with serving(real_agent(status_now), 0) as port:
        agents = await asked(f"http://127.0.0.1:{port}/node.json")
    gpu = agents.measured["node-a"].gpus[CARD]
    share = gpu.of(NAME)

    assert {} == agents.silent
    assert (750, NAME, "", 10.0) == (gpu.busy_milli, gpu.holder, gpu.unhealthy, agents.measured["node-a"].window_s)
    assert share is not None and (250, 1024, 12.0, 3.0, 100.0, 2, True) == (
        share.usage_milli, share.memory_used_mib, share.wait_ms_p50, share.debt_ms, share.quota_ms, share.processes,
        share.waiting,
    )  # fmt: skip


async def test_an_agent_without_its_arbiter_measures_nothing():
    """While the arbiter is away the node is not known, which is not the same as idle."""
    async with serving(real_agent(lambda: None), 0) as port:
        agents = await asked(f"http://127.0.0.1:{port}/node.json")

    assert {} == agents.measured
    assert {"node-a": "its arbiter does not answer"} == agents.silent


async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def drips(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b"{")
        await writer.drain()
        await asyncio.sleep(0.02)


async def floods(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b" " * 65536)
        await writer.drain()


async def packs(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB) + BOMB)
    await writer.drain()


async def sends_elsewhere(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/secret\r\ncontent-length: 0\r\n\r\n")


async def hangs_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def babbles(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>")


HOSTILE = {
    never: "no complete answer within 1 s",
    drips: "no complete answer within 1 s",
    floods: "longer than 4 MiB",
    packs: "compressed content",
    sends_elsewhere: "status 302",
    hangs_up: "cannot be reached",
    babbles: "cannot be read",
}


@pytest.mark.parametrize("handler", HOSTILE, ids=lambda handler: handler.__name__)
async def test_a_hostile_answer_is_no_measure(handler: Handler):
    """An agent that is silent, slow, endless, packed, elsewhere, rude or wrong is named with the reason, in time."""
    async with server(handler) as address:
        agents = await asked(address, answer_s=1.0)

    assert {} == agents.measured
    assert HOSTILE[handler] in agents.silent["node-a"]


WRONG = [b"", b"[]", b"{}", b'{"gpus": 5}', b'{"gpus": [{"uuid": 5}]}', b"\xff\xfe", b'{"gpus": ' + b"[" * 100_000]


@pytest.mark.parametrize("answer", WRONG, ids=range(len(WRONG)))
def test_what_is_no_answer_is_refused(answer: bytes):
    """Anything but an agent's page of facts is told as unreadable, whatever it is."""
    with pytest.raises(UnreadableReport, match="cannot be read"):
        read_report(answer)


def test_numbers_are_cut_to_what_can_be():
    """Negative, endless and absurd numbers neither break a page nor show more than a whole GPU."""
    use = {"owner": {"namespace": "team", "pod": "train", "container": "main"}}
    status = msgspec.to_builtins(tenant())
    wild = status | {"usage": 1e308, "memory_used_mib": -5, "wait_ms_p50": 1e300, "debt_ms": -1.0, "processes": 10**18}
    told = read_report(body(busy=-3.0, uses=[use | {"status": wild}]))
    gpu = measure_of(told).gpus[CARD]
    share = gpu.of(NAME)

    assert 0 == gpu.busy_milli
    assert share is not None and (1000, 0, 1e9, 0, 1 << 31) == (
        share.usage_milli, share.memory_used_mib, share.wait_ms_p50, share.debt_ms, share.processes
    )  # fmt: skip


def test_sensors_come_from_the_node_and_are_cut_to_what_can_be():
    """Temperature, power and clocks are the node's; what it does not say is unknown, and absurd numbers are bounded."""
    sensed = measure_of(read_report(body(sensors={"celsius": 61, "watts": 1e308, "sm_mhz": -3}))).gpus[CARD].sensors

    assert Sensors(celsius=61, watts=1e6, sm_mhz=0) == sensed
    assert measure_of(read_report(body())).gpus[CARD].sensors is None


def test_promises_are_those_of_the_last_hour_by_the_nodes_own_clock():
    """The windows that the node's arbiter has counted are shown for an hour of the node's time."""
    history = PromiseHistory(10.0)

    def told(now_s: float, windows: int, kept: int) -> NodeReport:
        status = tenant(usage=0.15)
        use = {"owner": {"namespace": "team", "pod": "train", "container": "main"}}
        fields = msgspec.to_builtins(status) | {"promise": {"windows": windows, "kept": kept}}
        found = read_report(body(uses=[use | {"status": fields}]))
        return msgspec.structs.replace(found, now_ns=int(now_s * 1e9))

    measure_of(told(100.0, 40, 0), history)
    first = measure_of(told(110.0, 80, 30), history).kept
    later = measure_of(told(3705.0, 90, 40), history).kept

    assert {(CARD, NAME): (37.5, 80)} == first
    assert {(CARD, NAME): (80.0, 50)} == later


@pytest.mark.parametrize("name", ["a/b/c", "a/b/c#2", "a/b/c@1234abcd.1"])
def test_tenants_of_the_ledger_are_found(name: str):
    """Parts of a container and namesakes are one tenant on the node."""
    assert "a/b/c" == tenant_key(name)


class Scene:
    """Agents that answer or fail as they are told, by a clock that is set by hand."""

    def __init__(self, nodes: int = 1, **pace: Any) -> None:
        self.now_s, self.fails, self.calls, self.open, self.max_open = 100.0, False, 0, 0, 0
        self.watched = True
        self.agents = Agents(self._fetch, pace=Pace(**pace), clock=lambda: self.now_s, watched=lambda: self.watched)
        self.agents.places = {f"node-{n}": f"http://10.0.0.{n}/" for n in range(nodes)}

    async def _fetch(self, _address: str) -> bytes:
        self.calls += 1
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        if self.fails:
            raise UnreadableReport("it is tired")
        return body(busy=0.5)

    async def passes(self, seconds: float, step_s: float = 0.5) -> int:
        """Let time pass; gives how often agents were asked."""
        before = self.calls
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.agents.step()
            for _ in range(4):
                await asyncio.sleep(0)
        self.agents.step()
        return self.calls - before


async def test_one_that_fails_is_forgotten_and_asked_ever_more_rarely():
    """What a node said is shown for a while, then not known; it is asked less and less, and at once again once well."""
    scene = Scene()

    before_s = time.time()
    well = await scene.passes(60)
    scene.fails = True
    await scene.passes(10)
    still_shown = "node-0" in scene.agents.measured
    await scene.passes(110)
    assert before_s <= scene.agents.answered_at_s["node-0"] <= time.time()
    forgotten = scene.agents.measured == {} and scene.agents.silent == {"node-0": "it is tired"}
    rarely = await scene.passes(120)
    scene.fails = False
    await scene.passes(61)
    again = scene.agents.silent == scene.agents.answered_at_s == {}
    after = await scene.passes(60)

    assert still_shown and forgotten and again
    assert 25 <= well <= 31 and 25 <= after <= 31
    assert 1 <= rarely <= 3


def test_nobody_looking_means_fewer_questions():
    """While nobody looks agents are asked every ten seconds, for the history."""
    scene = Scene()
    scene.watched = False

    assert 5 <= asyncio.run(scene.passes(60)) <= 7


def test_many_nodes_are_asked_in_turn():
    """With a thousand nodes no more are asked at once, nor in all, than may be; each gets its turn."""
    scene = Scene(1000, at_once=3, max_per_s=50.0)
    calls = asyncio.run(scene.passes(60, step_s=0.05))

    assert 3 == scene.max_open
    assert 1000 == len(scene.agents.measured)
    assert calls <= 50 * 60 * 1.1


async def test_a_node_that_leaves_is_forgotten():
    """What was measured of it goes with it."""
    scene = Scene(2)

    await scene.passes(5)
    scene.agents.places = {"node-1": "http://10.0.0.1/"}
    await scene.passes(1)
    assert {"node-1"} == set(scene.agents.measured) | set(scene.agents.silent)


def pod(name: str, namespace: str, ip: str, *, component: str = "node", phase: str = "Running") -> Pod:
    """A pod with the labels of a component."""
    labels = dict(AGENT_LABELS) | {"app.kubernetes.io/component": component}
    return Pod(
        Meta(name, namespace=namespace, labels=labels), PodSpec(node_name=f"on-{name}"), PodStatus(phase, pod_ip=ip)
    )


def test_agents_are_pods_of_our_own_namespace():
    """Pods of other namespaces are no agents, whatever their labels; nor are ended ones and those without address."""
    pods = [
        pod("a", "home", "10.0.0.1"),
        pod("b", "home", "fd00::1"),
        pod("c", "elsewhere", "10.0.0.3"),
        pod("d", "home", ""),
        pod("e", "home", "10.0.0.5", phase="Failed"),
        pod("f", "home", "10.0.0.6", component="scheduler"),
    ]

    assert {"on-a": "http://10.0.0.1:5678/node.json", "on-b": "http://[fd00::1]:5678/node.json"} == agent_addresses(
        pods, namespace="home", port=5678
    )


async def test_the_thread_asks_and_ends():
    """Agents are asked in a thread of their own, which is gone when it was closed."""
    async with serving(real_agent(status_now), 0) as port:
        asking = AgentThread(pace=Pace(seen_s=0.1))
        asking.agents.places = {"node-a": f"http://127.0.0.1:{port}/node.json"}
        async with asyncio.timeout(10):
            while not asking.agents.measured:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(asking.close)

    assert {"node-a"} == set(asking.agents.measured) and not asking._thread.is_alive()

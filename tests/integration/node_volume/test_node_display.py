"""What the display tells of a container is what its program did, asked of the real arbiter."""

import asyncio
import contextlib
import os
import socket
from typing import Any, cast

import httpx
from kit.driver_calls import OUT_OF_MEMORY
from kit.driver_process import DriverProcess
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from volume_room import Room

from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.display.facts import sources_of
from aliquot.node.display.notices import report_notices
from aliquot.node.display.server import Display, application
from aliquot.node.events import Events
from aliquot.node.pods import NodePods
from aliquot.node.settings import NodeSettings


def compute(room: Room) -> None:
    """A program of the container asks for too much memory, and computes for 0.2 s."""
    gpu = DriverProcess(os.environ | {"LD_LIBRARY_PATH": str(room.library.parent)})
    assert (0, OUT_OF_MEMORY) == (gpu.open(), gpu.allocate("linear", 1 << 30).code)
    assert 0 == gpu.launch(gpu.function(), 200_000_000) == gpu.code("cuCtxSynchronize")
    gpu.kill()


def told(client: TestClient, name: str) -> float:
    """The one value of a metric on the first GPU."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    (value,) = [s.value for f in families for s in f.samples if s.name == name and s.labels.get("gpu", "0") == "0"]
    return value


def test_what_a_program_did_is_told_under_its_containers_name(room: Room):
    """Charged time, grants and the allocation that was refused; the graph and the JSON name the container."""
    client = TestClient(application(sources_of(room.provisioner, room.folder)))
    assert 0 == told(client, "aliquot_container_gpu_oom_total")

    compute(room)

    assert 1 == told(client, "aliquot_container_gpu_oom_total")
    assert told(client, "aliquot_container_gpu_charged_seconds_total") >= 0.2
    assert told(client, "aliquot_container_gpu_handovers_total") >= 1
    assert 512 << 20 == told(client, "aliquot_container_gpu_memory_limit_bytes")
    assert "team/train/main  0.30 used" in client.get("/graph").text
    assert {"uid-train": {"main": [0]}} == client.get("/node.json").json()["pods"]


def test_the_pages_follow_an_upgrade_of_the_driver(room: Room):
    """They tell the version that new containers are shown, not that of the agent's start."""
    client = TestClient(application(sources_of(room.provisioner, room.folder)))

    room.provisioner.offer.machine = room.machine.redriven("599.11.22")

    assert "driver 599.11.22" in client.get("/version").text
    assert "599.11.22" == client.get("/node.json").json()["driver"]


def test_a_dead_arbiter_is_told_by_every_page(room: Room):
    """The pages answer, and say that the arbiter does not."""
    client = TestClient(application(sources_of(room.provisioner, room.folder)))
    room.arbiter.kill()

    assert 0 == told(client, "aliquot_node_arbiter_up")
    assert "The arbiter does not answer" in client.get("/graph").text
    assert client.get("/node.json").json()["arbiter_answers"] is False


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _started(room: Room, **settings: Any) -> tuple[str, str]:
    """What the opened display says, and the page /usage if there is one then."""
    display = Display(
        NodeSettings(node_name="node-1", runtime_dir=str(room.folder), **settings),
        room.provisioner, cast("NodePods", ()), cast("Events", None),
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as opened:
        said = await display.open(opened)
        async with httpx.AsyncClient() as http:
            page = (await http.get(said.replace("/graph", "/usage"))).text if said.startswith("http") else ""
    return said, page


def test_the_agent_serves_the_display_as_its_last_step(room: Room):
    """On loopback, at the port of its settings, with its own tenants."""
    port = free_port()

    said, page = asyncio.run(_started(room, display_port=port))

    assert f"http://127.0.0.1:{port}/graph" == said
    assert "team       train  main       0    0.30" in page


def test_a_display_that_can_not_be_served_stops_no_agent(room: Room):
    """The line in the log says why; port 0 asks for none."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        said, _ = asyncio.run(_started(room, display_port=other.getsockname()[1]))

    assert said.startswith("not served: --display-port ")
    assert "not requested" == asyncio.run(_started(room, display_port=0))[0]


class Told:
    """Stands for the agent's events; the first that is told ends the wait."""

    def __init__(self) -> None:
        self.first: asyncio.Future[tuple[PodKey, str, str]] = asyncio.get_running_loop().create_future()

    async def about_pod(self, pod: PodKey, reason: str, message: str) -> None:
        if not self.first.done():
            self.first.set_result((pod, reason, message))


async def _told_of(room: Room) -> tuple[PodKey, str, str]:
    events = Told()
    sources = sources_of(room.provisioner, room.folder)
    watch = asyncio.create_task(report_notices(sources, cast("Events", events), 0.1))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(compute, room)
    try:
        return await asyncio.wait_for(events.first, 20)
    finally:
        watch.cancel()


def test_a_refused_allocation_becomes_an_event_on_the_pod(room: Room):
    """With the pod's own uid, so that `kubectl describe` shows it."""
    pod, reason, message = asyncio.run(_told_of(room))

    assert (PodKey("uid-train", "team", "train"), "GpuOutOfMemory") == (pod, reason)
    assert "its limit of 512 MiB" in message

"""The display server: what the node looks like, as text and JSON, on loopback, for reading."""

import asyncio
import socket
from dataclasses import replace

import msgspec
import pytest
from node_scenes import UUIDS, facts, machine, sources
from starlette.testclient import TestClient

from aliquot.http.listening import PortTaken
from aliquot.node.display.server import application, graph, serving, usage


@pytest.fixture
def client() -> TestClient:
    return TestClient(application(sources()))


def test_the_graph_draws_links_gpus_and_containers():
    """The tree with costs, each GPU with what is free and used, each container below its GPU."""
    expected = """\
node-a: 2 GPUs, driver 570.124.06
NV2 (cost 500)
├─ GPU 0  Tesla V100  0.30 free, busy 75%, memory 1536/16384 MiB
│       team/train-0/main  0.30 used 0.25  1024 MiB
│       team/web-1/app  0.40 used 0.50  512 MiB
└─ GPU 1  Tesla V100  0.00 free, busy 0%, memory 2048/16384 MiB
        team/train-0/main  1.00 used 0.12  2048 MiB
"""
    assert expected == graph(facts(), machine().topology)


def test_the_graph_says_what_it_does_not_know():
    """An unhealthy GPU and an arbiter that is away are told where the numbers would stand."""
    text = graph(facts(status=lambda: None, unhealthy=lambda: {UUIDS[0]: "XID 79"}), machine().topology)

    assert "The arbiter does not answer: what is used is not known." in text
    assert "GPU 0  Tesla V100  unhealthy: XID 79" in text


def test_a_gpu_that_is_left_out_leaves_no_gap_in_the_graph():
    """The tree counts places, GPUs are called by their indices."""
    first, second = machine().gpus
    gapped = replace(machine(), gpus=(first, msgspec.structs.replace(second, index=5)))

    text = graph(facts(machine=gapped), gapped.topology)

    assert ["GPU 0", "GPU 5"] == [line[3:8] for line in text.splitlines()[2:] if "GPU " in line[:8]]


def test_usage_has_a_line_for_each_container_and_gpu():
    """Aligned, pods in order."""
    lines = usage(facts()).splitlines()

    assert ["NAMESPACE", "train-0", "train-0", "web-1"] == [lines[0].split()[0], *(x.split()[1] for x in lines[1:])]
    assert "team       web-1    app        0    0.40     0.80   0.50   512/4096 MiB   1.5 s      7" == lines[3]


def test_usage_is_gpu_managers_json_for_who_accepts_it(client: TestClient):
    """Pods by uid, each container's cards with percent and MiB, and what it asked for; zeros are left out."""
    body = client.get("/usage", headers={"accept": "application/json"}).json()

    assert {"uid-t", "uid-w"} == set(body["usage"])
    assert "team" == body["usage"]["uid-t"]["project"]
    first = {"id": "00000000:00:00.0", "card_idx": "0", "gpu": 25.0, "mem": 1024}
    second = {"id": "00000000:01:00.0", "card_idx": "1", "gpu": 12.5, "mem": 2048}
    assert {"main": {"dev": [first, second]}} == body["usage"]["uid-t"]["stat"]
    assert {"main": {"gpu": 1.3, "mem": 8192}} == body["usage"]["uid-t"]["spec"]


@pytest.mark.parametrize(
    ("aliases", "accept", "form"),
    [((), "*/*", "text"), (("gpu-manager",), "*/*", "json"), (("gpu-manager",), "text/html,*/*", "text")],
)
def test_usage_is_a_table_for_people(aliases: tuple[str, ...], accept: str, form: str):
    """Who says nothing is answered as gpu-manager does where its names were asked for."""
    answer = TestClient(application(sources(), aliases)).get("/usage", headers={"accept": accept})

    assert form in answer.headers["content-type"]


def test_the_json_tells_what_the_text_tells(client: TestClient):
    """GPUs with their containers, and each pod's GPUs by uid."""
    body = client.get("/node.json").json()

    assert {"uid-t": {"main": [0, 1]}, "uid-w": {"app": [0]}} == body["pods"]
    assert [300, 0] == [gpu["free_milli"] for gpu in body["gpus"]]
    assert 4 == body["gpus"][0]["uses"][0]["status"]["memory_refusals"]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/metrics", "aliquot_node_gpu_busy_ratio"), ("/metric", "aliquot_node_gpu_busy_ratio"), ("/graph", "GPU 1"),
        ("/usage", "web-1"), ("/version", "driver 570.124.06"), ("/healthz", "ok"),
    ],
)  # fmt: skip
def test_each_page_is_served(client: TestClient, path: str, part: str):
    """As text, gpu-manager's paths among them."""
    answer = client.get(path)

    assert (200, True) == (answer.status_code, answer.headers["content-type"].startswith("text/plain"))
    assert part in answer.text


def test_nothing_can_be_written(client: TestClient):
    """Other methods are refused."""
    assert 405 == client.post("/usage").status_code


def test_a_port_that_is_taken_is_named():
    """One sentence, before anything is served."""

    async def attempt(port: int) -> None:
        async with serving(application(sources()), port):
            pass

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PortTaken, match="address already in use; set --display-address or"):
            asyncio.run(attempt(other.getsockname()[1]))

"""The dashboard of a cluster: a real scheduler program and API server, two hundred nodes, pods that come and wait."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.control_plane import ControlPlane
from scheduling import OurScheduler, devices_of, eventually, gpu_pod, percent, slices_of, wait_bound

WEB_PORT = 8771
NODES = 200


class Pages:
    """The dashboard, asked from outside the cluster's network."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def get(self, path: str, host: str = "localhost") -> tuple[int, bytes]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", WEB_PORT)
        connection.sock = self._plane.rooms.connect(WEB_PORT)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()

    def facts(self, path: str) -> Any:
        """An answer of the API."""
        status, body = self.get(f"/api/v1/{path}")
        assert 200 == status, body
        return json.loads(body)


@pytest.fixture(scope="module")
def pages(control_plane: ControlPlane) -> Iterator[Pages]:
    """A scheduler with its dashboard, over two hundred nodes with eight V100 each."""
    nodes = control_plane.fake_nodes(NODES, "v100", prefix="web")
    ours = OurScheduler(control_plane, 8770, "--web", f"127.0.0.1:{WEB_PORT}", "--web-host", "gpus.example")
    ours.part.start()
    ours.configure()
    shown = Pages(control_plane)
    eventually(lambda: shown.facts("totals")["gpus"] == 8 * NODES, "the dashboard does not show every GPU")
    yield shown
    ours.part.stop()
    control_plane.schedule_with({})
    control_plane.remove_nodes(nodes)


def test_every_gpu_of_the_cluster_is_there(pages: Pages, control_plane: ControlPlane):
    """The API has the GPUs that the nodes announce, and the first page a bounded number of them, at once."""
    began_s = time.monotonic()
    status, body = pages.get("/")
    took_s = time.monotonic() - began_s

    assert set(devices_of(control_plane)) == {gpu["uuid"] for gpu in pages.facts("gpus")["items"]}
    assert 200 == status and len(body) < 150_000 and took_s < 1.0


def test_a_pod_is_shown_where_it_was_bound(pages: Pages, control_plane: ControlPlane, namespace: str):
    """A pod that gets a part of a GPU stands on that GPU with its request within two seconds, and leaves it again."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    control_plane.api.create(path, gpu_pod("a", percent(30, "4Gi")))
    (pod,) = wait_bound(control_plane, namespace, 1)
    bound_s = time.monotonic()
    ((uuid, milli, mib),) = slices_of(pod)

    def shares() -> list[tuple[int, int]]:
        gpu = next(gpu for gpu in pages.facts("gpus")["items"] if gpu["uuid"] == uuid)
        return [
            (s["request_milli"], s["memory_mib"]) for s in gpu["shares"] if s["tenant"].startswith(f"{namespace}/a")
        ]

    eventually(lambda: shares() == [(milli, mib)], "the GPU does not show the pod")
    assert time.monotonic() - bound_s < 2.0
    control_plane.api.delete(f"{path}/a")
    eventually(lambda: shares() == [], "the GPU still shows the pod")


def test_a_pod_that_waits_says_why(pages: Pages, control_plane: ControlPlane, namespace: str):
    """A pod that asks for more than any node has waits on the page, with its reason by groups of nodes."""
    control_plane.api.create(f"/api/v1/namespaces/{namespace}/pods", gpu_pod("huge", percent(900)))
    name = f"{namespace}/huge"
    eventually(lambda: name in [w["name"] for w in pages.facts("workloads?phase=Pending")["items"]], "it is not shown")
    why = pages.facts(f"workloads/{name}/explain")

    assert [f"{NODES} nodes"] == [reason["where"] for reason in why["reasons"]]
    assert why["reasons"][0]["lasting"]


def test_try_it_says_what_would_be_bound(pages: Pages, control_plane: ControlPlane, namespace: str):
    """A dry run names a GPU that a pod with that request then gets."""
    trial = pages.facts("try?request=0.4&memory=2Gi")
    control_plane.api.create(f"/api/v1/namespaces/{namespace}/pods", gpu_pod("b", percent(40, "2Gi")))
    (pod,) = wait_bound(control_plane, namespace, 1)

    assert trial["fits"] and trial["pieces"][0]["node"] == pod["spec"]["nodeName"]
    assert [piece["uuid"] for piece in trial["pieces"]] == [uuid for uuid, _, _ in slices_of(pod)]


def test_only_its_own_names_are_answered(pages: Pages):
    """The name that the administrator gave is answered, another is not."""
    assert (200, 421) == (pages.get("/", "gpus.example")[0], pages.get("/", "evil.example")[0])


def test_every_page_is_served(pages: Pages):
    """All pages work on a cluster's facts, the topology of a node among them."""
    node = pages.facts("nodes?limit=1")["items"][0]["name"]
    for path in ("/", "/?group=model&sort=free", "/workloads", f"/topology?node={node}", "/pool", "/try?request=2"):
        status, body = pages.get(path)
        assert 200 == status and b"<h1>" in body, path
    assert b'svg class="tree"' in pages.get(f"/topology?node={node}")[1]

"""The test cluster itself: real parts, ready in seconds, and nothing left."""

import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cluster.api import Api, ApiError
from cluster.control_plane import ControlPlane
from cluster.namespaces import NODE_ADDRESS
from cluster.parts import until
from cluster.prepare import Parts


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Two fake nodes of different models."""
    names = [*control_plane.fake_nodes(1, "v100"), *control_plane.fake_nodes(1, "a100", gpus=4)]
    yield names
    control_plane.remove_nodes(names)


def test_a_cluster_is_up_in_seconds(control_plane: ControlPlane):
    """From nothing to a control plane that schedules takes seconds, of the Kubernetes version that tools/ names."""
    assert control_plane.started_in_s < 30
    assert "v1.36.4" == control_plane.api.get("/version")["gitVersion"]


def test_a_pod_is_scheduled_on_a_fake_node(control_plane: ControlPlane, namespace: str, nodes: list[str]):
    """The real scheduler binds a pod to a fake node, and kwok lets it run."""
    control_plane.create_pod(namespace, "one")

    assert control_plane.wait_running(namespace, "one")["spec"]["nodeName"] in nodes


def test_a_fake_node_tells_its_gpus_and_their_links(control_plane: ControlPlane, nodes: list[str]):
    """A fake node carries the devices and the real topology of its profile, and advertises their sum."""
    node = control_plane.api.get(f"/api/v1/nodes/{nodes[1]}")

    described = json.loads(node["metadata"]["annotations"]["aliquot.dev/gpus"])
    assert 4 == len(described["devices"]) == len(described["links"])
    assert "NV12" == described["links"][0][3]
    assert "400" == node["status"]["allocatable"]["aliquot.dev/gpu-percent"]


class Extender(BaseHTTPRequestHandler):
    """A scheduler extender that lets only one node pass, and keeps what it was asked."""

    allowed: ClassVar[str] = ""
    asked: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answers the verb `filter`."""
        question: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Extender.asked.append(question["Pod"]["metadata"]["name"])
        others = {name: "not this one" for name in question["NodeNames"] if name != self.allowed}
        body = json.dumps({"NodeNames": [self.allowed], "FailedNodes": others}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keeps quiet."""


@pytest.fixture
def extender(control_plane: ControlPlane) -> Iterator[str]:
    """The extender above, served by the test on the cluster's own loopback; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Extender, bind_and_activate=False)
    server.socket.close()
    server.socket = control_plane.rooms.listener()
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    server.shutdown()
    thread.join()
    server.server_close()
    control_plane.schedule_with({})


@pytest.mark.parametrize("which", [0, 1])
def test_the_scheduler_asks_the_extender_that_its_configuration_names(
    control_plane: ControlPlane, namespace: str, nodes: list[str], extender: str, which: int
):
    """kube-scheduler runs with the KubeSchedulerConfiguration of the test, and obeys an extender on loopback."""
    Extender.allowed = nodes[which]
    control_plane.schedule_with(
        {"extenders": [{"urlPrefix": extender, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "5s"}]}
    )

    control_plane.create_pod(namespace, f"asked-{which}")

    assert nodes[which] == control_plane.wait_running(namespace, f"asked-{which}")["spec"]["nodeName"]
    assert f"asked-{which}" in Extender.asked


def test_a_killed_scheduler_leaves_pods_waiting_until_it_is_back(
    control_plane: ControlPlane, namespace: str, nodes: list[str]
):
    """A part can be killed and started again, and what waited goes on."""
    control_plane["kube-scheduler"].kill()
    control_plane.create_pod(namespace, "waits")
    assert not control_plane["kube-scheduler"].running
    assert "nodeName" not in control_plane.pod(namespace, "waits")["spec"]

    control_plane["kube-scheduler"].start()

    assert control_plane.wait_running(namespace, "waits")["spec"]["nodeName"] in nodes


def test_the_api_server_comes_back_with_what_it_had(control_plane: ControlPlane, namespace: str):
    """Killing the API server loses nothing, and clients find it at the same address again."""
    control_plane.api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "kept"}})

    control_plane["kube-apiserver"].kill()
    with pytest.raises(OSError):
        control_plane.api.get("/readyz")
    control_plane["kube-apiserver"].start()

    assert "kept" == control_plane.api.get(f"/api/v1/namespaces/{namespace}/configmaps/kept")["metadata"]["name"]


def test_kubectl_and_its_kubeconfig_are_ready(control_plane: ControlPlane, namespace: str):
    """kubectl of the cluster's version speaks to it, from outside through the kubeconfig that tests hand on."""
    assert f"namespace/{namespace}" in control_plane.kubectl("get", "namespaces", "-o", "name").split()
    assert control_plane.url in control_plane.kubeconfig.read_text()


def test_a_user_may_do_what_was_granted_and_nothing_else(control_plane: ControlPlane, namespace: str):
    """Users are known by certificates, and RBAC rules as in a real cluster."""
    pair = control_plane.pki.client("nobody", "nobody")
    nobody = Api("127.0.0.1", control_plane.port, control_plane.authority, pair)

    with pytest.raises(ApiError, match="403"):
        nobody.get(f"/api/v1/namespaces/{namespace}/pods")


def test_the_network_inside_is_loopback_only(control_plane: ControlPlane):
    """The cluster's network has no way out: there is loopback, with the node's address on it."""
    devices = control_plane.rooms.run(["/bin/ls", "/proc/sys/net/ipv4/conf"]).split()

    assert {"all", "default", "lo"} == set(devices) - {"pods"} - {name for name in devices if name.startswith("veth")}
    with pytest.raises(OSError):
        control_plane.rooms.connect(80, "192.0.2.1", timeout_s=0.5)
    assert control_plane.rooms.connect(control_plane.port, NODE_ADDRESS)


def test_a_hanging_api_server_is_noticed_and_goes_on(control_plane: ControlPlane):
    """A part can be made to hang, as in a partition, and to go on."""
    api = control_plane["kube-apiserver"]
    api.pause()
    try:
        assert not control_plane.answers(control_plane.port, "/readyz", tls=True)
    finally:
        api.resume()

    until(lambda: control_plane.answers(control_plane.port, "/readyz", tls=True), "the API server")


def watch(plane: ControlPlane, version: str) -> http.client.HTTPResponse:
    """A watch on config maps from outside, from this resource version on."""
    context = ssl.create_default_context(cafile=str(plane.authority))
    context.load_cert_chain(plane.client.certificate, plane.client.key)
    connection = http.client.HTTPSConnection("127.0.0.1", plane.port, context=context, timeout=20)
    connection.request("GET", f"/api/v1/configmaps?watch=1&resourceVersion={version}")
    return connection.getresponse()


def test_a_watch_can_be_cut(control_plane: ControlPlane, namespace: str):
    """A partition ends the watches of clients outside; the parts inside go on, and afterwards everything is there."""
    version = control_plane.api.get("/api/v1/configmaps")["metadata"]["resourceVersion"]
    watching = watch(control_plane, version)

    with control_plane.partition():
        with pytest.raises((http.client.HTTPException, OSError)):
            while watching.read(1):  # what came before the cut is still there to be read
                pass
        assert control_plane.answers(control_plane.port, "/readyz", tls=True)

    assert "ok" == control_plane.api.get("/readyz")


def test_a_resource_version_can_be_made_too_old(control_plane: ControlPlane, namespace: str):
    """After a compaction and a restart of the API server an old watch is refused as gone."""
    version = control_plane.api.get("/api/v1/configmaps")["metadata"]["resourceVersion"]
    for number in range(3):
        control_plane.api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": f"c{number}"}})

    assert control_plane.compact() > int(version)
    control_plane["kube-apiserver"].kill()
    control_plane["kube-apiserver"].start()

    assert 410 == json.loads(watch(control_plane, version).readline())["object"]["code"]


def test_the_cluster_of_a_person_has_kubectl_ready(cluster_parts: Parts):
    """The command behind `make cluster` runs what it is given with kubectl ready, and the cluster ends with it."""
    command = [sys.executable, "-m", "cluster", "--nodes=3", "--gpus=4", "--profile=h100", "--no-kubelet", "--"]
    ask = [
        "kubectl",
        "get",
        "nodes",
        "-o",
        "custom-columns=:.status.capacity.aliquot\\.dev/gpu-percent",
        "--no-headers",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}

    done = subprocess.run([*command, *ask], capture_output=True, text=True, env=environment)

    assert ["400"] * 3 == done.stdout.split(), done.stderr
    assert done.stderr.endswith("everything is gone\n")

"""The test cluster itself: real parts, ready in seconds, and nothing left."""

import http.client
import json
import ssl
from collections.abc import Iterator

import pytest
from cluster.api import Api, ApiError
from cluster.control_plane import ControlPlane
from cluster.namespaces import NODE_ADDRESS
from cluster.parts import until


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Two fake nodes of different models."""
    names = [*control_plane.fake_nodes(1, "v100"), *control_plane.fake_nodes(1, "a100", gpus=4)]
    yield names
    control_plane.remove_nodes(names)


def test_a_fake_node_tells_its_gpus_and_their_links(control_plane: ControlPlane, nodes: list[str]):
    """A fake node carries the devices and the real topology of its profile, and advertises their sum."""
    node = control_plane.api.get(f"/api/v1/nodes/{nodes[1]}")

    described = json.loads(node["metadata"]["annotations"]["aliquot.dev/gpus"])
    assert 4 == len(described["devices"]) == len(described["links"])
    assert "NV12" == described["links"][0][3]
    assert "400" == node["status"]["allocatable"]["aliquot.dev/gpu-percent"]


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

"""The real node of the test cluster: kubelet, containerd and runc, with images from this machine."""

import re
from typing import Any

import pytest
from cluster.api import ApiError
from cluster.images import BUSYBOX, PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.namespaces import SERVICE_ADDRESS
from cluster.parts import until

STAY = ("/bin/sleep", "1000")
# The way a program in a pod speaks to the API server: environment, token and authority that kubelet hands it.
IN_CLUSTER = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
where = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
token = {"Authorization": "Bearer " + open(folder + "token").read()}
request = urllib.request.Request(where + "/version", headers=token)
answer = urllib.request.urlopen(request, context=ssl.create_default_context(cafile=folder + "ca.crt"))
print(json.load(answer)["gitVersion"], where)
"""


def logs(node: KubeletNode, namespace: str, pod: str) -> str:
    """What the pod printed, once it has ended."""

    def ended() -> bool:
        return node.control_plane.pod(namespace, pod)["status"]["phase"] in ("Succeeded", "Failed")

    until(ended, f"the end of {pod}")
    return node.control_plane.kubectl("logs", "-n", namespace, pod)


def run(node: KubeletNode, namespace: str, name: str, image: str, *command: str, **spec: Any) -> None:
    """Creates a pod that only the real node may take."""
    on_node = {"nodeSelector": {"kubernetes.io/hostname": node.name}}
    node.control_plane.create_pod(namespace, name, image, *command, **on_node, **spec)


def test_a_pod_runs_on_the_kubelet_node(kubelet_node: KubeletNode, namespace: str):
    """A pod is scheduled on the real node, runs there, can be entered, and has an address of its own."""
    run(kubelet_node, namespace, "stays", BUSYBOX, *STAY)

    pod = kubelet_node.control_plane.wait_running(namespace, "stays")

    assert kubelet_node.name == pod["spec"]["nodeName"]
    assert "10.123.0." in pod["status"]["podIP"]

    def enter() -> str:
        return kubelet_node.control_plane.kubectl("exec", "-n", namespace, "stays", "--", "cat", "/etc/hostname")

    assert "stays" == enter().strip()


def test_a_program_in_a_pod_reaches_the_api_server(kubelet_node: KubeletNode, namespace: str):
    """The host's Python runs in a container, and finds the API server as programs in a cluster do."""
    run(kubelet_node, namespace, "asks", PYTHON, "python3", "-c", IN_CLUSTER)

    assert f"v1.36.4 https://{SERVICE_ADDRESS}:443" == logs(kubelet_node, namespace, "asks").strip()


def test_a_container_has_the_limits_of_its_pod(kubelet_node: KubeletNode, namespace: str):
    """runc puts a container into a cgroup below the cluster's own, with the limits that the pod names."""
    limits = {"resources": {"limits": {"memory": "64Mi", "cpu": "250m"}}}
    run(kubelet_node, namespace, "limited", BUSYBOX, *STAY, container=limits)
    kubelet_node.control_plane.wait_running(namespace, "limited")

    spec = kubelet_node.container_spec(namespace, "limited", "main")

    assert 64 << 20 == spec["linux"]["resources"]["memory"]["limit"]
    assert spec["linux"]["cgroupsPath"].startswith(f"/{kubelet_node.control_plane.rooms.cgroup}/")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_kubelet_that_comes_back_keeps_its_pods(kubelet_node: KubeletNode, namespace: str, how: str):
    """Containers outlive their kubelet, however it ended, and the new one takes them over."""
    run(kubelet_node, namespace, "outlives", BUSYBOX, *STAY)
    before = kubelet_node.control_plane.wait_running(namespace, "outlives")["status"]["containerStatuses"][0]
    kubelet = kubelet_node.control_plane["kubelet"]

    getattr(kubelet, how)()
    kubelet.start()
    run(kubelet_node, namespace, "later", BUSYBOX, *STAY)
    kubelet_node.control_plane.wait_running(namespace, "later")

    after = kubelet_node.control_plane.pod(namespace, "outlives")["status"]["containerStatuses"][0]
    assert (before["containerID"], 0) == (after["containerID"], after["restartCount"])


def test_kubelet_lets_nobody_in_without_a_name(kubelet_node: KubeletNode):
    """Kubelet serves with a certificate of the cluster's authority and refuses who brings none."""
    assert not kubelet_node.control_plane.answers(10250, "/pods", tls=True, address="10.124.0.1")
    through = f"/api/v1/nodes/{kubelet_node.name}/proxy/healthz"
    assert "ok" == kubelet_node.control_plane.api.get(through)


def test_a_node_may_not_speak_for_another(kubelet_node: KubeletNode):
    """The node's own credentials change its own Node object and no other (NodeRestriction)."""
    plane = kubelet_node.control_plane
    others = plane.fake_nodes(1)
    kubeconfig = str(plane.user(f"system:node:{kubelet_node.name}", "system:nodes"))

    def label(name: str) -> None:
        plane.kubectl("--kubeconfig", kubeconfig, "annotate", "node", name, "tried=yes", "--overwrite")

    label(kubelet_node.name)
    with pytest.raises(RuntimeError, match=re.compile("forbidden", re.IGNORECASE)):
        label(others[0])
    plane.remove_nodes(others)


def test_what_is_not_there_is_an_error_with_its_status(kubelet_node: KubeletNode, namespace: str):
    """The scene's own client tells the API server's refusal, so that a test that looks amiss does not pass."""
    with pytest.raises(ApiError, match="404"):
        kubelet_node.control_plane.pod(namespace, "nobody")

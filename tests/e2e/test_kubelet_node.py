"""The real node of the test cluster: kubelet, containerd and runc, with images from this machine."""

import re
from typing import Any

import pytest
from cluster.api import ApiError
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.namespaces import SERVICE_ADDRESS
from cluster.parts import until

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


def test_a_program_in_a_pod_reaches_the_api_server(kubelet_node: KubeletNode, namespace: str):
    """The host's Python runs in a container, and finds the API server as programs in a cluster do."""
    run(kubelet_node, namespace, "asks", PYTHON, "python3", "-c", IN_CLUSTER)

    assert f"v1.36.4 https://{SERVICE_ADDRESS}:443" == logs(kubelet_node, namespace, "asks").strip()


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

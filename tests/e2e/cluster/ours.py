"""Aliquot's scheduler on the cluster: its kinds of objects, the extender beside the stock scheduler, the webhook."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aliquot.scheduler.agents import AGENT_LABELS

from .control_plane import ControlPlane
from .images import PAUSE
from .namespaces import NODE_ADDRESS
from .parts import Part, until

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))
from webhook_config import configurations

ROOT = Path(__file__).resolve().parents[3]
PORT = 8770
HOLDERS = "kube-system"
"""The namespace of holder pods and of the webhook's certificate."""


def install_crds(plane: ControlPlane) -> None:
    """Our kinds of objects, as a person installs them."""
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy" / "crds"))
    plane.wait_for_kinds()
    # The garbage collector looks for new kinds every half minute, and when it starts.
    plane["kube-controller-manager"].restart()


def program(name: str, *arguments: str) -> list[str]:
    """The command line of one of Aliquot's programs, from this source tree."""
    return [sys.executable, "-m", "aliquot.cli", name, *arguments]


def surroundings(**more: str) -> dict[str, str]:
    """The environment that these programs are started with."""
    return {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], **more}


class OurScheduler:
    """`aliquot scheduler` inside the cluster's network, and the stock scheduler told to ask it."""

    def __init__(self, plane: ControlPlane, port: int = PORT, *flags: str) -> None:
        self.plane = plane
        self.port = port
        # As in a pod, where it is process 1 whenever its container starts again: the same candidate.
        where = ("--bind", f"127.0.0.1:{port}", "--identity", f"scheduler-{port}")
        self.part = Part(
            f"aliquot-scheduler-{port}",
            plane.rooms,
            lambda: program("scheduler", *where, "--kubeconfig", str(plane.kubeconfig), *flags),
            lambda: plane.answers(port, "/leadz") and plane.answers(port, "/readyz"),
            environment=surroundings(HOME=str(plane.rooms.state)),
        )

    def configure(self, url: str = "", *more: str, flags: Sequence[str] = ()) -> None:
        """Let kube-scheduler run with the configuration that our own command prints, and these flags."""
        url = url or f"http://127.0.0.1:{self.port}"
        command = program("scheduler", "--print-kube-scheduler-config", "--url", url, *more)
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings())
        self.plane.schedule_with(done.stdout, *flags)

    def get(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.sock = self.plane.rooms.connect(self.port)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return json.loads(body) if answer.headers["content-type"] == "application/json" else body.decode()

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Status and answer to a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.sock = self.plane.rooms.connect(self.port)
        connection.request("POST", path, body)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)


def host_network_pod(plane: ControlPlane, namespace: str, name: str, node: str, **labels: str) -> None:
    """A running pod that has the node's address, at which one of our programs answers that runs beside the pods."""
    container = {"name": "c", "image": PAUSE, "imagePullPolicy": "Never"}
    spec = {"nodeName": node, "hostNetwork": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
    plane.wait_running(namespace, name)
    if plane.pod(namespace, name)["status"].get("podIP") != NODE_ADDRESS:  # kwok plays it
        status = {"status": {"podIP": NODE_ADDRESS, "podIPs": [{"ip": NODE_ADDRESS}]}}
        patch = ("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge")
        plane.kubectl(*patch, "-p", json.dumps(status))


def agent_pod(plane: ControlPlane, namespace: str, node: str) -> None:
    """The pod by which a node's agent is found; it binds the node's address."""
    host_network_pod(plane, namespace, "agent", node, **AGENT_LABELS)


def serve_pages(plane: ControlPlane, node: str, port: int = PORT, namespace: str = "aliquot-system") -> None:
    """The Service by which the API server reaches our scheduler's pages, as the chart makes it; it binds 0.0.0.0.

    The API server goes to pods only, so there is one on `node`.
    """
    plane.make_namespace(namespace)
    root, metadata = f"/api/v1/namespaces/{namespace}", {"name": "aliquot-scheduler"}
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    plane.api.create(f"{root}/services", {"metadata": metadata, "spec": {"ports": ports}})
    host_network_pod(plane, namespace, "aliquot-scheduler", node)
    reference = {"kind": "Pod", "namespace": namespace, "name": "aliquot-scheduler"}
    subsets = [{"addresses": [{"ip": NODE_ADDRESS, "targetRef": reference}], "ports": ports}]
    plane.api.create(f"{root}/endpoints", {"metadata": metadata, "subsets": subsets})


SCHEDULER = "aliquot-scheduler"
"""The user who may change plans."""

AGENT = "aliquot-node"
"""The user who may say what a node has applied."""


class OurWebhook:
    """The webhook of a scheduler: `flags` make the scheduler serve it, `register` tells the API server of it."""

    def __init__(self, plane: ControlPlane, port: int) -> None:
        self.plane = plane
        self.url = f"https://127.0.0.1:{port}"
        self.flags = ("--webhook", f"127.0.0.1:{port}", "--webhook-name", "127.0.0.1")

    def register(self) -> None:
        """Let the API server ask it; before the scheduler starts, which then says whom to trust."""
        for made in configurations(HOLDERS, url=self.url, scheduler=SCHEDULER, agent=AGENT):
            self.plane.kubectl("apply", "-f", "-", input_=json.dumps(made))

    def wait_trusted(self) -> None:
        """Wait until the API server trusts it."""
        until(lambda: all(self._bundles()), "the API server's trust in the webhook")

    def remove(self) -> None:
        """Let the API server ask it no more."""
        self.plane.kubectl("delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "aliquot")

    def _bundles(self) -> list[bool]:
        group = "/apis/admissionregistration.k8s.io/v1"
        kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        hooks = [hook for kind in kinds for hook in self.plane.api.get(f"{group}/{kind}/aliquot")["webhooks"]]
        return ["caBundle" in hook["clientConfig"] for hook in hooks]

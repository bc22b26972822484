"""Controllers beside ours: a chart's kinds and webhooks, and its manager inside the cluster's network."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import yaml

from . import programs
from .control_plane import ControlPlane
from .parts import Part


class Charted:
    """A manager; `start` leaves it ready, with the API server calling its webhooks by their address."""

    name = ""
    port, health = 0, 0
    flags = ""
    charts: ClassVar[dict[str, tuple[str, ...]]] = {".": ("--include-crds",)}
    """The folders of its charts, with helm's options for each."""

    webhooks: tuple[str, ...] = ()
    """Those of the kinds that are used here, where others are of kinds that the cluster does not have."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.space = f"{self.name}-system"
        built = programs.charted(self.name)
        (self._manager,) = (built / "bin").iterdir()
        self._place = plane.rooms.state / self.name
        pair = plane.pki.server(self.name, self.name, ["127.0.0.1"])
        # Kueue insists on a certificate for its metrics at this path, whether it serves them or not; KServe has one of
        # its webhooks in the folder for temporary files.
        etc = self._place / "etc"
        for folder in (self._place, etc / "kueue/metrics/certs", self._place / "k8s-webhook-server/serving-certs"):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(pair.certificate, folder / "tls.crt")
            shutil.copy(pair.key, folder / "tls.key")
        self._authority = base64.b64encode(Path(plane.authority).read_bytes()).decode()
        run = f"mount --bind {etc} /etc && exec {self._command()}"
        self.part = Part(self.name, plane.rooms, lambda: ["unshare", "-m", "sh", "-c", run], self._ready)
        self._documents: list[dict[str, Any]] = []
        for chart, options in self.charts.items():
            command = [programs.helm(), "template", self.name, built / "chart" / chart, "-n", self.space, *options]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            self._documents += [document for document in yaml.safe_load_all(text) if document]

    def start(self) -> None:
        """Its kinds, the manager, and its webhooks last: nothing can be made while one does not answer."""
        self.plane.make_namespace(self.space)
        kinds = [document for document in self._documents if document["kind"] == "CustomResourceDefinition"]
        for kind in kinds:
            if hook := kind["spec"].get("conversion", {}).get("webhook"):
                hook["clientConfig"] = self._client(hook["clientConfig"])
        self._apply(kinds)
        self.plane.wait_for_kinds()
        (config,) = [document for document in self._documents if document["kind"] == "ConfigMap"]
        self._configure(config)
        self.part.start()
        hooks = [document for document in self._documents if document["kind"].endswith("WebhookConfiguration")]
        for document in hooks:
            own = [
                hook
                for hook in document["webhooks"]
                if not self.webhooks or hook["name"][1:].partition(".")[0] in self.webhooks
            ]
            document["webhooks"] = [hook | {"clientConfig": self._client(hook["clientConfig"])} for hook in own]
        self._apply(hooks)

    def _command(self) -> str:
        kubeconfig = self.plane.kubeconfig
        return f"{self._manager} --kubeconfig={kubeconfig} --config={self._place}/config.yaml {self.flags}"

    def _configure(self, given: dict[str, Any]) -> None:
        """Write its configuration, by that of the chart."""
        config = yaml.safe_load(given["data"]["controller_manager_config.yaml"])
        if "integrations" in config:
            config["integrations"]["frameworks"] = ["batch/job", "pod"]
        config |= {
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": self.port, "certDir": str(self._place)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health}"},
        }
        (self._place / "config.yaml").write_text(yaml.safe_dump(config))

    def _ready(self) -> bool:
        """Whether it is, and its webhooks listen: LeaderWorkerSet's manager says that it is ready before they do."""
        try:
            self.plane.rooms.connect(self.port, timeout_s=2).close()
        except OSError:
            return False
        return self.plane.answers(self.health, "/readyz")

    def _client(self, given: dict[str, Any]) -> dict[str, str]:
        return {"url": f"https://127.0.0.1:{self.port}{given['service']['path']}", "caBundle": self._authority}

    def _apply(self, documents: list[dict[str, Any]]) -> None:
        self.plane.kubectl("apply", "--server-side", "-f", "-", input_=yaml.safe_dump_all(documents))


class Kueue(Charted):
    """Queues of Jobs and pods."""

    name = "kueue"
    port, health = 9443, 8081
    flags = "--feature-gates=VisibilityOnDemand=false"
    webhooks = ("job", "pod", "clusterqueue", "resourceflavor", "workload", "cohort")


class JobSet(Charted):
    """Jobs that run together."""

    name = "jobset"
    port, health = 9444, 8082


class LeaderWorkerSet(Charted):
    """Replicas of a leader and its workers."""

    name = "lws"
    port, health = 9445, 8083


class KServe(Charted):
    """Inference services, each a Deployment."""

    name = "kserve"
    port, health = 9446, 8084
    charts: ClassVar = {
        "kserve-crd": (),
        "kserve-resources": (
            "--set=kserve.controller.deploymentMode=Standard",
            "--set=kserve.controller.gateway.disableIngressCreation=true",
        ),
        "kserve-runtime-configs": ("--set=kserve.servingruntime.enabled=true",),
    }

    def start(self) -> None:
        """Also its runtimes, which a webhook checks."""
        super().start()
        self._apply([document for document in self._documents if document["kind"].startswith("Cluster")])

    def _command(self) -> str:
        variables = f"KUBECONFIG={self.plane.kubeconfig} TMPDIR={self._place} POD_NAMESPACE={self.space}"
        flags = f"--webhook-port={self.port} --health-probe-addr=127.0.0.1:{self.health} --metrics-addr=0"
        return f"env {variables} {self._manager} {flags}"

    def _configure(self, given: dict[str, Any]) -> None:
        self._apply([given])

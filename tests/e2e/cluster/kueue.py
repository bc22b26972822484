"""Kueue on the cluster: its chart's kinds and webhooks, and its manager inside the cluster's network."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from . import programs
from .control_plane import ControlPlane
from .parts import Part

PORT, HEALTH = 9443, 8081
WEBHOOKS = ("job", "pod", "clusterqueue", "resourceflavor", "workload", "cohort")
"""Those of the kinds that are used here; others are of kinds that the cluster does not have."""


class Kueue:
    """The manager; `start` leaves it ready, with the API server calling its webhooks by their address."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        built = programs.kueue()
        self._place = plane.rooms.state / "kueue"
        self._place.mkdir()
        pair = plane.pki.server("kueue", "kueue", ["127.0.0.1"])
        # It insists on a certificate for its metrics at this path, whether it serves them or not.
        etc = self._place / "etc"
        for folder in (self._place, etc / "kueue/metrics/certs"):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(pair.certificate, folder / "tls.crt")
            shutil.copy(pair.key, folder / "tls.key")
        self._authority = base64.b64encode(Path(plane.authority).read_bytes()).decode()
        run = (
            f"mount --bind {etc} /etc && exec {built}/bin/kueue --kubeconfig={plane.kubeconfig} "
            f"--config={self._place}/config.yaml --feature-gates=VisibilityOnDemand=false"
        )
        self.part = Part(
            "kueue", plane.rooms, lambda: ["unshare", "-m", "sh", "-c", run], lambda: plane.answers(HEALTH, "/readyz")
        )
        command = [programs.helm(), "template", "kueue", built / "chart", "-n", "kueue-system", "--include-crds"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self._documents = [document for document in yaml.safe_load_all(text) if document]

    def start(self) -> None:
        """Its kinds, the manager, and its webhooks last: nothing can be made while one does not answer."""
        self.plane.make_namespace("kueue-system")
        kinds = [document for document in self._documents if document["kind"] == "CustomResourceDefinition"]
        for kind in kinds:
            if hook := kind["spec"].get("conversion", {}).get("webhook"):
                hook["clientConfig"] = self._client(hook["clientConfig"])
        self._apply(kinds)
        self.plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        (given,) = [document for document in self._documents if document["kind"] == "ConfigMap"]
        config = yaml.safe_load(given["data"]["controller_manager_config.yaml"])
        config["integrations"]["frameworks"] = ["batch/job", "pod"]
        config |= {
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": PORT, "certDir": str(self._place)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{HEALTH}"},
        }
        (self._place / "config.yaml").write_text(yaml.safe_dump(config))
        self.part.start()
        hooks = [document for document in self._documents if document["kind"].endswith("WebhookConfiguration")]
        for document in hooks:
            own = [hook for hook in document["webhooks"] if hook["name"][1:].partition(".")[0] in WEBHOOKS]
            document["webhooks"] = [hook | {"clientConfig": self._client(hook["clientConfig"])} for hook in own]
        self._apply(hooks)

    def _client(self, given: dict[str, Any]) -> dict[str, str]:
        return {"url": f"https://127.0.0.1:{PORT}{given['service']['path']}", "caBundle": self._authority}

    def _apply(self, documents: list[dict[str, Any]]) -> None:
        self.plane.kubectl("apply", "--server-side", "-f", "-", input_=yaml.safe_dump_all(documents))

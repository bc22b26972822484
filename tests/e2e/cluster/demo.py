"""KubeShare's Fig. 6 on the cluster: three SharePods whose containers share one GPU of the real node.

`python -m cluster.demo` (see `make demo-cluster`). The figure, its phases and its arithmetic are those of
`aliquot demo fig6`; here the tenants are created and deleted as SharePods, kube-scheduler places them, kubelet starts
them, and the arbiter is the node's. The exit status is 0 when every share is within 0.02, 1 when one is not, 2 where
there can be no cluster.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from aliquot.model.errors import AliquotError
from aliquot.model.quantities import format_milli
from aliquot_lab.bench import fig6
from aliquot_lab.bench.fig6 import Report, RequestedShare, Sample, Tenant
from aliquot_lab.bench.fig6_run import play_on
from aliquot_lab.bench.scene import Client
from aliquot_lab.cli.demo import tell, watching

from .api import ApiError
from .cache import Unavailable, say
from .control_plane import ControlPlane
from .images import PYTHON
from .kubelet_node import KubeletNode
from .ours import ROOT
from .parts import until
from .prepare import Parts, prepare
from .whole import Whole, whole

NAMESPACE = "fig6"
ASK_AGAIN_S = 0.5
# As `--fast`, with room in each phase for a container's start.
FAST = fig6.timeline((0, 16, 34, 54, 70), window_s=2)


class PodProcess:
    """A SharePod's program, as a scene's client sees a process."""

    def __init__(self, cluster: Whole, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._sharepod = f"/apis/aliquot.dev/v1alpha1/namespaces/{NAMESPACE}/sharepods/{name}"
        self._asked_s = 0.0

    def poll(self) -> int | None:
        """The exit status once the pod has ended or failed; the API server is asked now and then, not each time."""
        if time.monotonic() - self._asked_s < ASK_AGAIN_S:
            return None
        self._asked_s = time.monotonic()
        try:
            phase = self._cluster.plane.pod(NAMESPACE, self._name)["status"]["phase"]
        except ApiError:
            return None
        return {"Succeeded": 0, "Failed": 1}.get(phase)

    def terminate(self) -> None:
        """Delete the SharePod, as a person does; its pod goes with it."""
        self._cluster.plane.api.delete(self._sharepod)

    def kill(self) -> None:
        """Delete its pod without asking."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{self._name}"
        with contextlib.suppress(ApiError):  # it may just have gone
            self._cluster.plane.api.call("DELETE", path, {"gracePeriodSeconds": 0})

    def wait(self, timeout: float | None = None) -> int:
        """Until the arbiter has forgotten its tenant.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        try:
            until(lambda: self._name not in _tenants(self._cluster), f"the end of {self._name}", timeout or 60)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self._name, timeout or 60) from None
        return 0


class ClusterStage:
    """The node's only GPU, as a scene (`aliquot_lab.bench.scene`)."""

    def __init__(self, cluster: Whole) -> None:
        self._cluster = cluster
        self._folder = cluster.plane.rooms.state / "progress"
        self._folder.mkdir()
        self.clients: dict[Tenant, Client] = {}
        self.gpu = str(cluster.gpus.devices()[0]["model"])
        self.emulated = True

    def start(self, tenant: Tenant, ask: RequestedShare, mode: str, *options: str) -> Client:
        """Create a SharePod that runs a client."""
        body = _sharepod(tenant, ask, self._folder, [mode, "--progress", f"/progress/{tenant}", *options])
        self._cluster.plane.api.create(f"/apis/aliquot.dev/v1alpha1/namespaces/{NAMESPACE}/sharepods", body)
        client = Client(tenant, PodProcess(self._cluster, tenant), self._folder / tenant)
        self.clients[tenant] = client
        return client

    def end(self, tenant: Tenant) -> Client:
        """Delete its SharePod."""
        client = self.clients.pop(tenant)
        client.end()
        return client

    def sample(self) -> Sample:
        """By the arbiter's ledger and the clients' own counts."""
        status = self._cluster.gpus.status()
        charged = {_who(t.name): int(t.charged_ns) for gpu in status.gpus for t in gpu.tenants}
        totals = {tenant: client.totals for tenant, client in self.clients.items()}
        completed = {tenant: seen.kernel_ns for tenant, seen in totals.items() if seen is not None}
        return Sample(status.now_ns, charged, completed)

    def usage(self) -> dict[Tenant, float]:
        return {_who(t.name): float(t.usage) for gpu in self._cluster.gpus.status().gpus for t in gpu.tenants}


def _who(record: str) -> Tenant:
    return Tenant(record.split("/")[1])


def _tenants(cluster: Whole) -> set[Tenant]:
    return {_who(tenant.name) for gpu in cluster.gpus.status().gpus for tenant in gpu.tenants}


def _sharepod(tenant: Tenant, ask: RequestedShare, progress: Path, arguments: list[str]) -> dict[str, Any]:
    """A SharePod whose container runs `aliquot_lab.bench.client` from this source tree."""
    folders = {"src": str(ROOT / "src"), "site": sysconfig.get_path("purelib"), "progress": str(progress)}
    container = {
        "name": "main",
        "image": PYTHON,
        "command": ["python3", "-m", "aliquot_lab.bench.client", *arguments],
        "env": [{"name": "PYTHONPATH", "value": "/src:/site"}],
        "volumeMounts": [{"name": name, "mountPath": f"/{name}", "readOnly": name != "progress"} for name in folders],
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()],
    }
    request, limit = format_milli(ask.request_milli), format_milli(ask.limit_milli)
    gpu = {"request": request, "limit": limit, "memory": f"{ask.memory_mib}Mi"}
    return {
        "apiVersion": "aliquot.dev/v1alpha1",
        "kind": "SharePod",
        "metadata": {"name": tenant},
        "spec": {"gpu": gpu, "template": {"spec": spec}},
    }


def options() -> argparse.Namespace:
    """What the person asked for."""
    parser = argparse.ArgumentParser(prog="cluster.demo", description="KubeShare's Fig. 6 as SharePods in containers")
    parser.add_argument("--paper", action="store_true", help="the paper's 800 s instead of 70 s")
    parser.add_argument("-o", dest="output", choices=["text", "json"], default="text", help="what to print")
    parser.add_argument("--out", type=Path, default=Path("demo-out/cluster"), help="folder for pictures and JSON")
    return parser.parse_args()


def play(parts: Parts, wanted: argparse.Namespace) -> Report:
    """Starts a cluster, plays the figure on it, and ends the cluster."""
    timeline = fig6.PAPER if wanted.paper else FAST
    window = ("--window-ms", str(round(timeline.window_s * 1000)))
    plane = ControlPlane(parts)
    try:
        plane.start()
        node = KubeletNode(plane)
        node.start()
        with whole(node, "v100", arbiter_flags=window) as cluster:
            say(f"{node.name} has one V100; three SharePods come to it")
            plane.make_namespace(NAMESPACE)
            with watching(silent=wanted.output == "json") as watch:
                return play_on(ClusterStage(cluster), timeline, watch)
    finally:
        plane.close()
        say("everything is gone")


def main() -> int:
    """Plays the figure; the exit status."""
    wanted = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        report = play(prepare(), wanted)
    except Unavailable as error:
        print(f"no cluster: {error}", file=sys.stderr)
        return 2
    except AliquotError as error:
        print(f"aliquot: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    status = tell(report, wanted.out, wanted.output)
    (wanted.out / "fig6.json").write_text(json.dumps(report.as_json(), indent=2) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())

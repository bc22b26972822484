"""A whole Aliquot on a cluster whose agent, scheduler and arbiter are stopped and killed, and whose disks fill up.

What must hold is read from the API server, the scheduler's ledger, the arbiter, kubelet and the node's files.
"""

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.api import ApiError
from cluster.gpu_node import RUNTIME, STATE
from cluster.images import PYTHON
from cluster.parts import Part, until
from cluster.whole import Whole
from node_scene import volumes
from operating import SharePods, sharepod, vgpus
from plugins import POD_RESOURCES, held_devices
from scheduling import Pods, check_promises, ledger_of

from aliquot.arbiter.client import ArbiterError
from aliquot.kube.names import GPU_PERCENT
from aliquot.kube.plan import read_plan

REPLICAS = 3
NAMED = ("first", "second")
SETTLED_S = 120.0
DISKS = (STATE, RUNTIME)


def probe() -> dict[str, Any]:
    """A container that computes until it is ended."""
    mounts = [{"name": name, "mountPath": f"/{name}", "readOnly": True} for name in ("probe", "site")]
    return {
        "name": "main", "image": PYTHON, "imagePullPolicy": "Never", "command": ["python3", "/probe/probe.py"],
        "env": [{"name": "PYTHONPATH", "value": "/site"}], "volumeMounts": mounts,
    }  # fmt: skip


class Chaos:
    """A ReplicaSet's pods and two SharePods on one named vGPU, and what happens to them."""

    def __init__(self, cluster: Whole, namespace: str) -> None:
        self.cluster, self.plane, self.gpus, self.namespace = cluster, cluster.plane, cluster.gpus, namespace
        self.pods = Pods(cluster.plane, namespace)
        self.shares = SharePods(self.pods)
        self.parts: dict[str, Part] = {
            "agent": cluster.gpus.agent, "scheduler": cluster.scheduler.part, "arbiter": cluster.gpus.arbiter
        }  # fmt: skip
        self.spared: dict[str, str] = {}
        self.kills = dict.fromkeys(self.parts, 0)

    def create(self) -> None:
        """Everything that is to run."""
        labels = {"set": "workers"}
        limits = {"resources": {"limits": {GPU_PERCENT: "25"}}}
        spec = {
            "schedulerName": "aliquot-scheduler", "terminationGracePeriodSeconds": 0, "volumes": volumes(),
            "containers": [probe() | limits],
        }  # fmt: skip
        body = {
            "metadata": {"name": "workers"},
            "spec": {
                "replicas": REPLICAS, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }  # fmt: skip
        template = {"containers": [probe()], "volumes": volumes()}
        made = [sharepod(name, "0.4", memory="2Gi", gpuID="team", template=template) for name in NAMED]
        self.shares.create(*made)
        # First, for what another pod takes of their vGPU between them would keep one of them waiting.
        until(lambda: len(self.pods.bound()) == len(NAMED), "the SharePods on their vGPU", 60)
        self.plane.api.create(f"/apis/apps/v1/namespaces/{self.namespace}/replicasets", body)

    def remove(self) -> None:
        """Nothing is to run any more; returns when no trace of it is left."""
        self.plane.api.call("DELETE", f"/apis/apps/v1/namespaces/{self.namespace}/replicasets")
        self.plane.api.call("DELETE", self.shares.path)
        until(lambda: not self.pods.all(), "the end of the pods", 60)
        until(self.nothing_left, "no trace of the pods", 60)

    # -- faults ------------------------------------------------------------------------------------------------------

    def fault(self, chance: random.Random) -> str:
        """Do something at random and undo what can be undone; what was done, in words."""
        kind = chance.choices(("stop", "kill", "full"), (3, 4, 2))[0]
        name = chance.choice(sorted(self.parts))
        words = f"{kind} {name}"
        if kind == "stop":
            seconds = chance.choice((0.5, 2.0, 5.0))
            words += f" for {seconds} s"
            self.parts[name].pause()
            words += self.churn(chance, 0.3)
            time.sleep(seconds)
            self.parts[name].resume()
        elif kind == "kill":
            self.kill(name)
            words += self.churn(chance, 0.3)
        else:
            disk = chance.choice(DISKS)
            words = f"full {disk}"
            with self.full(disk):
                if chance.random() < 0.6:
                    self.kill(name)
                    words += f", kill {name}"
                    self.parts[name].launch()
                words += self.churn(chance, 0.3)
                time.sleep(chance.uniform(1, 4))
        return words

    def kill(self, name: str) -> None:
        """As a crash does; whoever started it starts it again."""
        self.alive(name)
        self.parts[name].kill()
        self.kills[name] += 1

    def alive(self, name: str) -> None:
        """None of them ends by itself."""
        assert self.parts[name].running, f"{name} ended by itself:\n{self.parts[name].tail()}"

    def churn(self, chance: random.Random, likely: float) -> str:
        """Perhaps a pod of the set goes and another comes."""
        pods = [pod for pod in self.pods.all() if "set" in pod["metadata"].get("labels", {})]
        if chance.random() > likely or not pods:
            return ""
        name = chance.choice(sorted(pod["metadata"]["name"] for pod in pods))
        with contextlib.suppress(ApiError):
            self.pods.delete(name)
        self.spared.pop(name, None)
        return f", delete {name}"

    @contextlib.contextmanager
    def full(self, folder: str) -> Iterator[None]:
        """No room below a folder."""
        self.plane.rooms.run(["/bin/sh", "-c", f"cat /dev/zero > {folder}/ballast 2> /dev/null || true"])
        try:
            yield
        finally:
            self.plane.rooms.run(["/bin/rm", f"{folder}/ballast"])

    # -- what must hold ----------------------------------------------------------------------------------------------

    def settle(self) -> float:
        """Start what was killed and wait until everything holds; the seconds that it took."""
        began_s = time.monotonic()
        for part in self.parts.values():
            part.launch()
        before = self.charged()
        while True:
            for name in self.parts:
                self.alive(name)
            try:
                self.check(before)
            except (AssertionError, ArbiterError, ApiError, OSError, KeyError) as error:
                assert time.monotonic() < began_s + SETTLED_S, f"{type(error).__name__}: {error}"
                time.sleep(0.2)
            else:
                return time.monotonic() - began_s

    def check(self, before: dict[str, int]) -> None:
        """Every pod computes on its share, all ledgers agree, and who was not meant is where it was."""
        everything = self.pods.all()
        pods = [pod for pod in everything if pod["status"].get("phase") not in ("Failed", "Succeeded")]
        assert REPLICAS + len(NAMED) == len(pods), [pod["status"] for pod in everything]
        planned = {}
        for pod in pods:
            assert pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"], pod["status"]
            plan = read_plan(pod["metadata"]["annotations"])
            assert plan is not None
            name = f"{self.namespace}/{pod['metadata']['name']}/main"
            planned[name] = [(s.gpu, s.request_milli, s.memory_mib) for s in plan.containers["main"].slices]
        assert check_promises(self.plane, everything) == ledger_of(self.cluster.scheduler)
        kept: dict[str, list[Any]] = {}
        for gpu in self.gpus.status().gpus:
            for tenant in gpu.tenants:
                kept.setdefault(tenant.name, []).append((gpu.uuid, tenant.request_milli, tenant.memory_limit_mib))
        assert planned == kept
        assert all(count > before.get(name, 0) for name, count in self.charged().items()), "not all compute"
        self.check_node(pods)
        self.check_spared(pods)

    def check_node(self, pods: list[dict[str, Any]]) -> None:
        """Kubelet has ids for these pods and the node has files for them, and for no others; it offers what it has."""
        names = {pod["metadata"]["name"] for pod in pods}
        held = held_devices(self.gpus.node.path(POD_RESOURCES))
        assert names == {pod for (namespace, pod, _, _) in held if namespace == self.namespace}
        specs = list(self.gpus.node.path("/run/cdi").glob("aliquot.dev-*.json"))
        folders = list(self.gpus.node.path(RUNTIME).glob("tenants/*"))
        assert len(pods) == len(specs) == len(folders), (specs, folders)
        assert self.gpus.fit()
        named = {pod["metadata"]["annotations"]["aliquot.dev/plan"] for pod in pods if self.of_vgpu(pod)}
        assert 1 == len({read_plan({"aliquot.dev/plan": text}).containers["main"].slices[0].gpu for text in named})  # type: ignore[union-attr]
        assert "team" in vgpus(self.plane)

    def of_vgpu(self, pod: dict[str, Any]) -> bool:
        """Whether it is a SharePod's."""
        return "set" not in pod["metadata"].get("labels", {})

    def check_spared(self, pods: list[dict[str, Any]]) -> None:
        """A pod that no fault was meant for is the one that it was, and its program was never started again."""
        now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
        assert self.spared.items() <= now.items(), "a pod went that was not deleted"
        for pod in pods:
            assert 0 == pod["status"]["containerStatuses"][0]["restartCount"], pod["status"]
        self.spared = now

    def charged(self) -> dict[str, int]:
        """Nanoseconds of GPU time that each tenant was ever charged; none while the arbiter is away."""
        try:
            return {tenant.name: tenant.charged_ns for gpu in self.gpus.status().gpus for tenant in gpu.tenants}
        except ArbiterError:
            return {}

    def nothing_left(self) -> bool:
        """Whether no trace of any pod is there."""
        tenants = [tenant for gpu in self.gpus.status().gpus for tenant in gpu.tenants]
        files = [*self.gpus.node.path("/run/cdi").glob("aliquot.dev-*.json"), *self.runtime.glob("tenants/*")]
        return not tenants and not files and not ledger_of(self.cluster.scheduler)

    @property
    def runtime(self) -> Path:
        """The arbiter's and the tenants' folder."""
        return self.gpus.node.path(RUNTIME)

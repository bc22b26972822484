"""Every manifest in examples/ is applied as a person does it, and its programs see the part of a GPU they asked for.

A container's request, limit and memory are compared in four places: what its author wrote (`WANTED`), the scheduler's
plan, the arbiter's record, and what the CUDA program in the container sees.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.emulated import with_packages
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.ours import program, surroundings
from cluster.parts import until
from cluster.whole import Whole, whole
from operating import sharepod
from scheduling import Pods, check_promises, ledger_of

from aliquot.arbiter.client import ArbiterError
from aliquot.driver.emulation import PROFILES
from aliquot.kube.plan import read_plan

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TOLD_S = 150
NOTE_S = 0.1
PART = object()
"""Memory left out: the same part of the GPU's as of its compute."""

# By container: request and limit in milli-GPU, MiB, for each of its GPUs.
Parts = list[tuple[int, int, Any]]
A_THIRD: Parts = [(300, 1000, 2048)]
WANTED: dict[str, list[tuple[str, Parts]]] = {
    # First those that share a GPU by its name or label, for it may be full when others have come before.
    "cluster/named.yaml": 2 * [("main", [(400, 1000, 2048)])],
    "cluster/affinity.yaml": 2 * [("main", A_THIRD)],
    "hello.yaml": [("main", [(200, 1000, PART)])],
    "neighbours.yaml": [("main", [(300, 600, 4096)]), ("main", [(300, 1000, 0.25)]), ("main", A_THIRD)],
    "cluster/half.yaml": [("main", [(500, 1000, 4096)])],
    "cluster/deployment.yaml": 2 * [("main", [(200, 500, 2048)])],
    "cluster/job.yaml": [("main", [(125, 1000, PART)])],
    "cluster/sharepod.yaml": [("main", [(300, 600, 4096)])],
    "cluster/large.yaml": [("main", [(1000, 1000, 1.0), (1000, 1000, 1.0), (500, 1000, 6144)])],
    "cluster/model.yaml": [("main", [(300, 1000, PART)])],
    "cluster/apart.yaml": 2 * [("main", A_THIRD)],
    "cluster/exclusion.yaml": [("main", [(200, 1000, PART)]), ("main", [(300, 1000, PART)])],
    "dialects/aliquot.yaml": [("train", [(400, 1000, 6144)]), ("serve", [(200, 300, 2048)])],
    "dialects/aliyun.yaml": 3 * [("binpack-1", [(10, 1000, 3072)])],
    "dialects/hami.yaml": [
        ("ubuntu-container", 2 * [(300, 300, 3000)]),
        ("ubuntu-container", [(600, 600, 0.4)]),
    ],
    "dialects/kubeshare1.yaml": [("cuda", [(500, 1000, 1024)])],
    "dialects/kubeshare2.yaml": 5 * [("pytorch", [(500, 1000, PART)])],
    "dialects/nvidia.yaml": [("cuda", 2 * [(1000, 1000, 1.0)])],
    "dialects/tencent.yaml": [("nvidia", [(300, 500, 7680)])],
}
# The use of whole GPUs is what NVML says, as the chart has it.
MEASURED = ("--libnvml", "/run/aliquot/emulated/libnvidia-ml.so.1")
IDLE = ("hello.yaml",)
JOBS = ("cluster/job.yaml", "dialects/kubeshare2.yaml")
TOGETHER = ("cluster/affinity.yaml", "cluster/named.yaml")
APART = ("cluster/apart.yaml", "dialects/aliquot.yaml")
ALONE = ("cluster/exclusion.yaml", "dialects/kubeshare1.yaml")
NUMBA = """
import numpy
from numba import cuda
@cuda.jit
def kernel(a): a[cuda.grid(1)] = 1
kernel[1, 32](cuda.to_device(numpy.zeros(32)))
cuda.synchronize()
device = cuda.get_current_device()
print(str(device.uuid), cuda.current_context().get_memory_info().total >> 20)
"""


@dataclass
class Container:
    """One container of an example: its GPUs by the plan, and what its program saw of them."""

    name: str
    tenant: str
    planned: list[tuple[str, int, int, int]]
    seen: list[tuple[str, int]] = field(default_factory=list)

    @property
    def gpus(self) -> list[str]:
        """UUIDs in the plan's order."""
        return [piece[0] for piece in self.planned]


class Applied:
    """Examples on the cluster, each file in a namespace of its own."""

    def __init__(self, cluster: Whole, files: list[str]) -> None:
        self.cluster = cluster
        self.plane = cluster.plane
        self.files = {file: f"example-{file.replace('/', '-').removesuffix('.yaml')}" for file in files}
        self.records: dict[str, dict[str, tuple[int, int, int]]] = {}
        self.charged_ns: dict[str, int] = {}

    def apply(self) -> None:
        """`kubectl apply -f` of each; where the kind is another project's, of what `aliquot convert` makes of it."""
        for file, namespace in self.files.items():
            self.plane.make_namespace(namespace)
            text = (EXAMPLES / file).read_text()
            if "kubeshare.nthu" in text:
                command = program("convert", "-f", str(EXAMPLES / file))
                text = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings()).stdout
            self.plane.kubectl("apply", "-n", namespace, "-f", "-", input_=text)
            until(lambda: self._bound(file, namespace), f"{file} to be bound", 60)  # noqa: B023

    def _bound(self, file: str, namespace: str) -> bool:
        """Whether all pods of a file have a node: what belongs together shall not find others in between."""
        pods = Pods(self.plane, namespace).all()
        count = sum(len(pod["spec"]["containers"]) for pod in pods)
        return count >= len(WANTED[file]) and all(pod["spec"].get("nodeName") for pod in pods)

    def pods(self) -> list[dict[str, Any]]:
        """The pods of every file."""
        return [pod for namespace in self.files.values() for pod in Pods(self.plane, namespace).all()]

    def wait_told(self) -> dict[str, list[Container]]:
        """Every container with what its program saw, by file."""
        found: dict[tuple[str, str, str], Container] = {}
        deadline = time.monotonic() + TOLD_S
        while True:
            missing = []
            for file, namespace in self.files.items():
                missing += self._look(file, namespace, found)
            if not missing:
                break
            assert time.monotonic() < deadline, f"not told: {missing}"
            time.sleep(0.5)
        return {file: [c for key, c in found.items() if key[0] == file] for file in self.files}

    def _look(self, file: str, namespace: str, found: dict[tuple[str, str, str], Container]) -> list[str]:
        """Fills `found` with what is new; what still is not there."""
        pods, missing = Pods(self.plane, namespace).all(), []
        count = 0
        for pod in pods:
            for container in pod["spec"]["containers"]:
                count += 1
                key = (file, pod["metadata"]["name"], container["name"])
                if key in found:
                    continue
                made = self._container(namespace, pod, container)
                if isinstance(made, Container):
                    found[key] = made
                else:
                    missing.append(f"{namespace}/{key[1]}/{key[2]}: {made}")
        if count < len(WANTED[file]):
            missing.append(f"{namespace}: {count} of {len(WANTED[file])} containers")
        return missing

    def _container(self, namespace: str, pod: dict[str, Any], container: dict[str, Any]) -> Container | str:
        """The container, once its program has said what it sees; before that, what it waits for."""
        name, plan = pod["metadata"]["name"], read_plan(pod["metadata"].get("annotations", {}))
        if plan is None:
            return f"no plan: {[c.get('message') for c in pod['status'].get('conditions', ())]}"
        pieces = plan.containers[container["name"]].slices
        planned = [(str(s.gpu), s.request_milli, s.limit_milli, s.memory_mib) for s in pieces]
        made = Container(container["name"], f"{namespace}/{name}/{container['name']}", planned)
        states = [s["state"] for s in pod["status"].get("containerStatuses", ()) if s["name"] == container["name"]]
        if not states or "waiting" in states[0]:
            return f"{pod['status']['phase']} {states}"
        said = self._said(namespace, name, container)
        if not said:
            return "it says nothing"
        if isinstance(said, str):
            assert "hello from GPU" == said.strip().rstrip("0123456789").strip()
            made.seen = [(planned[0][0], planned[0][3])]
            return made
        assert made.tenant == said["tenant"]
        made.seen = [(gpu["uuid"], gpu["total_mib"]) for gpu in said["gpus"]]
        assert 0 < said["largest_mib"] <= made.seen[0][1]
        return made

    def _said(self, namespace: str, pod: str, container: dict[str, Any]) -> Any:
        """What the container printed, or, if it prints for people, what one that enters it does. JSON comes parsed."""
        name = container["name"]
        if "examples/train.py" in container.get("command", ()):
            where = ("-n", namespace, pod, "-c", name)
            return json.loads(self.plane.kubectl("exec", *where, "--", "python3", "/examples/train.py", "--json", "0"))
        return self.plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}/log?container={name}")

    def computed(self, tenants: list[str]) -> bool:
        """Whether all of them have used their GPU."""
        return all(self.charged_ns.get(name) for name in tenants)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keep what the arbiter records meanwhile, often enough for those that end soon."""
        ended = threading.Event()

        def note() -> None:
            while not ended.wait(NOTE_S):
                with contextlib.suppress(ArbiterError):  # it is being restarted
                    self._note_records()

        thread = threading.Thread(target=note)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def reservations(self) -> dict[str, dict[str, tuple[int, int, int]]]:
        """Request, limit and memory that the arbiter has now, by tenant and GPU."""
        found: dict[str, dict[str, tuple[int, int, int]]] = {}
        for gpu in self.cluster.gpus.status().gpus:
            for tenant in gpu.tenants:
                what = (tenant.request_milli, tenant.limit_milli, tenant.memory_limit_mib)
                found.setdefault(tenant.name, {})[gpu.uuid] = what
        return found

    def _note_records(self) -> None:
        for name, parts in self.reservations().items():
            self.records.setdefault(name, {}).update(parts)
        for gpu in self.cluster.gpus.status().gpus:
            for tenant in gpu.tenants:
                self.charged_ns[tenant.name] = self.charged_ns.get(tenant.name, 0) + tenant.charged_ns

    def remove(self) -> None:
        for file, namespace in self.files.items():
            text = (EXAMPLES / file).read_text()
            if "kubeshare.nthu" not in text:
                self.plane.kubectl("delete", "-n", namespace, "--wait=false", "-f", "-", input_=text, check=False)
            self.plane.kubectl("delete", "sharepods", "--all", "--wait=false", "-n", namespace)
        for namespace in self.files.values():
            self.plane.remove_namespace(namespace)


@contextmanager
def applied(cluster: Whole, *folders: str) -> Iterator[Applied]:
    """The examples of some folders, from their creation to their end."""
    files = [file for file in WANTED if file.rpartition("/")[0] in folders]
    made = Applied(cluster, files)
    try:
        with made.noting():
            made.apply()
            yield made
    finally:
        made.remove()


def check(made: Applied, told: dict[str, list[Container]], total_mib: int) -> None:
    """What was written, planned, recorded and seen are the same; labels put together and apart what they should."""
    for file, containers in told.items():
        planned = sorted((c.name, [piece[1:] for piece in c.planned]) for c in containers)
        assert sorted((name, _in_mib(parts, total_mib)) for name, parts in WANTED[file]) == planned, file
        for c in containers:
            assert [(uuid, mib) for uuid, _, _, mib in c.planned] == c.seen, c.tenant
            assert {uuid: tuple(rest) for uuid, *rest in c.planned} == made.records[c.tenant], c.tenant
    everybody = [(file, uuid) for file, containers in told.items() for c in containers for uuid in c.gpus]
    for file in TOGETHER:
        assert 1 == len({uuid for of, uuid in everybody if of == file} or {""}), file
    for file in APART:
        here = [uuid for of, uuid in everybody if of == file]
        assert len(here) == len(set(here)), file
    for file in ALONE:
        mine = {uuid for of, uuid in everybody if of == file}
        assert {file} >= {of for of, uuid in everybody if uuid in mine}, file
    busy = [c.tenant for file, containers in told.items() if file not in IDLE for c in containers]
    until(lambda: made.computed(busy), "every program to use its GPU", 60)


def _in_mib(parts: Parts, total_mib: int) -> list[tuple[int, int, int]]:
    found = []
    for request, limit, memory in parts:
        share = request / 1000 if memory is PART else memory
        found.append((request, limit, int(share * total_mib) if isinstance(share, float) else share))
    return found


def test_every_manifest_is_tried():
    """No manifest in examples/ is left out here, but those of launchers, and what tests of their own try."""
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.yaml")}

    assert set(WANTED) == {
        file for file in files if not file.startswith(("dra/", "gangs/", "kubeflow/", "kueue/", "launchers/"))
    }


@pytest.mark.timeout(1200)
def test_the_cluster_examples_get_what_they_ask_for(kubelet_node: KubeletNode):
    """Pods, Deployment, StatefulSet, Job and SharePods; 2.5 GPUs, a model, labels, a named GPU; and numba-cuda."""
    with whole(kubelet_node, "a100x16", arbiter_flags=MEASURED) as cluster:
        with applied(cluster, "", "cluster") as made:
            runs_numba(cluster, "default")
            told = made.wait_told()
            check(made, told, PROFILES["a100"].memory_mib)
            named = cluster.plane.api.get("/apis/aliquot.dev/v1alpha1/vgpus/team-gpu")
            assert {named["status"]["uuid"]} == {c.gpus[0] for c in told["cluster/named.yaml"]}
            ended(made)
            numba_saw(cluster, "default")
            check_promises(cluster.plane, made.pods())
        until(lambda: not [t for gpu in cluster.gpus.status().gpus for t in gpu.tenants], "no tenant left")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_manifests_of_other_projects_get_what_they_ask_for(kubelet_node: KubeletNode):
    """gpu-manager's, gpushare's, HAMi's, KubeShare's and the stock plugin's words, and ours, as they stand; also after
    every part of the node and the scheduler was killed and started again."""
    with whole(kubelet_node, "v100x16", arbiter_flags=MEASURED) as cluster:
        with applied(cluster, "dialects") as made:
            told = made.wait_told()
            check(made, told, PROFILES["v100"].memory_mib)
            ended(made)
            restarted(cluster, made, told)
        until(lambda: not [t for gpu in cluster.gpus.status().gpus for t in gpu.tenants], "no tenant left")


def restarted(cluster: Whole, made: Applied, told: dict[str, list[Container]]) -> None:
    """After a restart of everything, plans, ledger and arbiter say of what runs the same as before."""
    pods = made.pods()
    runs = {(p["metadata"]["namespace"], p["metadata"]["name"]) for p in pods if p["status"]["phase"] == "Running"}
    every = [c for containers in told.values() for c in containers if tuple(c.tenant.split("/")[:2]) in runs]
    wanted = {c.tenant: {uuid: tuple(rest) for uuid, *rest in c.planned} for c in every}
    until(lambda: made.reservations() == wanted, "the end of those that ended")
    parts = (cluster.scheduler.part, cluster.gpus.agent, cluster.gpus.arbiter, cluster.plane["kubelet"])

    for part in parts:
        part.kill()
    for part in reversed(parts):
        part.start()

    assert wanted
    until(lambda: made.reservations() == wanted, "the same ledger as before", 60)
    pods = made.pods()
    assert check_promises(cluster.plane, pods) == ledger_of(cluster.scheduler)


def ended(made: Applied) -> None:
    """The Jobs among the examples come to their end."""
    for file in JOBS:
        if namespace := made.files.get(file):
            path = f"/apis/batch/v1/namespaces/{namespace}/jobs"

            def complete(path: str = path) -> bool:
                conditions = [
                    c for job in made.plane.api.get(path)["items"] for c in job["status"].get("conditions", ())
                ]
                return any(c["type"] == "Complete" for c in conditions)

            until(complete, f"the end of {file}", 480)


def runs_numba(cluster: Whole, namespace: str) -> None:
    """A SharePod whose program compiles a kernel with numba-cuda."""
    spec = with_packages({"name": "main", "image": PYTHON, "command": ["python3", "-W", "ignore", "-c", NUMBA]})
    template = {"containers": [spec["container"]], "volumes": spec["volumes"], "restartPolicy": "Never"}
    body = sharepod("numba", "0.2", memory="2Gi", template=template)
    cluster.plane.kubectl("apply", "-n", namespace, "-f", "-", input_=yaml.safe_dump(body))


def numba_saw(cluster: Whole, namespace: str) -> None:
    """It ran, on the GPU of its plan, with its memory; and it is gone."""
    plane = cluster.plane
    until(lambda: plane.pod(namespace, "numba")["status"]["phase"] in ("Succeeded", "Failed"), "numba's end", 480)
    said = plane.kubectl("logs", "-n", namespace, "numba")
    plan = read_plan(plane.pod(namespace, "numba")["metadata"]["annotations"])
    assert plan is not None
    (piece,) = plan.containers["main"].slices
    assert f"{piece.gpu} 2048" == said.splitlines()[-1]
    plane.kubectl("delete", "sharepod", "numba", "-n", namespace)

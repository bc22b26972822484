"""What the node's half costs: measured on the test cluster's real kubelet, containerd and runc, GPUs emulated.

    PYTHONPATH=src:tests/e2e .venv/bin/python bench/node.py [startup[=COUNT,..]] [anew[=COUNT,..]] [taken[=COUNT,..]]
        [claims[=COUNT,..]] [rest[=SECONDS]]

startup  so many pods created at once, seconds until all run: without a GPU, with a share of one, and as SharePods whose
         vGPUs are there, in turn (KubeShare, Fig. 10: at most 15 % more than pods where no vGPU has to be made).
anew     the same where the vGPUs go with the last SharePod, so that those of each round are made anew.
taken    the same beside a stock plugin that has the GPUs (coexist): each round takes its GPUs from it by holder pods.
claims   the same three ways to a share of one: by extended resources, by a claim that kube-scheduler allocates, and by
         one that Aliquot places, beside pods without a GPU.
rest     8 GPUs with no tenant and with 64 that hold a context and wait: memory of agent and arbiter, and the CPU time
         that each takes in a minute; with the tenants also while a dashboard and a Prometheus read the agent's pages.

Figures are JSON, one line for each measurement (each number of pods); all of it takes a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cluster.control_plane import ControlPlane
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.ours import HOLDERS, ROOT
from cluster.parts import Part, until
from cluster.prepare import prepare
from cluster.programs import helm
from cluster.prometheus import fetch
from cluster.whole import Whole, whole
from costs import cpu_s, memory_mib
from plugins import FOLDER, stock_plugin

from aliquot.kube.names import GPU_MEMORY, GPU_PERCENT
from aliquot.node.settings import NodeSettings
from aliquot.scheduler.agents import AGENT_PORT, Pace

SPACE = "bench"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
SHAREPODS = f"/apis/aliquot.dev/v1alpha1/namespaces/{SPACE}/sharepods"
HOLDER_PODS = f"/api/v1/namespaces/{HOLDERS}/pods?labelSelector=aliquot.dev%2Fvgpu"
TEMPLATES = f"/apis/resource.k8s.io/v1/namespaces/{SPACE}/resourceclaimtemplates"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
VGPUS = "/apis/aliquot.dev/v1alpha1/vgpus"
GPUS = "v100x8"
ROUNDS = 3
TENANTS = 64
CLIENTS = 8
SCRAPE_S = 15.0
WAITS = ["python3", "-S", "-E", "/probe/glance.py"]
# The test cluster looks more often than a cluster does.
DEFAULTS = NodeSettings()
PERIODS = ("health_period_s", "allocation_check_period_s")
AS_INSTALLED = [word for name in PERIODS for word in (f"--{name.replace('_', '-')}", str(getattr(DEFAULTS, name)))]


@contextmanager
def cluster(*scheduler_flags: str, coexist: bool = False, claims: bool = False) -> Iterator[Whole]:
    """All of Aliquot, a real node with eight GPUs (`coexist`: a stock plugin has them), and an empty namespace.

    With `claims` it serves ResourceClaims, and the namespace has a template for each of their two classes.
    """
    plane = ControlPlane(prepare())
    beside = (*(("--gpus", "coexist") if coexist else ()), *(("--claims",) if claims else ()))
    try:
        plane.start()
        node = KubeletNode(plane)
        node.start()
        if claims:
            chart = ("--kube-version", "1.36.0", "--set", "claims.enabled=true", "--show-only", "templates/claims.yaml")
            command = [helm(), "template", "aliquot", str(ROOT / "deploy/chart"), *chart]
            classes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            plane.kubectl("apply", "-f", "-", input_=classes)
        flags = {"scheduler_flags": (*beside, *scheduler_flags), "agent_flags": (*beside, *AS_INSTALLED)}
        with whole(node, GPUS, **flags) as made, ExitStack() as ends:
            if coexist:
                stock = stock_plugin(node.path(FOLDER), made.gpus.gpus, Path(made.gpus.emulated))
                stock.start()
                ends.callback(stock.stop)
                until(lambda: node_allocatable(plane).get("nvidia.com/gpu") == "8", "the stock plugin's GPUs", 60)
            plane.make_namespace(SPACE)
            for kind in ("share", "placed") if claims else ():
                plane.api.create(TEMPLATES, template(kind))
            if claims:
                until(lambda: plane.api.get(SLICES)["items"], "published GPUs", 60)
            yield made
    finally:
        plane.close()


def node_allocatable(plane: ControlPlane) -> dict[str, str]:
    """What the real node offers."""
    (node,) = plane.api.get("/api/v1/nodes")["items"]
    return dict(node["status"]["allocatable"])


# -- start-up ----------------------------------------------------------------------------------------------------------


def startup(
    counts: tuple[int, ...], pool: str, *, coexist: bool = False, claims: bool = False
) -> Iterator[dict[str, Any]]:
    """Pods without a GPU, with a share, and SharePods, so many at once; `pool` says how long vGPUs are kept.

    With `coexist` no pod with a share: only SharePods take GPUs from the stock plugin. With `claims` pods with claims
    instead of SharePods.
    """
    ways: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
        "plain": (PODS, plain),
        "share": (PODS, sharing),
        "sharepod": (SHAREPODS, sharepod),
    }
    if coexist:
        del ways["share"]
    if claims:
        del ways["sharepod"]
        ways |= {kind: (PODS, partial(claiming, kind)) for kind in ("claim", "placed")}
    flags = ("--claims",) if claims else ()
    with cluster("--pool", pool, *flags, coexist=coexist, claims=claims) as made:
        for path, body in ways.values():  # what is read from disk for the first time is no part of it
            creation(made.plane, path, [body(0)])
        if "sharepod" in ways and not coexist:
            creation(
                made.plane, SHAREPODS, [sharepod(number, "1") for number in range(len(made.gpus.gpus))]
            )  # all named
        for count in counts:
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(ROUNDS):
                for way, (path, body) in ways.items():
                    seconds[way].append(creation(made.plane, path, [body(number) for number in range(count)]))
            middle = {way: statistics.median(taken) for way, taken in seconds.items()}
            yield (
                {"count": count, "vgpus": len(made.plane.api.get(VGPUS)["items"])}
                | {f"{way}_s": [round(s, 2) for s in taken] for way, taken in seconds.items()}
                | {f"{way}_ratio": round(middle[way] / middle["plain"], 2) for way in ways if way != "plain"}
            )


def creation(plane: ControlPlane, path: str, bodies: list[dict[str, Any]]) -> float:
    """Seconds from the first request until all containers run; then all are taken away."""
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in pool.map(lambda body: plane.api.call("POST", path, body), bodies):
            pass
    until(lambda: all_run(plane, len(bodies)), "all run", 300)
    taken_s = time.perf_counter() - began
    plane.api.call("DELETE", path)
    until(lambda: not plane.api.get(PODS)["items"], "the end of the pods", 300)
    until(lambda: not plane.api.get(SHAREPODS)["items"], "the end of the SharePods", 60)
    if plane.api.get(HOLDER_PODS)["items"]:  # the GPUs of the next round are taken anew
        until(lambda: not plane.api.get(VGPUS)["items"], "the end of the vGPUs", 60)
    return taken_s


def all_run(plane: ControlPlane, count: int) -> bool:
    """Whether so many pods are there and the containers of all run; a question that costs the API server little."""
    first = plane.api.get(f"{PODS}?limit=1")
    if len(first["items"]) + first["metadata"].get("remainingItemCount", 0) != count:
        return False
    return not plane.api.get(f"{PODS}?limit=1&fieldSelector=status.phase%21%3DRunning")["items"]


def spec(limits: dict[str, str], command: list[str] | None = None) -> dict[str, Any]:
    """A pod's spec: one container that waits."""
    container: dict[str, Any] = {
        "name": "main", "image": PYTHON, "imagePullPolicy": "Never", "command": command or ["sleep", "1000"],
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "probe", "mountPath": "/probe", "readOnly": True}],
    }  # fmt: skip
    probe = {"name": "probe", "hostPath": {"path": str(ROOT / "tests/e2e/node")}}
    return {"containers": [container], "volumes": [probe], "terminationGracePeriodSeconds": 1}


def plain(number: int) -> dict[str, Any]:
    """A pod that knows nothing of GPUs."""
    return {"metadata": {"name": f"p{number}"}, "spec": spec({})}


def sharing(number: int, *command: str) -> dict[str, Any]:
    """A pod with a tenth of a GPU."""
    return {"metadata": {"name": f"p{number}"}, "spec": spec({GPU_PERCENT: "10", GPU_MEMORY: "1Gi"}, list(command))}


def template(kind: str) -> dict[str, Any]:
    """The ResourceClaimTemplate of a tenth of a GPU, of that class."""
    capacity = {"requests": {"compute": "10", "memory": "1Gi"}}
    request = {"name": "gpu", "exactly": {"deviceClassName": f"gpu-{kind}.aliquot.dev", "capacity": capacity}}
    return {"metadata": {"name": kind}, "spec": {"spec": {"devices": {"requests": [request]}}}}


def claiming(kind: str, number: int) -> dict[str, Any]:
    """A pod with a tenth of a GPU by a claim: of kube-scheduler's, or `placed` by Aliquot."""
    made, name = spec({}), kind if kind == "placed" else "share"
    made["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
    made["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return {"metadata": {"name": f"p{number}"}, "spec": made}


def sharepod(number: int, request: str = "0.1") -> dict[str, Any]:
    """A SharePod with a part of a GPU."""
    gpu = {"request": request, "memory": "1Gi"}
    return {
        "apiVersion": "aliquot.dev/v1alpha1",
        "kind": "SharePod",
        "metadata": {"name": f"p{number}"},
        "spec": {"gpu": gpu, "template": {"spec": spec({})}},
    }


# -- at rest -----------------------------------------------------------------------------------------------------------


def rest(over_s: int = 60) -> Iterator[dict[str, Any]]:
    """Memory and CPU time of agent and arbiter, without tenants and with many that wait."""
    with cluster() as made:
        parts = {"agent": made.gpus.agent, "arbiter": made.gpus.arbiter}
        before = cost(parts, over_s)
        began = time.perf_counter()
        for number in range(TENANTS):
            made.plane.api.call("POST", PODS, sharing(number, *WAITS))
        until(lambda: tenants(made) == TENANTS, "all are tenants", 300)
        registered_s = time.perf_counter() - began
        time.sleep(10)
        with_tenants = cost(parts, over_s)
        with watching(made):
            watched = cost(parts, over_s)
        yield {
            "gpus": len(made.gpus.gpus),
            "no_tenant": before,
            "tenants": TENANTS,
            "all_registered_s": round(registered_s, 1),
            "with_tenants": with_tenants,
            "with_tenants_and_a_dashboard": watched,
        }


@contextmanager
def watching(made: Whole) -> Iterator[None]:
    """The agent's pages are read as a dashboard with an open page does, and scraped as by a Prometheus."""
    stop = threading.Event()
    rooms = made.plane.rooms

    def read(page: str, every_s: float) -> None:
        while not stop.wait(every_s):
            status, body = fetch(rooms, AGENT_PORT, page)
            assert status == 200 and body, page

    with ThreadPoolExecutor(2) as readers:
        waits = [readers.submit(read, "/node.json", Pace().seen_s), readers.submit(read, "/metrics", SCRAPE_S)]
        try:
            yield
        finally:
            stop.set()
            for each in waits:
                each.result()


def tenants(made: Whole) -> int:
    """Tenants with a process that has a context or is about to."""
    return sum(tenant.processes > 0 for gpu in made.gpus.status().gpus for tenant in gpu.tenants)


def cost(parts: dict[str, Part], over_s: int) -> dict[str, Any]:
    """MiB and milliseconds of CPU per second of each."""
    before = {name: cpu_s(part.pid) for name, part in parts.items()}
    time.sleep(over_s)
    return {
        name: {
            "memory_mib": round(memory_mib(part.pid), 1),
            "cpu_ms_per_s": round(1000 * (cpu_s(part.pid) - before[name]) / over_s, 2),
        }
        for name, part in parts.items()
    }


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ["startup", "rest"]:
        name, _, size = wanted.partition("=")
        sizes = tuple(map(int, size.split(","))) if size else (1, 10, 20, 30, 40, 50)
        if name == "rest":
            figures = rest(*sizes[:1]) if size else rest()
        else:
            pool = "hybrid:3600" if name == "startup" else "on-demand"
            figures = startup(sizes, pool, coexist=name == "taken", claims=name == "claims")
        for figure in figures:
            sys.stdout.write(json.dumps({name: figure, "load": round(os.getloadavg()[0], 1)}) + "\n")
            sys.stdout.flush()

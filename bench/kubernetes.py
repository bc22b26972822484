"""What Aliquot's scheduler costs a cluster: measured on the test cluster, with the real parts of Kubernetes.

    PYTHONPATH=src:tests/e2e .venv/bin/python bench/kubernetes.py [start[=NODES/PODS]] [throughput[=...]] [sharepods]

start       5,000 nodes of 8 GPUs and 20,000 pods that hold shares of them: seconds from the start of `aliquot
            scheduler` to its /readyz, and its memory then and after 200 filters.
throughput  1,000 nodes that kwok plays: pods per second through kube-scheduler, with the extender and without it.
sharepods   KubeShare, Fig. 10 and 11: pods and SharePods created at once, time until all run; time of the extender's
            verbs for one more SharePod beside so many others.

Figures are JSON, one line for each measurement.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from cluster.control_plane import ControlPlane
from cluster.fake import fake_node, gpu_uuid
from cluster.ours import OurScheduler, install_crds
from cluster.parts import until
from cluster.prepare import prepare
from costs import cpu_s, memory_mib
from operating import ALIQUOT, sharepod
from scheduling import PROFILE, gpu_pod, percent

from aliquot.kube.names import PLAN
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.scheduler.settings import kube_scheduler_config
from aliquot_lab.bench.filter import Asker, realistic_pod

SPACE = "bench"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
PROFILES = ("v100", "a100", "t4")
SIZES = (5, 10, 20, 25, 30, 50)
CLIENTS = 8
STARTS = 3


@contextmanager
def cluster() -> Iterator[ControlPlane]:
    """A control plane and an empty namespace."""
    plane = ControlPlane(prepare())
    plane.start()
    try:
        plane.make_namespace(SPACE)
        yield plane
    finally:
        plane.close()


def create(plane: ControlPlane, path: str, bodies: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> float:
    """Create objects, several at a time; seconds."""
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in pool.map(lambda body: plane.api.call("POST", path, body), bodies):
            pass
    return time.perf_counter() - began


# -- start to ready, memory ------------------------------------------------------------------------------------------


def start(nodes: int = 5000, pods: int = 20000) -> dict[str, Any]:
    """The scheduler's start on a large cluster."""
    with cluster() as plane:
        # Nobody plays these nodes, and nobody shall mind.
        for name in ("kwok", "kube-controller-manager", "kube-scheduler"):
            plane[name].stop()
        create(plane, "/api/v1/nodes", (fake_node(f"node-{i:05d}", PROFILES[i % 3]) for i in range(nodes)))
        create(plane, PODS, (placed_pod(number, nodes) for number in range(pods)))
        ours = OurScheduler(plane)
        found = []
        for _ in range(STARTS):
            began = time.perf_counter()
            ours.part.launch()
            until(lambda: plane.answers(ours.port, "/readyz"), "ready", 300)
            ready_s = time.perf_counter() - began
            until(lambda: plane.answers(ours.port, "/leadz"), "leads", 300)
            leads_s = time.perf_counter() - began
            at_start = memory_mib(ours.part.pid)
            names = [f"node-{i:05d}" for i in range(nodes)]
            asker = Asker(plane.rooms.connect(ours.port, timeout_s=60))
            for number in range(200):
                body = {"Pod": realistic_pod(f"ask-{number}", random.choice(SIZES)), "NodeNames": names}
                asker.post("/filter", json.dumps(body, separators=(",", ":")).encode())
            held = len([r for n in ours.get("/inspect")["nodes"] for d in n["devices"] for r in d["residents"]])
            assert held == pods, f"{held} residents"
            found.append((ready_s, leads_s, at_start, memory_mib(ours.part.pid)))
            ours.part.kill()
        ready, leads, before, after = ([row[i] for row in found] for i in range(4))
        return {
            "nodes": nodes,
            "pods": pods,
            "ready_s": [round(s, 2) for s in ready],
            "leads_s": [round(s, 2) for s in leads],
            "memory_mib": round(statistics.median(before)),
            "memory_after_filters_mib": round(statistics.median(after)),
        }


def placed_pod(number: int, nodes: int) -> dict[str, Any]:
    """A pod with a quarter of the GPU that is its turn, as a bind leaves it."""
    node, gpu = f"node-{number % nodes:05d}", number // nodes % 8
    body = realistic_pod(f"pod-{number:05d}", 25)
    uuid = GpuUuid(gpu_uuid(node, gpu))
    plan = PodPlan(node, {"main": ContainerPlan((Slice(uuid, 250, 1000, 1024),))})
    body["metadata"] = {"name": f"pod-{number:05d}", "labels": body["metadata"]["labels"]}
    body["metadata"]["annotations"] = {PLAN: write_plan(plan), "note": "x" * 400}
    body["spec"]["nodeName"] = node
    del body["status"]
    return body


# -- pods per second -------------------------------------------------------------------------------------------------


def throughput(nodes: int = 1000, pods: int = 1000, rounds: int = 2) -> dict[str, Any]:
    """kube-scheduler with the extender and without, in turn, on the same nodes with the same pods."""
    chance = random.Random(5)
    with cluster() as plane:
        create(plane, "/api/v1/nodes", (fake_node(f"node-{i:05d}", PROFILES[i % 3]) for i in range(nodes)))
        until(lambda: len(plane.ready_nodes()) == nodes, "nodes", 300)
        ours = OurScheduler(plane)
        ours.part.start()
        asking = kube_scheduler_config(f"http://127.0.0.1:{ours.port}")
        ways = {"with": asking, "without": {**asking, "extenders": []}}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        spent_s = 0.0
        for _ in range(rounds):
            sizes = [chance.choice(SIZES) for _ in range(pods)]
            for way, configuration in ways.items():
                before_s = cpu_s(ours.part.pid)
                rates[way].append(scheduled_per_s(plane, configuration, sizes))
                spent_s += cpu_s(ours.part.pid) - before_s if way == "with" else 0
        ours.part.stop()
    best = {way: max(found) for way, found in rates.items()}
    return {
        "nodes": nodes,
        "pods": pods,
        **{f"{way}_extender_pods_per_s": [round(rate, 1) for rate in found] for way, found in rates.items()},
        "ratio": round(best["with"] / best["without"], 3),
        "extender_cpu_ms_per_pod": round(1000 * spent_s / (rounds * pods), 2),
    }


def scheduled_per_s(plane: ControlPlane, configuration: dict[str, Any], sizes: list[int]) -> float:
    """All pods wait before kube-scheduler starts; pods per second from the first one bound to the last."""
    plane["kube-scheduler"].stop()
    create(plane, PODS, [gpu_pod(f"p{i}", percent(size)) for i, size in enumerate(sizes)])
    plane.schedule_with(configuration)
    until(lambda: bound(plane) > 0, "a first pod", 60)
    began, first = time.perf_counter(), bound(plane)
    until(lambda: bound(plane) == len(sizes), "all pods", 600)
    rate = (len(sizes) - first) / (time.perf_counter() - began)
    plane.api.call("DELETE", PODS, {"gracePeriodSeconds": 0})
    until(lambda: not plane.api.get(f"{PODS}?limit=1")["items"], "their end", 120)
    return rate


def bound(plane: ControlPlane) -> int:
    """How many pods kube-scheduler has bound, by its own count."""
    text = metrics(plane, 10259, tls=True)
    counted = rf'scheduler_schedule_attempts_total\{{[^}}]*profile="{PROFILE}"[^}}]*result="scheduled"\}} (\S+)'
    found = re.findall(counted, text)
    return int(sum(float(value) for value in found))


def metrics(plane: ControlPlane, port: int, *, tls: bool = False) -> str:
    """The metrics of a program inside."""
    import http.client
    import ssl

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.sock = plane.rooms.connect(port)
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(plane.client.certificate, plane.client.key)
        connection.sock = context.wrap_socket(connection.sock)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


# -- KubeShare, Fig. 10 and 11 ---------------------------------------------------------------------------------------


def sharepods(counts: tuple[int, ...] = (1, 10, 20, 30, 40, 50), others: tuple[int, ...] = (0, 25, 50, 75, 100)) -> Any:
    """Creation of pods and SharePods, and the time of one decision."""
    with cluster() as plane:
        install_crds(plane)
        plane.fake_nodes(4, "v100")
        ours = OurScheduler(plane, 8770, "--holder-image", "busybox")
        ours.part.start()
        ours.configure()
        fig10 = []
        for count in counts:
            plain, shared = [], []
            for _ in range(3):
                plain.append(creation(plane, PODS, [gpu_pod(f"p{i}", percent(10)) for i in range(count)]))
                shares = [sharepod(f"p{i}", "0.1") for i in range(count)]
                shared.append(creation(plane, f"{ALIQUOT}/namespaces/{SPACE}/sharepods", shares))
            a, b = statistics.median(plain), statistics.median(shared)
            fig10.append({"count": count, "pods_s": round(a, 3), "sharepods_s": round(b, 3), "ratio": round(b / a, 2)})
        fig11 = [decision(plane, ours, number) for number in others]
        ours.part.stop()
    return {"fig10": fig10, "fig11": fig11}


def creation(plane: ControlPlane, path: str, bodies: list[dict[str, Any]]) -> float:
    """Seconds from the first request until all pods run; then all are taken away."""
    began = time.perf_counter()
    create(plane, path, bodies)
    until(lambda: running(plane) == len(bodies), "all run", 120)
    taken_s = time.perf_counter() - began
    clear(plane, path)
    return taken_s


def running(plane: ControlPlane) -> int:
    """Pods that run."""
    return sum(pod["status"].get("phase") == "Running" for pod in plane.api.get(PODS)["items"])


def clear(plane: ControlPlane, path: str) -> None:
    """Take everything away."""
    plane.api.call("DELETE", path)
    if path != PODS:
        until(lambda: not plane.api.get(path)["items"], "the end of SharePods", 60)
        plane.api.call("DELETE", PODS, {"gracePeriodSeconds": 0})
    until(lambda: not plane.api.get(PODS)["items"], "the end of pods", 60)


def decision(plane: ControlPlane, ours: OurScheduler, others: int) -> dict[str, Any]:
    """Mean time of filter, prioritize and bind for each of ten SharePods, one after another, beside so many others."""
    path = f"{ALIQUOT}/namespaces/{SPACE}/sharepods"
    create(plane, path, [sharepod(f"other-{i}", "0.1") for i in range(others)])
    until(lambda: running(plane) == others, "the others run", 120)
    before = verb_s(plane, ours)
    for number in range(10):
        plane.api.create(path, sharepod(f"more-{number}", "0.1"))
        until(lambda want=others + number + 1: running(plane) == want, "one more", 60)
    after = verb_s(plane, ours)
    clear(plane, path)
    spent = {verb: (after[verb] - before[verb]) * 100 for verb in after}
    return {"sharepods": others, **{f"{verb}_ms": round(ms, 2) for verb, ms in spent.items()}}


def verb_s(plane: ControlPlane, ours: OurScheduler) -> dict[str, float]:
    """Seconds that each verb has taken so far."""
    text = metrics(plane, ours.port)
    found = dict(re.findall(r'aliquot_scheduler_verb_seconds_sum\{verb="(\w+)"\} (\S+)', text))
    return {verb: float(found.get(verb, 0)) for verb in ("filter", "prioritize", "bind")}


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ["start", "throughput", "sharepods"]:
        name, _, size = wanted.partition("=")
        measure: Any = {"start": start, "throughput": throughput, "sharepods": sharepods}[name]
        figures = measure(*map(int, size.split("/"))) if size else measure()
        sys.stdout.write(json.dumps({name: figures}) + "\n")
        sys.stdout.flush()

"""How long kube-scheduler waits for the extender: filter and prioritize over HTTP with JSON.

The extender runs in a process of its own, filled as by its watches: nodes of eight GPUs in three models, pods placed by
the policy until so many hold shares. Another process asks as kube-scheduler does: one connection kept open, one
realistic pod (several kilobytes) and the names of all nodes in each body, in another order each time, as parallel
filters leave them; the sizes change from ask to ask. Between asks some pods leave and others come, so that nothing is
answered from an unchanged cluster. The time is from the first byte sent to the answer decoded; `cpu_ms` is what the
extender's process computes for one ask, on the mean, which neighbours on the machine change little.

What an ask may have waited for stands beside it, over all asks: garbage collections, slices of the policy's learning,
and the longest time that the event loop came back late to a task that sleeps. With `reviewers` as many clients flood
the webhook beside the asks, each with one review of a megabyte after another; they are another process, which gives
way to the rest (nice 10), since in a cluster they are other machines.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import json
import os
import random
import re
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from aliquot.scheduler.admission.server import Webhook

MODELS = (("Tesla V100-SXM2-16GB", 16384), ("NVIDIA A100-SXM4-80GB", 81920), ("Tesla T4", 15360))
CASES = ((1000, 4000), (5000, 20000))
SIZES = (5, 10, 20, 25, 30, 50, 80, 100, 200)
WARM_UPS = 30
LAG_EVERY_S = 0.005
_POD = Path(__file__).with_name("pod.json").read_bytes()


def filter_times(cases: tuple[tuple[int, int], ...] = CASES, asks: int = 300, reviewers: int = 0) -> dict[str, Any]:
    """p50 and p99 of filter and prioritize in milliseconds, for each (nodes, pods); with memory and start-up.

    With `reviewers` each case is measured twice: quiet, then while so many clients flood the webhook.
    """
    return {"asks": asks, "cases": [found for nodes, pods in cases for found in _case(nodes, pods, asks, reviewers)]}


def _case(nodes: int, pods: int, asks: int, reviewers: int) -> list[dict[str, Any]]:
    itself = [sys.executable, "-m", "aliquot_lab.bench.filter"]
    server = subprocess.Popen([*itself, str(nodes), str(pods)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        facts = json.loads(server.stdout.readline())
        found = [_ask(facts["port"], nodes, asks, server.pid)]
        if reviewers:
            command = [*itself, str(facts["reviews_port"]), str(reviewers), "flood"]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as flooding:
                flooded = _ask(facts["port"], nodes, asks, server.pid)
                answered = json.loads(flooding.communicate()[0])
            found.append(flooded | {"reviewers": reviewers, "reviews": answered})
    finally:
        server.terminate()
        server.wait()
    more = {"fill_s": facts["fill_s"], "memory_mib": facts["memory_mib"]}
    return [{"nodes": nodes, "pods": pods, **figures, **more} for figures in found]


def _flood(port: int, clients: int) -> None:
    """Post large reviews from so many connections until standard input ends, then print how many had each status."""
    os.nice(10)
    limits = {"aliquot.dev/gpu-percent": "1"}
    containers = [{"name": f"c{i}", "resources": {"limits": limits}} for i in range(12_000)]
    pod = {"metadata": {"name": "large"}, "spec": {"containers": containers}}
    body = msgspec.json.encode({"request": {"uid": "1", "kind": {"kind": "Pod"}, "object": pod}})
    head = f"POST /mutate HTTP/1.1\r\nHost: webhook\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    answered: Counter[str] = Counter()
    ending = threading.Event()

    def client() -> None:
        while not ending.is_set():
            try:
                with (
                    socket.create_connection(("127.0.0.1", port), 10) as plain,
                    context.wrap_socket(plain) as connected,
                ):
                    connected.sendall(head + body)
                    answered[connected.recv(4096).split(maxsplit=2)[1].decode()] += 1
            except (OSError, IndexError):
                answered["no answer"] += 1

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ending.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps(answered))


class Asker:
    """A client that costs little itself: one connection, requests in one piece, answers read by their length."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as Go's clients do

    def post(self, path: str, body: bytes = b"") -> Any:
        """The decoded answer; None for an empty one."""
        head = f"POST {path} HTTP/1.1\r\nHost: extender\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        head_text, _, first = answer.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head_text.lower())
        assert found is not None and b" 200 " in head_text.splitlines()[0], head_text
        parts, missing = [first], int(found[1]) - len(first)
        while missing:
            parts.append(self._more())
            missing -= len(parts[-1])
        text = b"".join(parts)
        return msgspec.json.decode(text) if text else None

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _more(self) -> bytes:
        found = self._socket.recv(1 << 20)
        assert found, "the extender hung up"
        return found


def _ask(port: int, nodes: int, asks: int, server: int) -> dict[str, Any]:
    asker = Asker(socket.create_connection(("127.0.0.1", port)))
    chance = random.Random(7)
    names = [f"node-{i:05d}" for i in range(nodes)]
    times: dict[str, list[float]] = {"filter": [], "prioritize": []}
    computed_ms = dict.fromkeys(times, 0.0)
    for number in range(WARM_UPS + asks):
        if number == WARM_UPS:
            asker.post("/waits")
        pod = realistic_pod(f"ask-{number}", chance.choice(SIZES))
        chance.shuffle(names)
        left = names
        for verb, taken in times.items():
            body = msgspec.json.encode({"Pod": pod, "NodeNames": left})
            before_ms, began = _cpu_ms(server), time.perf_counter()
            answer = asker.post(f"/{verb}", body)
            if number >= WARM_UPS:
                taken.append((time.perf_counter() - began) * 1000)
                computed_ms[verb] += _cpu_ms(server) - before_ms
            if verb == "filter":
                left = answer["NodeNames"]
        asker.post("/churn")
    found: dict[str, Any] = {"waits": asker.post("/waits")}
    asker.close()
    for verb, taken in times.items():
        prefix = "" if verb == "filter" else f"{verb}_"
        found[f"{prefix}p50_ms"] = round(statistics.median(taken), 3)
        found[f"{prefix}p99_ms"] = round(sorted(taken)[int(len(taken) * 0.99)], 3)
        found[f"{prefix}cpu_ms"] = round(computed_ms[verb] / asks, 3)
    return found


def _cpu_ms(pid: int) -> float:
    """What the first thread of a process has computed so far; the first field is in nanoseconds (Linux, schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def realistic_pod(name: str, percent: int) -> dict[str, Any]:
    """A pod as an API server gives it: about five kilobytes (pod.json), most of which is not read."""
    pod: dict[str, Any] = msgspec.json.decode(_POD)
    pod["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    resources = pod["spec"]["containers"][0]["resources"]
    for asked in resources.values():
        asked["aliquot.dev/gpu-percent"] = percent
    return pod


class _Server:
    """The extender over a ledger with this many pods."""

    def __init__(self, nodes: int, pods: int) -> None:
        from aliquot.driver.policies import maker
        from aliquot.kube.inventory import Inventory, write_inventory
        from aliquot.kube.names import GPUS
        from aliquot.kube.objects import Node, Pod
        from aliquot.kube.reflector import Change
        from aliquot.model.ids import GpuUuid
        from aliquot.model.requests import Device
        from aliquot.scheduler.ledger import Ledger

        self.ledger = Ledger(maker("aliquot")())
        self.chance = random.Random(1)
        self.made = 0
        self.here: list[tuple[Any, str]] = []
        self._change, self._pod = Change, Pod
        for i in range(nodes):
            model, mib = MODELS[i % len(MODELS)]
            devices = tuple(Device(g, GpuUuid(f"GPU-{i}-{g}"), model, mib) for g in range(8))
            notes = {GPUS: write_inventory(Inventory(devices))}
            found = msgspec.convert({"metadata": {"name": f"node-{i:05d}", "annotations": notes}}, Node)
            self.ledger.node_changed(Change("added", found))
        while len(self.here) < pods:
            self.come()

    def come(self) -> None:
        """A pod arrives on a node that has room, bound with its plan."""
        from aliquot.kube.dialects import read
        from aliquot.kube.names import PLAN
        from aliquot.kube.plan import write_plan
        from aliquot.scheduler.ledger import NodeFull

        self.made += 1
        size = self.chance.choice(SIZES)
        pod = msgspec.convert(realistic_pod(f"pod-{self.made}", size), self._pod)
        ask = read(pod)
        assert ask is not None
        node = f"node-{self.chance.randrange(len(self.ledger.cluster.index)):05d}"
        try:
            allocation = self.ledger.allocate(ask, node, 0.0)
        except NodeFull:
            return
        pod.spec.node_name = node
        pod.metadata.annotations = {PLAN: write_plan(allocation.plan)}
        self.ledger.pod_changed(self._change("modified", pod))
        self.here.append((pod, node))

    def churn(self) -> None:
        """Two leave and two come."""
        for _ in range(2):
            pod, _ = self.here.pop(self.chance.randrange(len(self.here)))
            self.ledger.pod_changed(self._change("deleted", pod))
            self.come()

    def serve(self, fill_s: float) -> None:
        """Answer until terminated; the first line of stdout has the ports."""
        import resource
        import signal

        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.routing import Route

        from aliquot.http.listening import listening
        from aliquot.http.server import ClientConnection, HttpServer
        from aliquot.scheduler.extender.bind import Binder
        from aliquot.scheduler.extender.server import LIMITS, Extender
        from aliquot.scheduler.program import collect_rarely

        binder = Binder(None, self.ledger, lambda key: None)  # type: ignore[arg-type]
        extender = Extender(self.ledger, binder, lambda key: None, lambda: True)
        app, waits = extender.app(), Waits(self.ledger.policy)

        async def churn(request: Request) -> Response:
            self.churn()
            return Response()

        async def waited(request: Request) -> Response:
            return Response(msgspec.json.encode(waits.taken()))

        app.router.routes += [
            Route("/churn", churn, methods=["POST"]),
            Route("/waits", waited, methods=["POST"]),
        ]
        gc.collect()
        collect_rarely()
        listener = listening("127.0.0.1", 0)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        facts = {"port": listener.getsockname()[1], "fill_s": round(fill_s, 2), "memory_mib": memory}

        def tell(url: str) -> None:
            sys.stdout.write(json.dumps(facts | {"reviews_port": int(url.rpartition(":")[2])}) + "\n")
            sys.stdout.flush()

        async def serving() -> None:
            server = HttpServer(app, listener, limits=LIMITS, protocol=ClientConnection)
            works = [server.serve(), extender.learn(), waits.lag(), _webhook(tell).serve()]
            tasks = [asyncio.create_task(work) for work in works]
            ended = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
            await ended.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(serving())


def _webhook(on_listening: Callable[[str], None]) -> Webhook:
    """The webhook, with a certificate of its own."""
    from aliquot.scheduler.admission.certificates import next_step
    from aliquot.scheduler.admission.server import Webhook
    from aliquot.scheduler.settings import SchedulerSettings

    settings = SchedulerSettings(webhook="127.0.0.1:0")
    made = Webhook(None, settings, lambda namespace: {}, lambda: True, on_listening)  # type: ignore[arg-type]
    made.renew(next_step(None, b"", settings.webhook_names, datetime.datetime.now(datetime.UTC)))
    return made


class Waits:
    """What may hold up an ask: collections and learning, all of them and the longest, and the loop's longest lag."""

    def __init__(self, policy: Any) -> None:
        self._ms: dict[str, list[float]] = {"gc": [], "learning": [], "loop_lag": []}
        self._began = 0.0
        gc.callbacks.append(self._collected)
        idle = policy.idle

        def timed(budget_us: int) -> bool:
            began = time.perf_counter()
            more = bool(idle(budget_us))
            self._ms["learning"].append((time.perf_counter() - began) * 1000)
            return more

        policy.idle = timed

    async def lag(self) -> None:
        """Note how late the loop comes back to a task that sleeps 5 ms, until cancelled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            self._ms["loop_lag"].append((time.perf_counter() - began - LAG_EVERY_S) * 1000)

    def taken(self) -> dict[str, float]:
        """The figures since the last call."""
        found: dict[str, float] = {}
        for name, times in self._ms.items():
            if name != "loop_lag":
                found[f"{name}_ms"] = round(sum(times), 1)
            found[f"{name}_longest_ms"] = round(max(times, default=0.0), 1)
            times.clear()
        return found

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._ms["gc"].append((time.perf_counter() - self._began) * 1000)


def main() -> None:
    """The server's process: number of nodes and pods as arguments; with `flood`, the webhook's port and clients."""
    first, second, *flooding = sys.argv[1:]
    if flooding:
        _flood(int(first), int(second))
        return
    began = time.perf_counter()
    server = _Server(int(first), int(second))
    server.serve(time.perf_counter() - began)


if __name__ == "__main__":
    main()

"""An inference server in PyTorch: HTTP, requests put together into batches, latencies printed.

    aliquot run --gpu-request .3 --gpu-mem 2Gi -- python torch_serve.py --port 8000

    curl -d '[0.1, 0.2]' http://127.0.0.1:8000/predict

Requests that arrive while the GPU works, or within --wait-ms of the first, go into one batch of at most --batch. The
latency of each request runs from its arrival to its answer; p50 and p99 of the last 1000 are printed each --report
requests, served at /stats, and printed at the end (Ctrl-C or SIGTERM). On an emulated GPU the predictions are
meaningless numbers.
"""

import argparse
import json
import math
import queue
import signal
import threading
import time
from collections import deque
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn

WIDTH = 256


class Batcher(threading.Thread):
    """The one thread that uses the GPU."""

    def __init__(self, batch: int, wait_ms: float, report: int) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.Queue[tuple[float, list[float], Future[list[float]]]] = queue.Queue()
        self.latencies_ms: deque[float] = deque(maxlen=1000)
        self.requests = self.batches = 0
        self._batch, self._wait_s, self._report = batch, wait_ms / 1000, report
        self._net = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 8)).cuda().eval()

    def predict(self, values: list[float]) -> list[float]:
        """Wait for the prediction; from any thread."""
        answer: Future[list[float]] = Future()
        self.waiting.put((time.monotonic(), values, answer))
        return answer.result()

    def run(self) -> None:
        """Serve batches for ever."""
        while True:
            self._serve(self._collect())

    def _collect(self) -> list[tuple[float, list[float], Future[list[float]]]]:
        found = [self.waiting.get()]
        until_s = time.monotonic() + self._wait_s
        while len(found) < self._batch:
            try:
                found.append(self.waiting.get(timeout=max(0.0, until_s - time.monotonic())))
            except queue.Empty:
                break
        return found

    @torch.inference_mode()
    def _serve(self, found: list[tuple[float, list[float], Future[list[float]]]]) -> None:
        rows = torch.tensor([(values + [0.0] * WIDTH)[:WIDTH] for _, values, _ in found])
        answers = self._net(rows.pin_memory().cuda(non_blocking=True)).tolist()
        now_s = time.monotonic()
        for (arrived_s, _, answer), row in zip(found, answers, strict=True):
            self.latencies_ms.append(1000 * (now_s - arrived_s))
            answer.set_result([value if math.isfinite(value) else 0.0 for value in row])
            self.requests += 1
            if self.requests % self._report == 0:
                print(json.dumps(self.stats()), flush=True)
        self.batches += 1

    def stats(self) -> dict[str, float]:
        """Requests, batches and latencies so far."""
        ordered = sorted(self.latencies_ms) or [0.0]
        p50, p99 = (round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) for part in (0.5, 0.99))
        return {"requests": self.requests, "batches": self.batches, "p50_ms": p50, "p99_ms": p99}


def handler(batcher: Batcher) -> type[BaseHTTPRequestHandler]:
    """The routes: POST /predict with a JSON list of numbers, GET /stats."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            try:
                values = [float(value) for value in json.loads(self.rfile.read(int(self.headers["Content-Length"])))]
            except (TypeError, ValueError):
                self._answer(400, {"error": "the body is a JSON list of numbers"})
                return
            self._answer(200, batcher.predict(values))

        def do_GET(self) -> None:
            self._answer(200, batcher.stats())

        def _answer(self, status: int, body: object) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """The statistics are enough."""

    return Handler


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 128  # connections that come at once wait, where five would, and the others be reset


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Serves a small network over HTTP.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one, which is printed")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--wait-ms", type=float, default=2.0)
    parser.add_argument("--report", type=int, default=100)
    given = parser.parse_args()
    batcher = Batcher(given.batch, given.wait_ms, given.report)
    batcher.start()
    server = Server(("127.0.0.1", given.port), handler(batcher))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving on http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
    print(json.dumps(batcher.stats()), flush=True)


if __name__ == "__main__":
    main()

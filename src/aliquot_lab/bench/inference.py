"""`aliquot bench inference` and `aliquot bench fig5`: a program that answers requests, with and without neighbours.

The program (native/bench/client.c, mode `inference`) is a server with an open queue: requests arrive by a Poisson
process with a fixed seed, whether or not earlier ones are done, and each is answered by 10 kernels of 0.5 ms. A
request's latency is from its arrival to the moment its last kernel was seen complete, so waiting behind earlier
requests and for a turn counts. The arrivals are the same in every case of one rate.

`inference`, by rate: the server (request 0.3, limit 1) alone; beside a training program (kernels of 2 ms, a few
ahead, request 0.7, limit 1) under Aliquot; and the same pair without Aliquot, where the driver's own time slices are
all there is between them. `alone_p99_ms` is the 99th percentile alone.

`fig5` repeats KubeShare's Fig. 5: the GPU use of the server alone grows in proportion to its requests. Use is what the
arbiter charged; a straight line is fitted to it by least squares. The paper gives a picture without numbers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from aliquot_lab.bench.fig6 import RequestedShare, Tenant
from aliquot_lab.bench.figures import percentile
from aliquot_lab.bench.scene import Client, ClientFailed, Program, bare_clients, native_client, scene, start_all

RATES: Final = (10, 25, 50)
FIG5_RATES: Final = (10, 20, 40, 60, 80, 100)
SETTLE_S: Final = 1.0
KERNELS: Final = 10
KERNEL_US: Final = 500
TRAINING_KERNEL_US: Final = 2000
SEED: Final = 7
SERVER, TRAINING = Tenant("server"), Tenant("training")
_SERVER_ASK: Final = RequestedShare(300, 1000, 1024)
_TRAINING_ASK: Final = RequestedShare(700, 1000, 1024)
_DUE_S: Final = 60.0
"""How long requests that have arrived are waited for."""


def server(rate_per_s: float) -> Program:
    """The server at a rate of requests per second."""
    return native_client("inference", str(KERNEL_US * 1000), str(rate_per_s), str(KERNELS), "1", str(SEED))


def training() -> Program:
    """Its neighbour."""
    return native_client("steady", str(TRAINING_KERNEL_US * 1000))


def latencies_ms(client: Client, seconds: float) -> list[float]:
    """The latency of every request that arrives in the next `seconds`, once all of them are answered.

    Raises:
        ClientFailed: too few requests came for a percentile.
    """
    began_ns = time.monotonic_ns()
    ends_ns = began_ns + int(seconds * 1e9)
    time.sleep(seconds)
    until_s = time.monotonic() + _DUE_S
    while time.monotonic() < until_s and not any(each.asked_ns > ends_ns for each in client.intervals[-1:]):
        time.sleep(0.02)
    found = [(each.ended_ns - each.asked_ns) / 1e6 for each in client.intervals if began_ns <= each.asked_ns <= ends_ns]
    if not found:
        raise ClientFailed(f"no request was answered in {seconds:.0f} s")
    return found


def _under_aliquot(
    emulate: str | None, rate_per_s: float, seconds: float, *, beside: bool
) -> tuple[list[float], dict[str, Any]]:
    wanted: list[tuple[Tenant, RequestedShare, Program]] = [(SERVER, _SERVER_ASK, server(rate_per_s))]
    if beside:
        wanted.append((TRAINING, _TRAINING_ASK, training()))
    with scene(emulate) as stage:
        first = start_all(stage, wanted)[0]
        time.sleep(SETTLE_S)
        return latencies_ms(first, seconds), stage.about


def _time_sliced(emulate: str | None, rate_per_s: float, seconds: float) -> list[float]:
    with bare_clients(emulate, [(SERVER, server(rate_per_s)), (TRAINING, training())]) as clients:
        time.sleep(SETTLE_S)
        return latencies_ms(clients[0], seconds)


def rate_cases(emulate: str | None, rate_per_s: float, seconds: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One rate alone, beside training under Aliquot, and with time slices only; and the GPU."""
    alone, about = _under_aliquot(emulate, rate_per_s, seconds, beside=False)
    beside, _ = _under_aliquot(emulate, rate_per_s, seconds, beside=True)
    seen = {"nobody": alone, "training": beside, "training, time slices": _time_sliced(emulate, rate_per_s, seconds)}
    alone_p99_ms = round(percentile(alone, 99), 2)
    return [
        {
            "neighbour": neighbour,
            "rate_per_s": rate_per_s,
            "p50_ms": round(percentile(found, 50), 2),
            "p99_ms": round(percentile(found, 99), 2),
            "alone_p99_ms": alone_p99_ms,
            "requests": len(found),
        }
        for neighbour, found in seen.items()
    ], about


def inference(emulate: str | None, rates_per_s: Sequence[float], seconds: float) -> dict[str, Any]:
    """All rates."""
    seen = [rate_cases(emulate, rate, seconds) for rate in rates_per_s]
    return {"cases": [case for cases, _ in seen for case in cases], **seen[0][1]}


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Slope, intercept and r squared of the straight line through points by least squares.

    Raises:
        statistics.StatisticsError: fewer than two points, or all at one place.
    """
    xs, ys = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(xs, ys)
    return slope, intercept, statistics.correlation(xs, ys) ** 2


def fig5(emulate: str | None, rates_per_s: Sequence[float], seconds: float) -> dict[str, Any]:
    """GPU use of the server alone, by its requests per second, and the line through them."""
    cases: list[dict[str, Any]] = []
    with scene(emulate) as stage:
        for rate in rates_per_s:
            tenant = Tenant(f"server-{rate:g}")
            (client,) = start_all(stage, [(tenant, _SERVER_ASK, server(rate))])
            time.sleep(SETTLE_S)
            first, answered = stage.sample(), _answered(client)
            time.sleep(seconds)
            last, answered_then = stage.sample(), _answered(client)
            stage.end(tenant)
            span_ns = last.at_ns - first.at_ns
            cases.append(
                {
                    "rate_per_s": rate,
                    "requests_per_s": round((answered_then - answered) * 1e9 / span_ns, 2),
                    "gpu_use": round((last.charged_ns[tenant] - first.charged_ns[tenant]) / span_ns, 4),
                    "kernel_time": round((last.completed_ns[tenant] - first.completed_ns[tenant]) / span_ns, 4),
                }
            )
        about = stage.about
    slope, intercept, fit = line([(case["requests_per_s"], case["gpu_use"]) for case in cases])
    return {
        "cases": cases,
        "ms_per_request": round(1000 * slope, 3),
        "use_without_requests": round(intercept, 4),
        "r_squared": round(fit, 5),
        **about,
    }


def _answered(client: Client) -> int:
    """How many requests a server has answered."""
    totals = client.totals
    return totals.intervals if totals else 0

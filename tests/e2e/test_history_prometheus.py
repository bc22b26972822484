"""GPU-hours and timelines from a real Prometheus that holds what agents and recording rules would have written."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.cache import Unavailable
from cluster.prometheus import program

from aliquot.status.history import RANGES
from aliquot.web.history.keeping import LongHistory
from aliquot.web.history.prometheus import CAPACITY, RULES, SOURCE, TIMELINE_SOURCE, PrometheusPast

MINUTES = 180
GPU = "GPU-11111111-2222-3333-4444-555555555555"
VALUES = {"promised": 2.0, "used": 1.5, "borrowed": 0.25, "idle": 0.75}


def recorded(now_s: int) -> str:
    """Three hours of namespace `lab`, and one hour of `web` in the middle of them, as OpenMetrics."""
    lines = []
    for field, rule in RULES.items():
        lines.append(f"# TYPE {rule} gauge")
        for namespace, first, end in (("lab", 0, MINUTES), ("web", 60, 120)):
            value = VALUES[field] / (1 if namespace == "lab" else 2)
            moments = (now_s - 60 * (MINUTES - n) + 30 for n in range(first, end))
            lines += [f'{rule}{{namespace="{namespace}"}} {value} {at_s}' for at_s in moments]
    lines.append(f"# TYPE {CAPACITY} gauge")
    lines += [f'{CAPACITY}{{node="a"}} 8 {now_s - 60 * (MINUTES - n) + 30}' for n in range(MINUTES)]
    return "\n".join([*lines, *gpu_recorded(now_s), "# EOF", ""])


def gpu_recorded(now_s: int) -> list[str]:
    """Two hours of one GPU until an hour ago, four samples a minute: `lab/a/main` all the time, `web/b/main` one hour.

    `lab/a/main` has 0.5 and uses 0.25, waits a tenth of the time and has 1 GiB; every second window is kept.
    """
    moments = [now_s - 3 * 3600 + 15 * n for n in range(1, 480 + 1)]
    healthy = [f'aliquot_node_gpu_healthy{{uuid="{GPU}",node="a"}} 1 {at_s}' for at_s in moments]
    lines = ["# TYPE aliquot_node_gpu_healthy gauge", *healthy]
    pods = {
        'namespace="lab",pod="a",container="main"': (moments, 0.5, 0.25),
        'namespace="web",pod="b",container="main"': (moments[:240], 0.3, 0.3),
    }
    for name, kind, value in (
        ("request_ratio", "gauge", lambda share, used, n: share),
        ("memory_used_bytes", "gauge", lambda share, used, n: 1 << 30),
        ("charged_seconds_total", "counter", lambda share, used, n: 1000 + 15 * n * used),
        ("throttled_seconds_total", "counter", lambda share, used, n: 15 * n * 0.1),
        ("promise_windows_total", "counter", lambda share, used, n: 20 * n),
        ("promise_kept_total", "counter", lambda share, used, n: 10 * n),
        ("handovers_total", "counter", lambda share, used, n: 3 * n),
    ):
        metric = f"aliquot_container_gpu_{name}"
        lines.append(f"# TYPE {metric.removesuffix('_total')} {kind}")
        for labels, (there, share, used) in pods.items():
            lines += [
                f'{metric}{{uuid="{GPU}",{labels}}} {value(share, used, n)} {at_s}' for n, at_s in enumerate(there)
            ]
    return lines


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus with these samples."""
    try:
        server, tool = program("prometheus"), program("promtool")
    except Unavailable as error:
        pytest.skip(str(error))
    text, data, settings = tmp_path / "samples", tmp_path / "data", tmp_path / "prometheus.yml"
    text.write_text(recorded(int(time.time()) // 60 * 60))
    settings.write_text("{}")
    subprocess.run([tool, "tsdb", "create-blocks-from", "openmetrics", text, data], check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        server,
        f"--config.file={settings}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_ready(f"http://127.0.0.1:{port}/-/ready")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_ready(address: str) -> None:
    until_s = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < until_s, "Prometheus is not ready"
            time.sleep(0.1)


def test_hours_are_those_that_prometheus_recorded(prometheus: str):
    """GPU-hours by namespace are the sums of the rules' samples, also of a namespace that was there for a while."""
    hours = PrometheusPast(prometheus, LongHistory(None)).hours(RANGES["24h"])
    found = {line.namespace: (line.promised, line.used, line.borrowed, line.idle) for line in hours.lines}

    assert {"lab": pytest.approx((6, 4.5, 0.75, 2.25)), "web": pytest.approx((1, 0.75, 0.125, 0.375))} == found
    assert (SOURCE, "", pytest.approx(24)) == (hours.source, hours.note, hours.recorded)
    assert pytest.approx(7) == hours.total.promised


def test_without_an_answer_the_replicas_own_hours_are_shown():
    """Where Prometheus does not answer the page says so and shows what was recorded here."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        hours = PrometheusPast(url, LongHistory(None)).hours(RANGES["24h"])

    assert (f"Prometheus at {url} does not answer" in hours.note, []) == (True, hours.lines)


def test_timelines_are_computed_from_the_agents_metrics(prometheus: str):
    """A day of a GPU has for each step the parts of its tenants, and what was not recorded is a gap."""
    names = {"lab/a/main": "lab/a/main@1"}
    found = PrometheusPast(prometheus, LongHistory(None), names=lambda gpu: names).timeline(GPU, RANGES["24h"])
    lab, web = found.lanes

    assert (TIMELINE_SOURCE, "", 288) == (found.source, found.note, len(found.recorded))
    assert pytest.approx(2 * 12, abs=1.5) == sum(found.recorded)
    assert ["lab/a/main@1", "web/b/main"] == [lab.tenant, web.tenant]
    middle = len(found.recorded) - 12 - 6  # half an hour before the last sample, when only `lab` was there
    assert [1.0, 0.5, 0.1, 1024, 50.0] == pytest.approx(
        [
            found.recorded[middle],
            lab.promised[middle],
            lab.waited[middle],
            lab.memory_mib[middle],
            lab.kept_percent[middle],
        ],
        rel=0.03,
    )
    assert (pytest.approx(0.25, abs=0.01), pytest.approx(60, abs=4)) == (lab.used[middle], lab.handovers[middle])
    assert (0, None, None) == (web.promised[middle], lab.used[0], lab.lent[middle])
    assert pytest.approx(0.3, abs=0.01) == web.used[middle - 12]


def test_a_gpu_that_prometheus_does_not_know_is_what_the_replica_recorded(prometheus: str):
    """A GPU without samples is shown from the replica's own history, and the page says so."""
    found = PrometheusPast(prometheus, LongHistory(None)).timeline("GPU-0", RANGES["7d"])

    assert (True, "") == ("has nothing of this GPU" in found.note, found.source)

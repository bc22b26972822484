"""GPU-hours from a real Prometheus that holds what the recording rules would have written."""

from __future__ import annotations

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

from aliquot.web.history.keeping import LongHistory
from aliquot.web.history.prometheus import CAPACITY, NOTE, RULES, PrometheusPast
from aliquot.web.history.reading import RANGES

MINUTES = 180
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
    return "\n".join([*lines, "# EOF", ""])


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
    assert (NOTE, pytest.approx(24)) == (hours.note, hours.recorded)
    assert pytest.approx(7) == hours.total.promised


def test_without_an_answer_the_replicas_own_hours_are_shown():
    """Where Prometheus does not answer the page says so and shows what was recorded here."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        hours = PrometheusPast(url, LongHistory(None)).hours(RANGES["24h"])

    assert (f"Prometheus at {url} does not answer" in hours.note, []) == (True, hours.lines)

"""A real Prometheus reads the pages of scheduler, agent and arbiter, and answers the queries of rules and board."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from cluster.prometheus import Prometheus, fetch, program
from cluster.whole import Whole, whole

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "grafana"
RULES = (FOLDER / "aliquot-alerts.yaml", FOLDER / "aliquot-recording.yaml")
SENSED = {
    "temperature_celsius": 41, "power_watts": 60, "power_limit_watts": 300, "sm_clock_hertz": 1.53e9,
    "memory_clock_hertz": 877e6,
}  # fmt: skip
PORTS = {"scheduler": 8770, "agent": 5678, "arbiter": 9410}
BOARD = json.loads((FOLDER / "aliquot-board.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(kubelet_node: KubeletNode) -> Iterator[Whole]:
    """All of Aliquot on a node of two GPUs."""
    with whole(kubelet_node, "v100x2", arbiter_flags=("--metrics-port", str(PORTS["arbiter"]))) as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(cluster: Whole) -> Iterator[Prometheus]:
    """Prometheus, while three SharePods compute beside each other."""
    cluster.plane.kubectl("apply", "-f", str(ROOT / "examples" / "neighbours.yaml"))
    made = Prometheus(cluster.plane.rooms, PORTS, *RULES)
    made.part.start()
    try:
        yield made
    finally:
        made.part.stop()
        cluster.plane.kubectl("delete", "-f", str(ROOT / "examples" / "neighbours.yaml"), "--wait=false")


def test_prometheus_reads_every_page_and_evaluates_every_rule(prometheus: Prometheus):
    """No scrape fails, and no rule."""
    until(lambda: set(prometheus.healthy()) == set(PORTS), "a scrape of each page")
    # A group is evaluated for the first time at some moment of its interval, which is a minute for what is recorded.
    until(lambda: "unknown" not in prometheus.rules().values(), "an evaluation of each rule", 90)

    assert dict.fromkeys(PORTS, "") == prometheus.healthy()
    assert {"ok"} == set(prometheus.rules().values())


@pytest.mark.parametrize("job", PORTS)
def test_names_units_and_texts_are_as_prometheus_wants_them(prometheus: Prometheus, cluster: Whole, job: str):
    """promtool's linter finds nothing on a page."""
    _, page = fetch(cluster.plane.rooms, PORTS[job], "/metrics")

    done = subprocess.run([program("promtool"), "check", "metrics"], input=page, capture_output=True, check=False)

    assert (0, b"", b"") == (done.returncode, done.stdout, done.stderr)


def test_a_gpus_sensors_are_metrics(cluster: Whole):
    """The agent tells what the emulated driver's NVML answers for a V100, once it was asked."""

    def told() -> dict[str, float]:
        _, page = fetch(cluster.plane.rooms, PORTS["agent"], "/metrics")
        found = re.findall(r'^aliquot_node_gpu_(\w+)\{gpu="0",.*\} (\S+)$', page.decode(), re.MULTILINE)
        return {name: float(value) for name, value in found if name in SENSED}

    until(lambda: told().keys() == SENSED.keys(), "the sensors are read")
    assert SENSED == told()


@pytest.mark.parametrize(("panel", "expression"), QUERIES)
def test_the_board_shows_data(prometheus: Prometheus, panel: str, expression: str):
    """Every query of the board has an answer while programs run."""
    asked = expression.replace("$node", ".*").replace("$namespace", ".*")

    until(lambda: prometheus.query(asked), panel, 60)


def test_gpu_time_is_recorded_by_namespace(prometheus: Prometheus):
    """What a namespace uses is what its containers used together, and what is borrowed goes beyond their requests."""

    def figures() -> dict[str, float] | None:
        names = ("requested:sum", "used:rate5m", "borrowed:rate5m", "unused:rate5m")
        found = {name: prometheus.query(f'namespace:aliquot_gpu_{name}{{namespace="default"}}') for name in names}
        return {name: value for name, ((_, value),) in found.items()} if all(found.values()) else None

    # Rates over five minutes are right once the samples span some of them.
    seen = until(figures, "the recorded sums", 90)

    assert seen["requested:sum"] == pytest.approx(0.9)
    assert seen["used:rate5m"] == pytest.approx(
        seen["requested:sum"] + seen["borrowed:rate5m"] - seen["unused:rate5m"], abs=0.01
    )


def test_an_arbiter_that_is_away_raises_its_alert(prometheus: Prometheus, cluster: Whole):
    """The alert is pending while the arbiter is dead, and gone when it is back."""
    pending = 'ALERTS{alertname="AliquotArbiterAway",alertstate="pending"}'
    assert [] == prometheus.query(pending)

    cluster.gpus.arbiter.kill()
    (found,) = until(lambda: prometheus.query(pending), "the alert", 30)
    cluster.gpus.arbiter.start()

    assert cluster.gpus.node.name == found[0]["node"]
    until(lambda: not prometheus.query(pending), "its end", 30)

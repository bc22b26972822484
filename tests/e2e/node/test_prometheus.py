"""A real Prometheus reads the pages of scheduler, agent and arbiter, and answers the queries of rules and board."""

import json
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


@pytest.mark.parametrize(("panel", "expression"), QUERIES)
def test_the_board_shows_data(prometheus: Prometheus, panel: str, expression: str):
    """Every query of the board has an answer while programs run."""
    asked = expression.replace("$node", ".*").replace("$namespace", ".*")

    until(lambda: prometheus.query(asked), panel, 60)

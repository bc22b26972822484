"""A real pod's way to its GPU as one trace, and histograms that lead to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.kubelet_node import KubeletNode
from cluster.prometheus import fetch
from cluster.whole import Whole, whole
from otlp import Received, Receiver, receiver
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

HALF = Path(__file__).resolve().parents[3] / "examples" / "cluster" / "half.yaml"
ORDER = ["pod", "filter", "bind", "Allocate", "PreStartContainer", "first grant"]
PAGES = {"aliquot_scheduler_verb_seconds": 8770, "aliquot_node_kubelet_call_seconds": 5678}
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def traced(kubelet_node: KubeletNode) -> Iterator[tuple[Whole, Receiver]]:
    """All of Aliquot, and a receiver of spans in its network."""
    rooms = kubelet_node.control_plane.rooms
    with receiver(listener=rooms.listener()) as got:
        flags = ("--otlp-endpoint", got.url)
        with whole(kubelet_node, "v100x2", scheduler_flags=flags, agent_flags=flags) as cluster:
            yield cluster, got


@pytest.fixture(scope="module")
def spans(traced: tuple[Whole, Receiver]) -> list[Received]:
    """Those of one pod."""
    cluster, got = traced
    cluster.plane.kubectl("apply", "-f", str(HALF))
    return got.wait(len(ORDER))


def test_a_pod_is_one_trace_from_its_creation_to_its_first_turn(traced: tuple[Whole, Receiver], spans: list[Received]):
    """Scheduler and agent record its steps below one root, whose trace id is the pod's uid; they begin in this order.

    Kubelet may see the bound pod before the scheduler has the answer to its bind.
    """
    pod = traced[0].plane.pod("default", "half")
    (root,) = (span for span in spans if span.name == "pod")
    steps = sorted((span for span in spans if span is not root), key=lambda span: span.began_ns)

    assert ORDER[1:] == [span.name for span in steps]
    assert {pod["metadata"]["uid"].replace("-", "")} == {span.trace for span in spans}
    assert {root.span} == {span.parent for span in steps}
    assert f"00-{root.trace}-{root.span}-01" == pod["metadata"]["annotations"]["aliquot.dev/traceparent"]


def test_its_spans_name_its_node_and_its_gpu(traced: tuple[Whole, Receiver], spans: list[Received]):
    """From the bind on, every span has the node and the GPU of the plan."""
    cluster, _ = traced
    names = {span.name: (span.attributes["k8s.node.name"], span.attributes["aliquot.gpu.uuids"][0])
             for span in spans if span.name != "filter"}  # fmt: skip

    assert {cluster.gpus.node.name} == {node for node, _ in names.values()}
    assert 1 == len({gpu for _, gpu in names.values()})
    assert names["bind"][1] in cluster.gpus.gpus


@pytest.mark.parametrize("family", PAGES)
def test_histograms_lead_to_the_trace(traced: tuple[Whole, Receiver], spans: list[Received], family: str):
    """The pages of both programs have exemplars with its trace in OpenMetrics, and can be parsed as such."""
    accept = "application/openmetrics-text; version=1.0.0"
    _, page = fetch(traced[0].plane.rooms, PAGES[family], "/metrics", accept=accept)
    (found,) = (each for each in openmetrics(page.decode()) if each.name == family)
    exemplars = [sample.exemplar.labels for sample in found.samples if sample.exemplar is not None]

    assert exemplars
    assert {span.trace for span in spans} == {labels["trace_id"] for labels in exemplars}

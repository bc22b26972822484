"""One trace of a pod over the scheduler and its node's agent, and exemplars that lead to it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from otlp import Received, receiver
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from served import Served

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.kube.names import PLAN, TRACEPARENT
from aliquot.kube.objects import Meta
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.allocation.kubelet import Claim
from aliquot.node.spans import KubeletCalls, Start
from aliquot.scheduler.extender.metrics import PodSpans
from aliquot.status.tenants import TenantStatus
from aliquot.tracing.context import pod_trace
from aliquot.tracing.export import TIMEOUT_S
from aliquot.tracing.spans import Spans, tracing

UID = "0c8d7a52-9a3e-4c51-8f4e-1f6f5d3f6b11"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
HALF = {"aliquot.dev/gpu-percent": 50}
ORDER = ["pod", "filter", "bind", "Allocate", "PreStartContainer", "first grant"]


class Way:
    """A scheduler that traces, and one pod of it."""

    def __init__(self, spans: Spans, **annotations: str) -> None:
        self.served = Served()
        self.served.extender.spans = PodSpans(spans)
        self.served.extender.metrics.registry.register(spans.backlog.dropped)
        self.served.scene.binder.traced = True
        truth = self.served.scene.truth
        truth.create("a", HALF, uid=UID, creationTimestamp="2026-01-02T03:04:05Z", annotations=dict(annotations))
        self.served.scene.catch_up()

    def filter(self, *names: str) -> Any:
        """kube-scheduler's first question."""
        document = self.served.scene.truth.pods["a"]
        return self.served.post("filter", {"Pod": document, "NodeNames": list(names)})[1]

    def bind(self, name: str = "m") -> str:
        """Its last, and the error of its answer."""
        message = {"PodName": "a", "PodNamespace": "default", "PodUID": UID, "Node": name}
        return str(self.served.post("bind", message)[1]["Error"])

    @property
    def notes(self) -> dict[str, str]:
        """The pod's annotations at the API server."""
        return dict(self.served.scene.truth.pods["a"]["metadata"]["annotations"])

    def exemplars(self, accept: str = OPENMETRICS) -> dict[str, dict[str, str]]:
        """By verb, the labels of the exemplars of its histogram."""
        text = self.served.ask("GET", "/metrics", accept=accept)[1].decode()
        return exemplars(text, "aliquot_scheduler_verb_seconds", "verb")


def exemplars(text: str, family: str, label: str) -> dict[str, dict[str, str]]:
    """By the values of a label, the exemplars of a histogram in OpenMetrics."""
    (found,) = (each for each in openmetrics(text) if each.name == family)
    return {s.labels[label]: dict(s.exemplar.labels) for s in found.samples if s.exemplar is not None}


def start_on(calls: KubeletCalls, notes: dict[str, str]) -> None:
    """What the agent does when kubelet starts the container, and when it is then granted the GPU."""
    claim = Claim("name-1", PodKey(UID, "default", "a"), "main")
    meta = Meta(name="a", namespace="default", uid=UID, annotations=notes)
    calls.allocated("name-1", 0.001)
    calls.prepared([Start(claim, meta, notes[PLAN], "default/a/main")], 0.0005, "")
    calls.granted(status_of("default/a/main", time.monotonic_ns()))


def status_of(tenant: str, first_grant_ns: int) -> Status:
    """The arbiter's, with this tenant."""
    none: dict[str, Any] = dict.fromkeys(TenantStatus.__struct_fields__[:14], 0)
    one = TenantStatus(**none | {"name": tenant, "waiting": False}, first_grant_ns=first_grant_ns)
    gpu = GpuStatus("GPU-m-0", None, 0.0, [one])
    return Status(time.monotonic_ns(), 1, 1, 10_000, "fluid", 50, "immediate", "pace", 1, [gpu])


@contextmanager
def both(url: str) -> Iterator[tuple[Spans, Spans]]:
    """Where scheduler and agent record."""
    with tracing("aliquot-scheduler", url) as scheduler, tracing("aliquot-node", url, {"k8s.node.name": "m"}) as agent:
        assert scheduler is not None
        assert agent is not None
        yield scheduler, agent


def whole_way(**annotations: str) -> list[Received]:
    """The spans of a pod that was filtered, bound, started and granted the GPU, by their begin."""
    with receiver() as got, both(got.url) as (scheduler, agent):
        way = Way(scheduler, **annotations)
        way.filter("m", "n", "other")
        assert "" == way.bind()
        start_on(KubeletCalls("m", agent), way.notes)
        return got.wait(6)


def test_scheduler_and_agent_record_one_trace_of_a_pod():
    """Its spans are in the order of its way, below one root that begins with the pod, each with pod, node and GPU."""
    spans = whole_way()
    by_name = {span.name: span for span in spans}
    root = by_name["pod"]

    assert ORDER == [span.name for span in sorted(spans, key=lambda span: ORDER.index(span.name))]
    assert {UID.replace("-", "")} == {span.trace for span in spans}
    assert {root.span} == {span.parent for span in spans if span is not root}
    assert "" == root.parent
    ends = [by_name[name].ended_ns for name in ORDER[1:]]
    assert sorted(ends) == ends
    assert 1767323045 * 10**9 == root.began_ns
    assert root.ended_ns == by_name["bind"].ended_ns
    assert ["aliquot-scheduler"] * 3 + ["aliquot-node"] * 3 == [by_name[name].program for name in ORDER]


def test_spans_carry_pod_node_gpu_and_milliseconds():
    """The pod is on every span, node and GPU on all from the bind on, and the number of nodes on the filter."""
    by_name = {span.name: span.attributes for span in whole_way()}

    pod = {"k8s.namespace.name": "default", "k8s.pod.name": "a", "k8s.pod.uid": UID}
    assert all(pod.items() <= attributes.items() for attributes in by_name.values())
    assert all(attributes["aliquot.duration_ms"] >= 0 for attributes in by_name.values())
    assert (3, 2) == tuple(by_name["filter"][f"aliquot.{name}"] for name in ("nodes", "nodes_fitting"))
    share = {"k8s.node.name": "m", "aliquot.gpu.uuids": ["GPU-m-0"]}
    assert all(share.items() <= by_name[name].items() for name in ORDER if name != "filter")
    assert all("main" == by_name[name]["k8s.container.name"] for name in ORDER[3:])


def test_a_pod_continues_the_trace_that_its_author_wrote_on_it():
    """All spans are of the author's trace, and the root is a child of the author's span."""
    author = pod_trace("another").root
    spans = whole_way(**{TRACEPARENT: author.text})
    (root,) = (span for span in spans if span.name == "pod")

    assert {f"{author.trace_id:032x}"} == {span.trace for span in spans}
    assert f"{author.span_id:016x}" == root.parent


def test_a_failed_bind_is_a_span_with_its_error():
    """The reason is on the span, the pod has no root yet, and no context was written on it."""
    with receiver() as got, both(got.url) as (scheduler, _):
        way = Way(scheduler)
        why = way.bind("other")
        (span,) = got.wait(1)

    assert ("bind", why) == (span.name, span.error)
    assert "other" in why
    assert TRACEPARENT not in way.notes


def test_exemplars_of_the_scheduler_lead_to_the_spans():
    """In OpenMetrics the histograms of filter and bind have the ids of the spans that were recorded with them."""
    with receiver() as got, both(got.url) as (scheduler, _):
        way = Way(scheduler)
        way.filter("m", "n")
        way.bind()
        ids = {span.name: {"trace_id": span.trace, "span_id": span.span} for span in got.wait(3)}

        assert {verb: ids[verb] for verb in ("filter", "bind")} == way.exemplars()
        text = way.served.ask("GET", "/metrics", accept="text/plain")[1]
        assert b"trace_id" not in text
        assert b"aliquot_tracing_spans_dropped_total 0.0" in text


def test_exemplars_of_the_agent_lead_to_the_spans():
    """PreStartContainer's histogram has the trace of the pod; Allocate's has none, for its pod is not known then."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest

    with receiver() as got, both(got.url) as (scheduler, agent):
        way = Way(scheduler)
        way.bind()
        calls, registry = KubeletCalls("m", agent), CollectorRegistry()
        for collector in calls.collectors:
            registry.register(collector)
        start_on(calls, way.notes)
        (prepared,) = (span for span in got.wait(5) if span.name == "PreStartContainer")
        found = exemplars(generate_latest(registry).decode(), "aliquot_node_kubelet_call_seconds", "call")

    assert {"PreStartContainer": {"trace_id": prepared.trace, "span_id": prepared.span}} == found


def test_without_tracing_there_are_no_exemplars_and_no_context_is_written():
    """A scheduler without an endpoint writes OpenMetrics without exemplars, and its pods carry no context."""
    with receiver() as got, both(got.url) as (scheduler, _):
        way = Way(scheduler)
    way.served.extender.spans, way.served.scene.binder.traced = None, False
    way.filter("m", "n")

    assert "" == way.bind()
    assert {} == way.exemplars()
    assert TRACEPARENT not in way.notes


@pytest.mark.timeout(50 * TIMEOUT_S)
def test_a_receiver_that_is_silent_does_not_delay_the_scheduler():
    """Filters are answered while a batch has been taken and is not answered: none of them waits for it."""
    with receiver("never") as got, both(got.url) as (scheduler, _):
        way, answers = Way(scheduler), []
        while not got.posts or len(answers) < 100:
            answers.append(way.filter("m")["NodeNames"])

    assert all(["m"] == answer for answer in answers)


def test_a_container_without_a_context_is_not_traced():
    """A pod that was bound without tracing has no spans on its node."""
    with receiver() as got, both(got.url) as (_, agent):
        calls = KubeletCalls("m", agent)
        start_on(calls, {PLAN: "{}"})
        agent.record("last", 1, 2, {}, parent=None)
        got.wait(1)

    assert ["last"] == [span.name for span in got.spans]


def test_a_first_grant_before_the_container_started_is_not_its_own():
    """A container that is started again, whose tenant had the GPU before, has no such span."""
    with receiver() as got, both(got.url) as (scheduler, agent):
        way = Way(scheduler)
        way.bind()
        calls = KubeletCalls("m", agent)
        claim = Claim("name-1", PodKey(UID, "default", "a"), "main")
        meta = Meta(name="a", namespace="default", uid=UID, annotations=way.notes)
        before_ns = time.monotonic_ns()
        calls.prepared([Start(claim, meta, way.notes[PLAN], "t")], 0.0, "")
        calls.granted(status_of("t", before_ns - 10**9))
        agent.record("last", 1, 2, {}, parent=None)
        names = [span.name for span in got.wait(4)]

    assert sorted(["last", "bind", "pod", "PreStartContainer"]) == sorted(names)

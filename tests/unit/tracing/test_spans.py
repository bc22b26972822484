"""Spans on their way to a receiver: delivered, or dropped and counted; never waited for."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from otlp import Answers, receiver

from aliquot.model import extras
from aliquot.model.extras import MissingExtra
from aliquot.tracing.context import TraceContext
from aliquot.tracing.export import QUEUE
from aliquot.tracing.spans import Spans, open_spans, tracing, url_of

PARENT = TraceContext(7, 8)
SOON_S = 30.0


@contextmanager
def nowhere() -> Iterator[str]:
    """The URL of a port that is taken and does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def dropped(spans: Spans) -> float:
    return spans.backlog.dropped._value.get()


def record(spans: Spans, count: int) -> float:
    """Seconds that recording so many takes."""
    began_s = time.monotonic()
    for number in range(count):
        spans.record("filter", 1_000_000, 3_500_000, {"number": number}, parent=PARENT)
    return time.monotonic() - began_s


def test_a_span_arrives_with_its_times_parent_and_attributes():
    """The receiver gets the span as it was recorded, from the program by its name, with its length in milliseconds."""
    with receiver() as got, tracing("aliquot-test", got.url, {"k8s.node.name": "n"}) as spans:
        assert spans is not None
        made = spans.record(
            "bind", 1_000_000, 3_500_000, {"gpus": ["GPU-1"], "count": 2}, parent=PARENT, error="no room"
        )
        (span,) = got.wait(1)

    assert ("aliquot-test", "bind", 1_000_000, 3_500_000) == (span.program, span.name, span.began_ns, span.ended_ns)
    assert (f"{7:032x}", f"{8:016x}", f"{made.span_id:016x}") == (span.trace, span.parent, span.span)
    assert {"gpus": ["GPU-1"], "count": 2, "aliquot.duration_ms": 2.5} == span.attributes
    assert "no room" == span.error


def test_a_span_can_have_ids_that_were_chosen_before():
    """A root gets the ids that its children were told, and spans after it get their own."""
    with receiver() as got, tracing("aliquot-test", got.url) as spans:
        assert spans is not None
        spans.record("pod", 1, 9, {}, parent=None, itself=PARENT)
        other = spans.record("filter", 2, 3, {}, parent=PARENT)
        root, child = got.wait(2)

    assert (f"{7:032x}", f"{8:016x}", "") == (root.trace, root.span, root.parent)
    assert (root.trace, root.span) == (child.trace, child.parent)
    assert PARENT.span_id != other.span_id


def test_the_last_spans_are_sent_at_the_end():
    """What was recorded right before the program ends still arrives."""
    with receiver() as got:
        with tracing("aliquot-test", got.url) as spans:
            assert spans is not None
            record(spans, 3)
        assert 3 == len(got.wait(3))


def test_a_span_whose_parent_is_not_sampled_is_not_sent():
    """The author's decision against a trace holds for its children, and they count as nothing dropped."""
    with receiver() as got, tracing("aliquot-test", got.url) as spans:
        assert spans is not None
        spans.record("filter", 1, 2, {}, parent=TraceContext(7, 8, sampled=False))
        spans.record("bind", 1, 2, {}, parent=PARENT)
        got.wait(1)

    assert ["bind"] == [span.name for span in got.spans]
    assert 0 == dropped(spans)


@pytest.mark.parametrize("answers", ["garbage", "an error"])
def test_what_a_receiver_does_not_take_is_counted(answers: Answers):
    """Spans that were answered with an error or with no HTTP are dropped, and the next are tried again."""
    with receiver(answers) as got, tracing("aliquot-test", got.url) as spans:
        assert spans is not None
        until_s = time.monotonic() + SOON_S
        for expected in (1, 2):
            record(spans, 1)
            while dropped(spans) < expected and time.monotonic() < until_s:
                time.sleep(0.01)

        assert 2 == dropped(spans)
        assert got.posts >= 2


def test_recording_does_not_wait_for_a_receiver_that_is_silent_and_the_queue_is_bounded():
    """While the receiver says nothing, spans above the bound are dropped, and the end does not wait for it."""
    with receiver("never") as got:
        spans = open_spans("aliquot-test", got.url)
        assert spans is not None
        record(spans, QUEUE + 500)
        over = dropped(spans)
        spans.close()

    assert 500 == over  # had a record waited for the receiver, batches would have left the queue


def test_recording_does_not_wait_for_a_receiver_that_is_away():
    """With nothing at the address, recording costs what it costs otherwise, and the spans are counted as dropped."""
    with nowhere() as url:
        spans = open_spans("aliquot-test", url)
        assert spans is not None
        record(spans, 10)
        until_s = time.monotonic() + SOON_S
        while dropped(spans) < 10 and time.monotonic() < until_s:
            time.sleep(0.01)
        spans.close()

    assert 10 == dropped(spans)


def test_the_loss_and_the_return_of_a_receiver_are_logged_once_each(capsys: pytest.CaptureFixture[str]):
    """One line says that spans are dropped, however many; one that they are delivered again."""
    with receiver() as got, tracing("aliquot-test", got.url) as spans:
        assert spans is not None
        for delivered in (True, False, False, True, True):
            spans.backlog.admit()
            spans.backlog.sent(1, delivered=delivered, endpoint=got.url)
    lines = capsys.readouterr().err.splitlines()

    assert 1 == len([line for line in lines if "not delivered" in line])
    assert 1 == len([line for line in lines if "delivered again" in line])


def test_traces_are_posted_below_the_endpoint():
    """The base address of a receiver and the full one of its traces both work."""
    assert (
        "http://h:4318/v1/traces"
        == url_of("http://h:4318")
        == url_of("http://h:4318/")
        == url_of("http://h:4318/v1/traces")
    )


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    """With an endpoint and without OpenTelemetry the error says what to install."""
    monkeypatch.setattr(extras, "find_spec", lambda module: None)

    with pytest.raises(MissingExtra, match="setup EXTRAS=otel"):
        open_spans("aliquot-test", "http://h:4318")


def test_without_an_endpoint_nothing_of_opentelemetry_is_loaded():
    """Scheduler and agent, imported whole and opened without an endpoint, load no module of it and start no thread."""
    code = (
        "import sys, threading; import aliquot.scheduler.program, aliquot.node.agent;"
        "from aliquot.tracing.spans import open_spans; assert open_spans('x', '') is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')], threading.active_count())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "[] 1\n" == said

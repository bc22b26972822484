"""W3C trace contexts, and the trace of a pod."""

import pytest

from aliquot.tracing.context import TraceContext, pod_trace, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
UID = "0c8d7a52-9a3e-4c51-8f4e-1f6f5d3f6b11"


@pytest.mark.parametrize("flags, sampled", [("01", True), ("00", False), ("03", True)])
def test_a_context_is_read_and_written(flags: str, sampled: bool):
    """The header's ids and its flag for sampling come back in the header that is written."""
    context = read_traceparent(f"00-{TRACE}-{SPAN}-{flags}")

    assert TraceContext(int(TRACE, 16), int(SPAN, 16), sampled) == context
    assert f"00-{TRACE}-{SPAN}-0{int(sampled)}" == context.text


def test_a_later_version_of_the_header_is_read_by_its_first_four_fields():
    """What a later version appends is ignored, as the standard wants."""
    assert TraceContext(int(TRACE, 16), int(SPAN, 16)) == read_traceparent(f"cc-{TRACE}-{SPAN}-01-what-follows")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_an_invalid_context_is_treated_as_absent(text: str):
    """A header that the standard calls invalid begins no trace and stops none."""
    assert read_traceparent(text) is None
    assert UID.replace("-", "") == f"{pod_trace(UID, text).root.trace_id:032x}"


def test_a_pods_trace_is_found_by_its_uid():
    """Without a context of its author the trace id is the pod's uid, and every program computes the same root."""
    trace = pod_trace(UID)

    assert UID.replace("-", "") == f"{trace.root.trace_id:032x}"
    assert trace.parent is None
    assert trace == pod_trace(UID)
    assert trace.root.span_id != pod_trace(UID[:-1] + "2").root.span_id


def test_a_pod_continues_the_trace_of_its_author():
    """The pod's own span is a child of the context on it; one that is not sampled is not recorded."""
    parent = TraceContext(int(TRACE, 16), int(SPAN, 16))
    trace = pod_trace(UID, parent.text)

    assert parent == trace.parent
    assert (parent.trace_id, pod_trace(UID).root.span_id) == (trace.root.trace_id, trace.root.span_id)
    assert not pod_trace(UID, f"00-{TRACE}-{SPAN}-00").root.sampled


def test_a_uid_that_is_no_uuid_has_a_trace_too():
    """Any uid gives valid ids."""
    assert read_traceparent(pod_trace("uid-1").root.text) == pod_trace("uid-1").root

"""A request on its way from the command line to the engine."""

from fractions import Fraction

import msgspec
import pytest

from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest, Labels
from aliquot.standalone.wire import LeaseCall, decode_call, encode_call


@pytest.mark.parametrize(
    "request_",
    [
        GpuRequest(300),
        GpuRequest(300, 600, Memory(mib=4096), "V100|A10", "0", "lab", Labels("a", "b", "c"), "all", wake_us=5000),
        GpuRequest(2500, memory=Memory(part=Fraction(1, 4)), mixed=True),
        GpuRequest(1000, memory=Memory(part=Fraction(1, 10)), enforce="memory"),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_: GpuRequest):
    """Every field of a request is the same on both sides of the engine's socket."""
    arrived = decode_call(encode_call(LeaseCall("a", request_, cpu_bind=2)))

    assert isinstance(arrived, LeaseCall)
    assert (request_, 2) == (arrived.request, arrived.cpu_bind)


@pytest.mark.parametrize("memory", [b'{"part":"1/0"}', b'{"part":"half"}'])
def test_a_part_that_is_not_a_fraction_is_refused(memory: bytes):
    """A call with a malformed part of memory is not understood."""
    with pytest.raises(msgspec.MsgspecError):
        decode_call(b'{"verb":"lease","name":"a","request":{"request_milli":300,"memory":%s}}' % memory)


@pytest.mark.parametrize(
    "line", [b"{}", b'{"verb":"status"}', b'{"verb":"lease","name":"a"}', b'{"verb":"delete"}', b'{"verb":"logs"}']
)
def test_a_call_without_what_its_verb_needs_is_refused(line: bytes):
    """Each verb has fields of its own; a call that lacks one, or whose verb does not exist, is not understood."""
    with pytest.raises(msgspec.MsgspecError):
        decode_call(line)

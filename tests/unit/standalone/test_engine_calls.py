"""A request on its way from the command line to the engine."""

from fractions import Fraction

import msgspec
import pytest

from aliquot.model.quantities import Memory
from aliquot.model.requests import BadRequest, GpuRequest, Labels
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


@pytest.mark.parametrize(
    "line", [b"{}", b'{"verb":"status"}', b'{"verb":"lease","name":"a"}', b'{"verb":"delete"}', b'{"verb":"logs"}']
)
def test_a_call_without_what_its_verb_needs_is_refused(line: bytes):
    """Each verb has fields of its own; a call that lacks one, or whose verb does not exist, is not understood."""
    with pytest.raises(msgspec.MsgspecError):
        decode_call(line)


@pytest.mark.parametrize("part", ["1e99999999", "1/0", "half", "-1/2", "0.5", " 1/2", "9" * 19])
def test_a_part_of_memory_is_a_short_fraction(part: str):
    """A text whose value would take hours to compute, or is none, is refused at once."""
    line = b'{"verb":"lease","name":"a","request":{"request_milli":300,"memory":{"part":"%s"}}}' % part.encode()
    with pytest.raises(msgspec.MsgspecError):
        decode_call(line)


def test_a_call_asks_for_a_share_that_makes_sense():
    """What the command line would have refused is refused of a caller that speaks the protocol itself."""
    with pytest.raises(BadRequest, match="asks for nothing"):
        decode_call(b'{"verb":"lease","name":"a","request":{"request_milli":0}}')

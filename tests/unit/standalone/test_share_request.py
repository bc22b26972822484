"""A request on its way from the command line to the engine."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest

from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest, Labels
from aliquot.standalone.wire import ShareRequest


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
    line = msgspec.json.encode(ShareRequest.of(request_, cpu_bind=2))
    arrived = msgspec.json.decode(line, type=ShareRequest)

    assert (request_, 2) == (arrived.request, arrived.cpu_bind)


def test_no_limit_is_left_out():
    """A request without a limit has none on the wire."""
    assert b'{"request_milli":300}' == msgspec.json.encode(ShareRequest.of(GpuRequest(300)))

"""What of a request is enforced, and which words contradict it."""

import pytest

from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest


@pytest.mark.parametrize(
    ("expected", "request_"),
    [
        ("all", GpuRequest(300)),
        ("all", GpuRequest(300, memory=Memory(mib=1024))),
        ("all", GpuRequest(2500)),
        ("never", GpuRequest(1000)),
        ("never", GpuRequest(2000)),
        ("memory", GpuRequest(1000, memory=Memory(mib=1024))),
        ("all", GpuRequest(1000, enforce="all")),
    ],
)
def test_only_whole_gpus_are_left_ungated(expected: str, request_: GpuRequest):
    """Whole GPUs are not enforced but for a memory limit that was given; a part of a GPU is enforced in full."""
    assert expected == request_.enforced()

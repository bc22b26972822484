"""What of a request is enforced, and which words contradict it."""

import pytest

from aliquot.model.quantities import BadQuantity, Memory
from aliquot.model.requests import BadRequest, GpuRequest, checked, parse_enforce


def refused(request: GpuRequest) -> str:
    """The sentence with which a request is refused."""
    with pytest.raises(BadRequest) as error:
        checked(request, request_name="request", limit_name="limit", enforce_name="enforce")
    return str(error.value)


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


def test_what_the_library_does_needs_the_library():
    """Whole GPUs whose program is to be bound to cores are enforced as far as memory."""
    assert "memory" == GpuRequest(1000).enforced(library=True)


@pytest.mark.parametrize("word", ["never", "memory"])
@pytest.mark.parametrize("milli", [300, 2500])
def test_a_part_of_a_gpu_is_always_enforced(word: str, milli: int):
    """A request that shares a GPU with others is refused anything less than all."""
    assert f"enforce {word} needs whole GPUs" in refused(GpuRequest(milli, enforce=word))  # type: ignore[arg-type]


def test_a_memory_limit_that_is_not_enforced_is_refused():
    """Never and a memory limit contradict each other."""
    assert "never holds no memory limit" in refused(GpuRequest(1000, memory=Memory(mib=1024), enforce="never"))


def test_a_misspelt_word_is_refused_with_the_list():
    """The error names what may be written."""
    with pytest.raises(BadQuantity, match='"nevr" is not one of never, memory, all'):
        parse_enforce("nevr")

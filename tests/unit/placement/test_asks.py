"""What can be asked: text from people becomes integers, and nonsense is refused."""

from fractions import Fraction

import pytest
from asking import asking

from aliquot.model.quantities import Memory
from aliquot.model.requests import BadRequest, GpuRequest, Labels
from aliquot.placement.asks import Ask, Shape, model_matches


def test_an_ask_is_made_of_a_request():
    """Fractions, memory, models and labels of a request are carried over."""
    request = GpuRequest(2500, 3000, Memory(part=Fraction(1, 4)), "v100|A10", labels=Labels(exclusion="x"))
    made = Ask(request, cpu_milli=1000, memory_mib=512)

    assert (2, 500, 3000, 250_000) == (made.whole, made.rest_milli, made.request.limit_milli, made.gpu_mem_ppm)
    assert (("A10", "v100"), 1000, 512, "x") == (made.models, made.cpu_milli, made.memory_mib, made.labels.exclusion)


def test_a_shape_leaves_out_what_scores_do_not_depend_on():
    """Asks that differ in labels, names, limit and priority have one shape."""
    plain = asking(0, 300, cpu_milli=500)
    labelled = asking(0, 300, 600, cpu_milli=500, gpu_id="v", labels=Labels("a", "b", "c"), priority=9)

    assert plain.shape == labelled.shape == Shape(0, 300, cpu_milli=500)


@pytest.mark.parametrize(
    ("ask", "size_mib", "mib"),
    [
        (asking(0, 300), 16384, 4915),
        (asking(0, 300, gpu_mib=2048), 16384, 2048),
        (asking(0, 300, gpu_mem_ppm=500_000), 16384, 8192),
        (asking(1), 16384, 16384),
        (asking(1, gpu_mib=2048), 16384, 2048),
        (asking(2, 500, gpu_mib=2048), 16384, 2048),
    ],
)
def test_memory_follows_compute_unless_asked(ask, size_mib, mib):
    """The shared or only device gives what was asked, or the same part as of its compute, rounded down."""
    assert mib == ask.shape.memory_on(size_mib)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"whole": -1}, "request_milli -1000 is negative"),
        ({"cpu_milli": -1}, "cpu_milli -1 is negative"),
        ({"gpu_mem_ppm": 1_000_001}, "is more than a device"),
        ({"whole": 2, "labels": Labels(affinity="x")}, r'affinity "x" means one device, 2\.00 GPUs are on 2'),
    ],
)
def test_nonsense_is_refused(fields, says):
    """Negative numbers, more memory than a device has and labels that would split are told in one sentence."""
    with pytest.raises(BadRequest, match=says):
        asking(**fields)


@pytest.mark.parametrize(
    ("asked", "model", "same"),
    [
        ("V100", "Tesla V100-SXM2-16GB", True),
        ("tesla-v100", "Tesla V100-SXM2-16GB", True),
        ("Tesla-V100-SXM2-16GB", "Tesla V100-SXM2-16GB", True),
        ("A10", "NVIDIA A100-SXM4-80GB", False),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
        ("V100M16", "V100M32", False),
    ],
)
def test_models_are_known_by_whole_words(asked, model, same):
    """A name is found in a model as words in a row, whatever separates them and in any case."""
    assert same == model_matches(asked, model)

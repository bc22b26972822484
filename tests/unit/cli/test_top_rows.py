"""The drawn rows of `aliquot top`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_facts import MadeUpFacts

from aliquot.cli.top_views import Look, bar, head, kept, ordered, shares_bar, spark


@given(st.integers(-10, 3000), st.integers(1, 60), st.integers(0, 1000))
def test_a_bar_is_always_as_wide(milli: int, cells: int, limit: int):
    """Whatever is used and allowed, a bar has its number of cells."""
    assert cells == len(bar(milli, cells, limit))


@pytest.mark.parametrize(
    ("milli", "limit", "drawn"),
    [(0, 1000, "░░░░"), (500, 1000, "██░░"), (1000, 1000, "████"), (540, 1000, "██▏░"), (9999, 1000, "████"),
     (250, 500, "█░│░")],
)  # fmt: skip
def test_a_bar_is_as_full_as_its_share(milli: int, limit: int, drawn: str):
    """Full cells for whole parts, an eighth for each eighth of a cell, and a stroke at a limit below the whole."""
    assert drawn == bar(milli, 4, limit)


@given(st.lists(st.floats(0, 5000), max_size=50), st.integers(1, 40))
def test_a_sparkline_is_always_as_wide(values: list[float], cells: int):
    """Too many values show the last ones, too few stand at the right."""
    assert cells == len(spark(values, 1000, cells))


def test_a_sparkline_rises():
    """More is higher."""
    assert "▁▃▅█" == spark([0, 300, 600, 1000], 1000, 4)


def test_letters_stand_for_tenants():
    """The bar of promises has a letter a tenant, as wide as its request, and dots for what is free."""
    gpu = next(gpu for gpu in MadeUpFacts(nodes=4).gpus() if gpu.state == "shared")
    drawn = shares_bar(gpu, 20)

    assert 20 == len(drawn)
    assert [round(share.request_milli * 20 / 1000) for share in gpu.shares] == [
        drawn.count(chr(ord("a") + number)) for number in range(len(gpu.shares))
    ]


@pytest.mark.parametrize("sort", ["name", "busy", "free", "memory"])
def test_sorting_loses_nobody(sort: str):
    """Every order has every GPU once."""
    gpus = MadeUpFacts(nodes=3).gpus()

    assert {gpu.uuid for gpu in gpus} == {gpu.uuid for gpu in ordered(gpus, sort)}


def test_the_head_says_who_waits():
    """The first line has GPUs, use, promises, memory, and how many wait."""
    facts = MadeUpFacts(nodes=4)
    line = head(Look("here", 10.0, facts.gpus(), facts.workloads()))

    assert re.match(r"\d+ waiting   32 GPUs   busy [\d.]+   promised [\d.]+   memory ", line)


def test_a_promise_is_never_rounded_up():
    """99.96 is not 100."""
    assert ("99.9 %", "100 %", "-") == (kept(99.96), kept(100.0), kept(None))

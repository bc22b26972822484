"""CPU cores near a GPU, chosen for one tenant beside others."""

from __future__ import annotations

import os

import pytest

from aliquot.driver.gpu import TooManyCores, least_used, nearest_cores


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may use cores 0 to 7."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def test_the_least_used_cores_come_first():
    """Of equals the lower number."""
    assert (2, 0) == least_used([0, 1, 2, 3], 2, {0: 1, 1: 2, 3: 5})


def test_near_cores_come_before_unused_ones():
    """A core that is near and used is taken before one that is far and not; far ones only fill up."""
    assert "4-5" == nearest_cores(2, [4, 5], {4: 3, 5: 3})
    assert "1,4-5" == nearest_cores(3, [4, 5], {0: 1})


def test_more_cores_than_there_are_is_refused():
    """The sentence names how many there are."""
    with pytest.raises(TooManyCores, match="may use 8 CPU cores"):
        nearest_cores(9)

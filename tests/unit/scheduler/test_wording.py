"""Refusals in two wordings: another one for a pod that is woken, the same one for the call that follows from it."""

from itertools import pairwise

import pytest
from control_scene import Clock

from aliquot.scheduler.extender import wire
from aliquot.scheduler.extender.wire import BURST, EVERY_S, Wording


def heard(*calls: tuple[float, str]) -> list[bool]:
    """The wordings of refusals: each so many seconds after the one before, with the pod in this version."""
    clock = Clock()
    words, found = Wording(clock), []
    for wait_s, version in calls:
        clock.now_s += wait_s
        found.append(words.next_is_second("default/a", version))
    return found


def test_a_woken_pod_is_refused_in_other_words_and_its_retry_in_the_same():
    """A new pod has the plain wording; each wake turns to the other one, the call for the pod so changed does not."""
    assert [False, False, True, True] == heard((0, "1"), (0.02, "2"), (5, "2"), (0.02, "3"))


def test_how_long_a_pod_slept_is_of_no_account():
    """A pod that is woken half a second after a refusal, or at once, has other words as well."""
    assert [False, False, True, True, False] == heard((0, "1"), (0.02, "2"), (0.5, "2"), (0.02, "3"), (0, "3"))


def test_a_retry_may_come_late():
    """A retry that kube-scheduler held back for its back-off has the words of the refusal that it follows from."""
    assert [False, False] == heard((0, "1"), (10, "2"))


def test_a_pod_that_is_woken_before_its_refusal_is_written_is_no_retry():
    """The call for a pod that is still as it was cannot follow from the refusal before it."""
    assert [False, True, True] == heard((0, "1"), (0.01, "1"), (0.01, "2"))


def test_a_change_by_others_is_no_retry():
    """A pod that is changed after its retry was woken by something else."""
    assert [False, False, True] == heard((0, "1"), (0.02, "2"), (1, "3"))


def test_a_pod_that_is_woken_all_the_time_has_new_words_once_a_second():
    """After the first few, whatever wakes it, so that kube-scheduler does not write without end."""
    wakes = heard(*[(0.01, "1")] * 1000)
    changes = sum(before != after for before, after in pairwise(wakes))

    assert BURST - 1 + 10 / EVERY_S - 1 <= changes <= BURST - 1 + 10 / EVERY_S


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch):
    """Of very many pods the one that was asked about longest ago is forgotten."""
    monkeypatch.setattr(wire, "MAX_REMEMBERED", 2)
    words = Wording(Clock())
    for key in ("a", "b", "a", "c"):
        words.next_is_second(key, "1")

    assert (False, True, False) == (
        words.next_is_second("a", "1"),
        words.next_is_second("c", "1"),
        words.next_is_second("b", "1"),
    )

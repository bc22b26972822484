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


@pytest.mark.parametrize(
    ("calls", "second"),
    [
        ([(0, "1"), (0.02, "2"), (5, "2"), (0.02, "3")], [False, False, True, True]),
        ([(0, "1"), (0.02, "2"), (0.5, "2"), (0.02, "3"), (0, "3")], [False, False, True, True, False]),
        ([(0, "1"), (10, "2")], [False, False]),
        ([(0, "1"), (0.01, "1"), (0.01, "2")], [False, True, True]),
        ([(0, "1"), (0.02, "2"), (1, "3")], [False, False, True]),
    ],
    ids=["a wake after 5 s", "soon and at once", "a late retry", "before the refusal is written", "a change by others"],
)
def test_a_woken_pod_is_refused_in_other_words_and_its_retry_in_the_same(calls: list, second: list[bool]):
    """A new pod has the plain wording; each wake turns to the other one, the call for the pod so changed does not.

    A retry may be held back for long; it cannot follow from a refusal that is not written, or from another's change.
    """
    assert second == heard(*calls)


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

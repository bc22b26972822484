"""Refusals in two wordings: another one for who slept, the same one for a second look."""

from __future__ import annotations

import pytest
from control_scene import Clock

from aliquot.scheduler import wording
from aliquot.scheduler.wording import Wording


def test_who_slept_is_refused_in_other_words_and_the_second_look_in_the_same():
    """A new pod has the plain wording; each sleep turns to the other one, a look right after it does not."""
    clock = Clock()
    words, heard = Wording(clock), []
    for wait_s in (0, 0.02, 5, 0.02, 0.02, 300, 0.5):
        clock.now_s += wait_s
        heard.append(words.other("default/a"))

    assert [False, False, True, True, True, False, False] == heard
    assert not words.other("default/b")


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch):
    """Of very many pods the one that was asked about longest ago is forgotten."""
    monkeypatch.setattr(wording, "MAX_REMEMBERED", 2)
    clock = Clock()
    words = Wording(clock)
    for key in ("a", "b", "a", "c"):
        words.other(key)
    clock.now_s += 10

    assert (True, True, False) == (words.other("a"), words.other("c"), words.other("b"))

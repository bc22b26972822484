"""The annotation that says what became of a pod's plan on its node."""

from __future__ import annotations

import pytest

from aliquot.kube.planstatus import read_plan_status, written_outcome


def test_a_container_with_its_share_is_written_in_the_released_word():
    """Programs that read the annotation find the word that it has had from the start."""
    assert "main: seated" == written_outcome("main", "provisioned", "")


def test_other_outcomes_are_written_with_their_reason():
    """A container that waits or is refused is written with the reason in brackets."""
    assert "main: waits (the GPU is full)" == written_outcome("main", "waits", "the GPU is full")


@pytest.mark.parametrize("word", ["seated", "provisioned"])
def test_both_words_for_a_share_are_read(word: str):
    """A container that has its share is read as provisioned, whichever word the agent of its node writes."""
    status = f"main: {word}; side: waits (the GPU is full); last: {word}"

    assert "main: provisioned; side: waits (the GPU is full); last: provisioned" == read_plan_status(status)


def test_names_and_reasons_are_read_as_they_are():
    """Only the outcome of a container is replaced, not its name or a reason that has the same word."""
    status = "seated: waits (seated)"

    assert status == read_plan_status(status)

"""What is said of a name that does not exist."""

import pytest

from aliquot.lib.misspelt import hint

NAMES = ["default/crash", "default/web", "other/job"]


@pytest.mark.parametrize(
    ("expected", "word"),
    [
        ("did you mean web?", "wev"),
        ("did you mean crash?", "default/crahs"),
        ("did you mean other/job?", "other/jobs"),
        ("there is default/crash, default/web, other/job", "zz"),
        ("there is default/crash, default/web, other/job", "default/zz"),
    ],
)
def test_the_name_that_was_probably_meant_is_suggested(expected: str, word: str):
    """A name much like an existing one brings that one up; the namespace alone does not make two names alike."""
    assert expected == hint(word, NAMES, prefix="default/")


def test_a_long_list_is_cut():
    """Twenty names are listed at most, with the number of those left out; without any name it says none."""
    assert hint("zz", [f"{n:04}" for n in range(25)]).endswith("0019 and 5 more")
    assert "there is none" == hint("zz", [])

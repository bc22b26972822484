"""Hints for a name that does not exist: the one that was probably meant, or all that exist."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

SHOWN: Final = 20
_ALIKE: Final = 0.65


def closest(word: str, names: Sequence[str]) -> str:
    """The name most similar to `word`; empty if none is similar."""
    return next(iter(get_close_matches(word, names, n=1, cutoff=_ALIKE)), "")


def hint(word: str, names: Sequence[str], *, prefix: str = "") -> str:
    """`did you mean web?`, or `there is a, b`, of at most `SHOWN` names; they are compared without the `prefix`."""
    short = {name.removeprefix(prefix): name for name in names}
    if found := closest(word.removeprefix(prefix), list(short)):
        return f"did you mean {found}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"there is {', '.join(names[:SHOWN]) or 'none'}{more}"

"""The kinds that `aliquot get` lists, their other names, and how the words after `get` are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aliquot.lib.misspelt import closest
from aliquot.model.errors import UserError

HOURS: Final = "hours"
KINDS: Final = {
    "sharepods": ("sharepod", "sp", "shp", "pods", "pod", "po"),
    "tenants": ("tenant", "tn", "runs", "run"),
    "gpus": ("gpu", "devices", "device"),
}
"""Kind -> its other names."""
ALL: Final = "all"
_NAMES: Final = {
    name: kind for kind, others in {**KINDS, HOURS: ("hour", "gpu-hours")}.items() for name in (kind, *others)
}
"""GPU-hours are of a time that has passed, so they are not among `all`."""
_ELSEWHERE: Final = {
    **dict.fromkeys(("node", "nodes", "no"), "an engine is of one machine; its GPUs are listed by aliquot get gpus"),
    **dict.fromkeys(("namespace", "namespaces", "ns"), "SharePods with their namespaces are listed by aliquot get -A"),
}
"""What shows the nearest thing to a kind of Kubernetes that an engine does not have."""


def kind_names() -> list[str]:
    """Every word that names a kind."""
    return [*_NAMES, ALL]


def read_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Kinds and names of `sharepods a b`, `sharepod/a`, `gpus,tenants`, `all` or nothing, which is all SharePods.

    Raises:
        UserError: a word names no kind.
    """
    if not words:
        return ["sharepods"], []
    kind, stroke, name = words[0].partition("/")
    if stroke and kind in _NAMES:
        names = [name, *(word.removeprefix(f"{kind}/") for word in words[1:])]
        return [_NAMES[kind]], names
    if words[0] == ALL:
        if len(words) > 1:
            raise UserError("all is every kind, and takes no name: aliquot get all")
        return list(KINDS), []
    kinds = [_kind(word) for word in words[0].split(",")]
    if HOURS in kinds and (len(kinds) > 1 or len(words) > 1):
        raise UserError("hours are listed alone and without names; choose what they are summed by with --by")
    if len(kinds) > 1 and len(words) > 1:
        raise UserError(f"names belong to one kind, {words[0]} are {len(kinds)}; write one kind before the names")
    return kinds, list(words[1:])


def _kind(word: str) -> str:
    if word in _NAMES:
        return _NAMES[word]
    close = closest(word, kind_names())
    hint = f"did you mean {close}?" if close else f"list {', '.join(KINDS)}, {HOURS} or all"
    raise UserError(f'"{word:.60}" is no kind of resource; {_ELSEWHERE.get(word, hint)}')

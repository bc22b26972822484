"""The pages: each renders itself, from facts and a query, as blocks that can be updated one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aliquot.web.facts import Facts
from aliquot.web.render import Block, block

Query = Mapping[str, str]
NO_GPU: Final = (
    "No GPU is known yet. In a cluster each node's agent, aliquot node, reports its GPUs; kubectl aliquot doctor "
    "shows what is missing."
)


@dataclass(frozen=True)
class Drawn:
    """A page: the blocks that update by themselves, and the data of its static frame."""

    title: str
    blocks: list[Block]
    frame: dict[str, Any] = field(default_factory=dict)


Draw = Callable[[Facts, Query], Drawn]


class NotHere(Exception):
    """The thing that a page is about does not exist (any more)."""


def misread(query: Query, known: Mapping[str, Iterable[str] | None]) -> list[Block]:
    """A sentence for each parameter that a page does not take and for each word that it does not know.

    `known` are the parameters with the words that they may be; None for any word.
    """
    found = []
    for name, word in query.items():
        words = known.get(name)
        if name not in known:
            found.append(f'There is no parameter "{name[:40]}" here; the page takes {", ".join(known)}.')
        elif word and words is not None and word not in (allowed := list(words)):
            found.append(f'{name} "{word[:40]}" is not one of {", ".join(allowed)}.')
    return [block("misread", "blocks/none.html", text=" ".join(found))] if found else []


def number(query: Query, name: str, default: int) -> int:
    """A whole number of a query that is not below zero, or the default."""
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default

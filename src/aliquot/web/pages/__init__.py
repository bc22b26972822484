"""The pages: each renders itself, from facts and a query, as blocks that can be updated one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aliquot.web.facts import Facts
from aliquot.web.render import Block

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


def number(query: Query, name: str, default: int) -> int:
    """A whole number of a query that is not below zero, or the default."""
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default

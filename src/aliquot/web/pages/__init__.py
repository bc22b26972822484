"""The pages: each renders itself, from facts and a query, as blocks that can be updated one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from aliquot.model.quantities import format_milli
from aliquot.status import Gpu, StatusSource
from aliquot.web.render import Block, address, block, clock_time

T = TypeVar("T")
Query = Mapping[str, str]
NO_GPU: Final = (
    "No GPU is known yet. In a cluster each node's agent, aliquot node, reports its GPUs; kubectl aliquot doctor "
    "shows what is missing."
)
STALE_S: Final = 20.0
"""Sources are read every five seconds where no page is open, and once a second otherwise."""


@dataclass(frozen=True)
class Drawn:
    """A page: the blocks that update by themselves, and the data of its static frame."""

    title: str
    blocks: list[Block]
    frame: dict[str, Any] = field(default_factory=dict)


Draw = Callable[[StatusSource, Query], Drawn]


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


def one_page(query: Query, path: str, found: Sequence[T], per_page: int, what: str) -> tuple[Sequence[T], list[Block]]:
    """The part of what was found that the query's `page` shows, and where there are several pages the way to them."""
    text = query.get("page", "")
    pages = max(1, -(-len(found) // per_page))
    page = min(max(1, int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1), pages)
    first, last = (page - 1) * per_page, min(page * per_page, len(found))
    if pages == 1:
        return found, []

    def at(wanted: int) -> str:
        return address(path, **{**query, "page": wanted if wanted > 1 else ""}) if 1 <= wanted <= pages else ""

    pager = block(
        "pager", "blocks/pager.html", first=first + 1, last=last, total=len(found), previous=at(page - 1),
        following=at(page + 1), what=what,
    )  # fmt: skip
    return found[first:last], [pager]


def stale_since(facts: StatusSource) -> float | None:
    """The moment of the last reading, if it is long ago."""
    as_of_s = facts.as_of_s
    return as_of_s if time.time() - as_of_s > STALE_S else None


def news(facts: StatusSource) -> Block:
    """A banner where the facts are old."""
    since_s = stale_since(facts)
    return block("news", "blocks/news.html", since="" if since_s is None else clock_time(since_s))


SHADES = 6
"""As many as `aliquot.css` has colours for tenants."""


class BarPart(NamedTuple):
    """A rectangle of a bar: from, how long, in which shade."""

    x: int
    width: int
    shade: int


class Bar(NamedTuple):
    """Two lanes: the promised and the used part, and the same in words."""

    promised: list[BarPart]
    used: list[BarPart]
    words: str


def compute_bar(gpu: Gpu) -> Bar:
    """Compute: 1000 is the whole GPU."""
    promised = _lane([share.request_milli for share in gpu.shares])
    used = _lane([share.usage_milli for share in gpu.shares] if gpu.measured else [])
    got = f"{gpu.busy_milli / 1000:.2f} used" if gpu.measured else "use not known"
    words = f"{format_milli(1000 - gpu.free_milli)} promised, {got}"
    return Bar(promised, used, words)


def memory_bar(gpu: Gpu) -> Bar:
    """Memory: 1000 is all of the device's."""
    size = max(1, gpu.memory_mib)
    promised = _lane([share.memory_mib * 1000 // size for share in gpu.shares])
    used = _lane([share.memory_used_mib * 1000 // size for share in gpu.shares] if gpu.measured else [])
    got = f"{gpu.memory_used_mib / 1024:.1f} GiB used" if gpu.measured else "use not known"
    words = f"{(gpu.memory_mib - gpu.free_mib) / 1024:.1f} GiB promised, {got}"
    return Bar(promised, used, words)


def with_bars(gpus: Iterable[Gpu]) -> list[tuple[Gpu, Bar, Bar]]:
    """Each GPU with its bars of compute and of memory."""
    return [(gpu, compute_bar(gpu), memory_bar(gpu)) for gpu in gpus]


def _lane(lengths: list[int]) -> list[BarPart]:
    """Parts end to end; what would exceed the end is cut off."""
    parts, at = [], 0
    for number, length in enumerate(lengths):
        width = min(length, 1000 - at)
        if width > 0:
            parts.append(BarPart(at, width, number % SHADES))
            at += width
    return parts

"""Whether the facts of a page are old: the first block of each page, empty as long as they are not."""

from __future__ import annotations

import time
from typing import Final

from aliquot.status import StatusSource
from aliquot.web.render import Block, block, clock_time

STALE_S: Final = 20.0
"""Sources are read every five seconds where no page is open, and once a second otherwise."""


def stale_since(facts: StatusSource) -> float | None:
    """The moment of the last reading, if it is long ago."""
    as_of_s = facts.as_of_s
    return as_of_s if time.time() - as_of_s > STALE_S else None


def news(facts: StatusSource) -> Block:
    """A banner where the facts are old."""
    since_s = stale_since(facts)
    return block("news", "blocks/news.html", since="" if since_s is None else clock_time(since_s))

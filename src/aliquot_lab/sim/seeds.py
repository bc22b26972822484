"""Seeds as people write them: `42`, `42..51`, `42,44,50..52`."""

from __future__ import annotations

from typing import Final

from aliquot.model.errors import UserError

MAX_SEEDS: Final = 10_000


def seed_list(text: str) -> list[int]:
    """The seeds of a text, in order, each once.

    Raises:
        UserError: no whole number from 0, a range that runs backwards, or more than 10,000 seeds.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        low, high = _seed(first, text), _seed(last, text) if dots else _seed(first, text)
        if high < low:
            raise UserError(f'seeds "{text}": {low}..{high} runs backwards; write {high}..{low}')
        if high - low >= MAX_SEEDS:
            raise UserError(f'seeds "{text}": that are more than {MAX_SEEDS}; ask for fewer')
        seeds.update(dict.fromkeys(range(low, high + 1)))
    return list(seeds)


def _seed(text: str, whole: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise UserError(f'seeds "{whole}": "{text}" is not a seed; write them as 42, 42..51 or 42,44')
    return int(text)

"""How long to wait before trying again: doubling, with jitter, with a ceiling."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


def doubled_s(first_s: float, max_s: float, failures: int) -> float:
    """The wait after `failures` failures, without jitter: `first_s` doubled that many times, at most `max_s`."""
    return min(first_s * float(1 << min(failures, 40)), max_s)


@dataclass
class Backoff:
    """Waits of `first_s`, doubling up to `max_s`, each multiplied by a random factor of 0.5 to 1.5.

    Jitter keeps clients that were cut off together from coming back together.
    """

    first_s: float = 0.05
    max_s: float = 30.0
    random: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next_s(self) -> float:
        """The wait after one more failure, in seconds."""
        base_s = doubled_s(self.first_s, self.max_s, self.failures)
        self.failures += 1
        return base_s * (0.5 + self.random.random())

    def reset(self) -> None:
        """Note a success: the next failure counts as the first again."""
        self.failures = 0

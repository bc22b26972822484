"""Go's `math/rand` generator (the additive lagged Fibonacci source), for the seeds and draws the FGD artifact used.

The published experiments were drawn by Go programs, so replaying them needs Go's stream: y[n] = y[n-607] + y[n-273] mod
2^64. The 607 constants that Go's seeding mixes in are not written here: they are worked out from the first 607 outputs
of one seed (42, published with the trace), and any other seed's start follows from them.

Source: the Go standard library's documented generator (stable since Go 1); replay/go_rand_first607.csv of the trace.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final, TypeVar

LENGTH: Final = 607
LAG: Final = 273
_MASK64: Final = 2**64 - 1
_LEHMER: Final = 2**31 - 1
_KNOWN_SEED: Final = 42

T = TypeVar("T")


def _mixed(seed: int) -> list[int]:
    """What seeding alone gives for the 607 words of the state, before the constants are mixed in."""
    state = seed % _LEHMER or 89482311
    words = []
    for position in range(-20, LENGTH):
        state = state * 48271 % _LEHMER
        if position >= 0:
            word = state << 40
            state = state * 48271 % _LEHMER
            word ^= state << 20
            state = state * 48271 % _LEHMER
            words.append((word ^ state) & _MASK64)
    return words


def _order() -> list[int]:
    """Where the word that output n - 607 stands for lies in the state: the feed runs downwards from 333."""
    return [(LENGTH - LAG - 1 - n) % LENGTH for n in range(LENGTH)]


@cache
def _constants() -> tuple[int, ...]:
    """The 607 words that seeding XORs in, from the known outputs of one seed, by running the recurrence backwards."""
    text = resources.files(__package__).joinpath("gorand_seed42.txt").read_text()
    later = [int(word, 16) for word in text.split()]
    stream = [0] * LENGTH + later
    for n in range(LENGTH - 1, -1, -1):
        stream[n] = (stream[n + LENGTH] - stream[n + LENGTH - LAG]) & _MASK64
    mixed, constants = _mixed(_KNOWN_SEED), [0] * LENGTH
    for n, place in enumerate(_order()):
        constants[place] = stream[n] ^ mixed[place]
    return tuple(constants)


class GoRand:
    """One seeded stream, with the draws the artifact makes from it."""

    def __init__(self, seed: int) -> None:
        mixed, constants = _mixed(seed), _constants()
        self._last = [mixed[place] ^ constants[place] for place in _order()]
        self._next = 0

    def uint64(self) -> int:
        """The next raw output, 0..2^64-1."""
        at = self._next
        word = (self._last[at] + self._last[(at + LENGTH - LAG) % LENGTH]) & _MASK64
        self._last[at] = word
        self._next = (at + 1) % LENGTH
        return word

    def int63(self) -> int:
        """The next output without its top bit."""
        return self.uint64() & (2**63 - 1)

    def intn(self, n: int) -> int:
        """Uniform on 0..n-1, as Go's `Intn` for n below 2^31."""
        if n & (n - 1) == 0:
            return (self.int63() >> 32) & (n - 1)
        top = 2**31 - 1 - (2**31 % n)
        value = self.int63() >> 32
        while value > top:
            value = self.int63() >> 32
        return value % n

    def shuffle(self, items: list[T]) -> None:
        """In place, as Go's `Shuffle`."""
        for i in range(len(items) - 1, 0, -1):
            j = self._int31n(i + 1)
            items[i], items[j] = items[j], items[i]

    def perm(self, n: int) -> list[int]:
        """A permutation of 0..n-1, as Go's `Perm`."""
        places = [0] * n
        for i in range(n):
            j = self.intn(i + 1)
            places[i] = places[j]
            places[j] = i
        return places

    def _int31n(self, n: int) -> int:
        """Lemire's way, which only Go's `Shuffle` uses."""
        product = (self.int63() >> 31) * n
        low = product & 0xFFFFFFFF
        if low < n:
            least = (2**32 - n) % n
            while low < least:
                product = (self.int63() >> 31) * n
                low = product & 0xFFFFFFFF
        return product >> 32

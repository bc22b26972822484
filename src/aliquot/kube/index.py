"""Secondary index over a cache, maintained from change events (client-go: Indexer)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from aliquot.kube.objects import HasMeta
from aliquot.kube.reflector import Change

T = TypeVar("T", bound=HasMeta)


class Index(Generic[T]):
    """`words` gives the keys of one object; empty ones are skipped."""

    def __init__(self, words: Callable[[T], Iterable[str]]) -> None:
        self._words = words
        self._by_word: dict[str, dict[str, T]] = {}

    def changed(self, change: Change[T]) -> None:
        """One object was added, changed or deleted."""
        key = change.object.metadata.key
        for word in self._words(change.old) if change.old is not None else ():
            found = self._by_word.get(word, {})
            found.pop(key, None)
            if not found:
                self._by_word.pop(word, None)
        for word in self._words(change.object) if change.kind != "deleted" else ():
            if word:
                self._by_word.setdefault(word, {})[key] = change.object

    def naming(self, word: str) -> list[T]:
        """The objects that have this key."""
        return list(self._by_word.get(word, {}).values())

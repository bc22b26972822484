"""A copy of the API server's objects that is kept up to date and knows when it is (client-go: reflector and indexer).

One LIST fills the store, one WATCH follows from there. Guarantees, whatever the server and the network do:

1. Lists come in pages; a page that is Gone starts the list over. The list is compared with the store, so that what was
   deleted between two watches is reported as deleted.
2. A watch that ends cleanly goes on from the last version seen, bookmarks included, without a list.
3. Gone (410), as an HTTP status or as an event, leads to a list. Any other failure leads to the same watch again after
   a wait with jitter that grows until a watch has delivered something; after `patience` refusals in a row, to a list.
4. A watch on which nothing comes for `idle_s` is dead, however open its socket looks.
5. Lines are put together from whatever pieces arrive; a line may be at most `line_bytes` long.
6. Of a bookmark only its version is read, so it need not look like an object.
7. `synced` is set after the first list, and the store is whole whenever it is set.
8. However long a list is, the loop's other tasks have their turn after every few of its objects.

An event that repeats what the store has, or is older than it, changes nothing. An object that cannot be decoded is
counted and left as it was, and the watch goes on behind it.

And a de-duplicating, rate-limited work queue (client-go: workqueue).

Level-triggered work needs to know *what* to reconcile, not what happened: so the queue holds keys, and adding one that
waits changes nothing. A key that is added while it is worked on is handed out again afterwards, never twice at once.
The queue cannot grow beyond the number of objects; `most` bounds it all the same, and what is dropped then is added
again with the next full resync.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.errors import BadAnswer, Gone, KubeError, Unreachable, error_of
from aliquot.kube.objects import ApiObject, ApiStatus, HasMeta, Resource, WatchEvent
from aliquot.lib.backoff import Backoff
from aliquot.lib.decoding import decode_json

T = TypeVar("T", bound=HasMeta)
SLICE: Final = 100
"""Objects processed before other tasks run: some milliseconds."""


async def turn(number: int) -> None:
    """Let others have their turn if the object of this number, from 1, is the last of a slice."""
    if number % SLICE == 0:
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Change(Generic[T]):
    """One change of an object. `object` is its last known state; `old` is what the store had, if any."""

    kind: Literal["added", "modified", "deleted"]
    object: T
    old: T | None = None


@dataclass
class WatchCounts:
    """Counters of a reflector; for metrics and tests."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    repeated: int = 0
    undecodable: int = 0
    failures: int = 0
    last_failure: str = ""


@dataclass(frozen=True)
class Tuning:
    """Numbers of a reflector; the defaults suit a cluster, tests take smaller ones."""

    page: int = 500
    idle_s: float = 90.0
    list_s: float = 60.0
    watch_min_s: int = 290
    watch_max_s: int = 590
    wait_first_s: float = 0.05
    wait_max_s: float = 30.0
    line_bytes: int = 16 * 1024 * 1024
    patience: int = 5


@dataclass
class Reflector(Generic[T]):
    """Follows one kind of object, of all namespaces or one; `on_change` is called for each change and must be quick.

    Changes of one object come in order. `on_change` is called before `synced` is set for everything in the first list.
    """

    api: Api
    resource: Resource[T]
    on_change: Callable[[Change[T]], None] = lambda change: None
    namespace: str = ""
    selectors: Mapping[str, str] = field(default_factory=dict)
    tuning: Tuning = Tuning()
    counts: WatchCounts = field(default_factory=WatchCounts)
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    version: str = ""
    _store: dict[str, T] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._path = self.resource.path(namespace=self.namespace)
        self._refusals = 0
        self._delivered = False
        self._interrupt, self._renewed = asyncio.Event(), asyncio.Event()

    def __len__(self) -> int:
        return len(self._store)

    def __iter__(self) -> Iterator[T]:
        return iter(self._store.values())

    def get(self, key: str) -> T | None:
        """The object of that `namespace/name`."""
        return self._store.get(key)

    def has_seen(self, version: str) -> bool:
        """Whether everything up to this resource version is in the store; one that is no integer tells nothing."""
        if not version.isdigit():
            return True
        return self.version.isdigit() and int(self.version) >= int(version)

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(self.tuning.wait_first_s, self.tuning.wait_max_s)
        loop = asyncio.get_running_loop()
        while True:
            self._delivered, started_s = False, loop.time()
            try:
                if not self.version:
                    await self._list()
                    started_s = loop.time()
                await self._watch_unless_interrupted()
            except Gone:
                self.version = ""
            except KubeError as error:
                self.counts.failures += 1
                self.counts.last_failure = str(error)
                self._refusals = 0 if self._delivered else self._refusals + (not isinstance(error, Unreachable))
                if self._refusals >= self.tuning.patience:
                    self._refusals = 0
                    self.version = ""
            if self._delivered or loop.time() - started_s >= self.tuning.wait_max_s:
                backoff.reset()  # a watch that lasted was a good one, though nothing happened
            await asyncio.sleep(backoff.next_s())

    async def renew(self) -> None:
        """List again now and return when the store is that list: nothing that happened before the call is missing."""
        self._interrupt.set()
        self._renewed.clear()
        await self._renewed.wait()

    async def _watch_unless_interrupted(self) -> None:
        """Watch until it ends or `renew` is called; then forget the version, so that a list follows."""
        watching = asyncio.ensure_future(self._watch())
        called = asyncio.ensure_future(self._interrupt.wait())
        try:
            await asyncio.wait({watching, called}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            called.cancel()
            if not watching.done():
                watching.cancel()
        if self._interrupt.is_set():
            await asyncio.gather(watching, return_exceptions=True)
            self.version = ""
        else:
            watching.result()

    async def _list(self) -> None:
        """Guarantee 1. The store changes only once the list is whole, and in slices: first what is gone."""
        self._interrupt.clear()
        listed: dict[str, T] = {}
        version = ""
        size, list_s = self.tuning.page, self.tuning.list_s
        async for page in self.api.pages(self._path, self.selectors, size=size, timeout_s=list_s):
            version = page.metadata.resource_version
            for raw in page.items or []:
                item = self._decoded(raw)
                if item is not None:
                    listed[item.metadata.key] = item
            await asyncio.sleep(0)
        self.counts.lists += 1
        for number, key in enumerate([key for key in self._store if key not in listed], 1):
            self._delete(key, self._store[key])
            await turn(number)
        for number, key in enumerate(list(listed), 1):
            item, old = listed.pop(key), self._store.get(key)
            if old is not None and old.metadata.uid != item.metadata.uid:
                self._delete(key, old)
                old = None
            if old is None or old.metadata.resource_version != item.metadata.resource_version:
                self._put(key, item, old)
            await turn(number)
        self.version = version
        self.synced.set()
        if not self._interrupt.is_set():
            self._renewed.set()

    async def _watch(self) -> None:
        """Returns on a clean end (guarantee 2)."""
        async with aclosing(self._events()) as events:
            async for event in events:
                item = self._decoded(event.object) if event.type != "BOOKMARK" else None
                if item is not None:
                    self._take(event.type, item)
                else:
                    try:
                        meta = decode_json(event.object, ApiObject).metadata
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        raise BadAnswer(f"an object without metadata: {error}") from None
                    self.version = meta.resource_version or self.version
                self._delivered = True
                self._refusals = 0

    def _take(self, kind: str, item: T) -> None:
        """One event of a watch."""
        meta, old = item.metadata, self._store.get(item.metadata.key)
        self.version = meta.resource_version
        replaced = old is not None and old.metadata.uid != meta.uid
        if kind == "DELETED":
            same = old is not None and not replaced and old.metadata.resource_version == meta.resource_version
            if old is None or not (same or _newer(item, old)):
                self.counts.repeated += 1
            else:
                self._delete(meta.key, old if replaced else item)
        elif old is not None and not _newer(item, old):
            self.counts.repeated += 1
        else:
            if old is not None and replaced:
                self._delete(meta.key, old)
            self._put(meta.key, item, None if replaced else old)

    def _put(self, key: str, item: T, old: T | None) -> None:
        self._store[key] = item
        self.counts.events += 1
        self.on_change(Change("added" if old is None else "modified", item, old))

    def _delete(self, key: str, item: T) -> None:
        old = self._store.pop(key)
        self.counts.events += 1
        self.on_change(Change("deleted", item, old))

    async def _events(self) -> AsyncGenerator[WatchEvent, None]:
        lasts_s = random.randint(self.tuning.watch_min_s, self.tuning.watch_max_s)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(lasts_s),
            **self.selectors,
            "resourceVersion": self.version,
        }
        self.counts.watches += 1
        async with self.api.stream(self._path, query, idle_s=self.tuning.idle_s) as answer:
            rest = b""
            async for chunk in answer.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _event(line, self._path)
                if len(rest) > self.tuning.line_bytes:
                    raise BadAnswer(f"watch {self._path}: a line of more than {self.tuning.line_bytes} bytes")

    def _decoded(self, raw: msgspec.Raw) -> T | None:
        try:
            return self.resource.decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            self.counts.undecodable += 1
            self.counts.last_failure = f"a {self.resource.kind} that cannot be read: {error}"
            return None


def _event(line: bytes, path: str) -> WatchEvent:
    """One line of a watch.

    Raises:
        Gone: it tells that the version is gone. KubeError: it tells of another error. BadAnswer: it is no event.
    """
    try:
        event = decode_json(line, WatchEvent)
        if event.type != "ERROR":
            return event
        status = decode_json(event.object, ApiStatus)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"watch {path}: a line that is no event: {error}") from None
    raise error_of(status.code, status, f"watch {path}", 0.0)


def _newer(item: HasMeta, old: HasMeta) -> bool:
    """Is `item` later? Versions are ordered as integers (KEP-5504); where one is no integer, different is later."""
    new_version, old_version = item.metadata.resource_version, old.metadata.resource_version
    if new_version.isdigit() and old_version.isdigit():
        return int(new_version) > int(old_version)
    return new_version != old_version


class Index(Generic[T]):
    """Objects by keys of their own, maintained from changes; `words` gives those of one object, empty ones skipped."""

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


class WorkQueue:
    """A queue of keys for one event loop."""

    def __init__(self, *, most: int = 100_000, first_s: float = 0.05, max_s: float = 60.0) -> None:
        self._most = most
        self._first_s = first_s
        self._max_s = max_s
        self._ready: deque[str] = deque()
        self._waiting: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, Backoff] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def later(self) -> int:
        """Keys that wait for their time."""
        return len(self._timers)

    def add(self, key: str) -> None:
        """Add this key."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            if len(self._waiting) >= self._most:
                return
            self._waiting.add(key)
            self._ready.append(key)
            self._news.set()

    def add_after(self, key: str, wait_s: float) -> None:
        """Add a key after this many seconds; of several times the earliest counts."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= loop.time() + wait_s:
            return
        if known is not None:
            known.cancel()

        def due() -> None:
            self._timers.pop(key, None)
            self.add(key)

        self._timers[key] = loop.call_later(wait_s, due)

    def failed(self, key: str) -> float:
        """Add a failed key again, with a longer delay than after the previous failure; returns the delay in seconds."""
        wait_s = self._failures.setdefault(key, Backoff(self._first_s, self._max_s)).next_s()
        self.add_after(key, wait_s)
        return wait_s

    def succeeded(self, key: str) -> None:
        """Forget the key's failures."""
        self._failures.pop(key, None)

    @asynccontextmanager
    async def next(self) -> AsyncIterator[str]:
        """The next key, ours alone until the block ends; waits for one."""
        while not self._ready:
            self._news.clear()
            await self._news.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._busy.add(key)
        try:
            yield key
        finally:
            self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    async def work(self, look: Callable[[str], Awaitable[None]], on_failure: Callable[[str, Exception], None]) -> None:
        """Pass keys to `look` one after another until cancelled; start it several times for several workers.

        An exception from `look` brings the key back later; `on_failure` is called with it.
        """
        while True:
            async with self.next() as key:
                try:
                    await look(key)
                except Exception as error:
                    on_failure(key, error)
                    self.failed(key)
                else:
                    self.succeeded(key)
            await asyncio.sleep(0)  # a look that had nothing to wait for: others have their turn before the next

    def close(self) -> None:
        """Cancel the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

"""The scheduler extender's messages, by the names kube-scheduler gives them, and how a filter's answer is worded.

The Go structs have no JSON tags, so keys are capitalised; pods and nodes inside are ordinary API objects.

kube-scheduler sends the names of all nodes that are left, thousands of them, in another order each time. Making a
string of each, hashing it and writing it out again would take most of an answer. So the names stay where they are, in
the text of the message: eight bytes at a time become numbers, numbers become hashes, hashes are looked up in one table
for all names at once, and what was found is compared byte by byte. An answer is cut out of the same text.

Refusals of a pod alternate between two wordings, so that a pod woken by a stale event is retried once
(docs/decisions/0021). A refused pod sleeps at kube-scheduler until something changes in the cluster; then the filter is
called at once. If the event of a freed share reaches kube-scheduler before it reaches the ledger, a refusal lets the
pod sleep beside free room until the next change, which a quiet cluster may not have for minutes. But kube-scheduler
writes the refusal into the pod's condition, and if the text is new, its own write is such a change: it calls again some
milliseconds later, when the ledger is up to date. So every refusal has another text than the one before, but for that
of the retry. Reasons that no freed share takes away have one wording.

The retry is the call that shows the pod changed since a refusal in new words. How long ago that was says nothing: the
share may be freed a moment after any refusal. It is answered once the ledger has seen the pod so changed, and with it
everything that kube-scheduler may have been woken by.

Source: k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aliquot.kube.clock import Clock
from aliquot.kube.objects import ApiObject, Pod
from aliquot.kube.requests import shortened
from aliquot.lib.arrays import IntArray
from aliquot.lib.bounded import Bounded
from aliquot.lib.decoding import decode_json
from aliquot.placement.cluster import Cluster
from aliquot.scheduler.verdicts import FITS, Judged, lasting

Words = list[NDArray[np.uint64]]
_WORD: Final = 8
_QUOTE, _COMMA, _FIRST_PRINTABLE = 34, 44, 32
_KEPT: Final = np.array([(1 << (8 * n)) - 1 for n in range(_WORD)] + [2**64 - 1], dtype=np.uint64)
"""What is kept of a word of which so many bytes belong to the name."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: Knuth, TAOCP 6.4
_HALF: Final = np.uint64(32)
_SLOTS_PER_NAME: Final = 8
LONGEST: Final = 253
"""Bytes of a node's name in Kubernetes."""

MAX_NAMES: Final = 200_000
"""Names in one message, many times what a cluster has."""

EVERY_S: Final = 1.0
BURST: Final = 8
"""A pod that is woken all the time is refused in new words once in `EVERY_S`, after the first `BURST` times: each of
them is a write of kube-scheduler, and what wakes it so often will wake it again."""
MAX_REMEMBERED: Final = 10_000


class Message(msgspec.Struct, rename="pascal"):
    """Base of all messages."""


class NodeList(msgspec.Struct):
    """Whole nodes, kept unchanged, because kube-scheduler expects what it sent."""

    items: list[msgspec.Raw] | None = None


class Args(Message):
    """The arguments of `filter` and `prioritize`: names if the extender is nodeCacheCapable, otherwise nodes."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")

    def names(self) -> tuple[Names, dict[str, msgspec.Raw] | None]:
        """The names of the nodes, and the nodes themselves if they were sent.

        Raises:
            BadMessage: a name or a node is not valid.
        """
        if bytes(self.node_names) != b"null":
            return Names(self.node_names), None
        found: dict[str, msgspec.Raw] = {}
        try:
            for raw in (self.nodes.items if self.nodes is not None else None) or []:
                found[decode_json(raw, ApiObject).metadata.name] = raw
        except msgspec.DecodeError as error:
            raise BadMessage(f"Nodes.items has an invalid node: {error}") from None
        return Names.of(list(found)), found


class FilterResult(Message):
    """Which nodes stay. `error` fails the scheduling cycle, so a node that does not fit is never an error."""

    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")
    failed_nodes: msgspec.Raw = msgspec.Raw(b"{}")
    failed_and_unresolvable_nodes: msgspec.Raw = msgspec.Raw(b"{}")
    error: str = ""


def host_reasons(groups: Iterable[tuple[bytes, str]]) -> msgspec.Raw:
    """An object of names and the reason of each; names with one reason are given together, as inside an array."""
    found = []
    for names, reason in groups:
        text = b'":' + msgspec.json.encode(reason)
        found.append(names[:-1].replace(b'","', text + b',"') + text)
    return msgspec.Raw(b"{" + b",".join(found) + b"}")


def host_priorities(groups: Iterable[tuple[bytes, int]]) -> msgspec.Raw:
    """An array of names with their scores, 0 to 10; names with one score are given together, as inside an array."""
    found = []
    for names, score in groups:
        text = b',"Score":%d}' % score
        found.append(b'{"Host":' + names.replace(b'","', b'"' + text + b',{"Host":"') + text)
    return msgspec.Raw(b"[" + b",".join(found) + b"]")


class MetaPod(Message):
    """A victim by its uid."""

    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(Message):
    """The victims on one node."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(Message):
    """The same with whole pods."""

    pods: list[Pod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(Message):
    """Which victims kube-scheduler proposes on which node."""

    pod: Pod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    def proposed(self) -> dict[str, MetaVictims]:
        """The victims by uid, in whichever of the two forms they came."""
        if self.node_name_to_meta_victims:
            return self.node_name_to_meta_victims
        return {
            node: MetaVictims([MetaPod(pod.metadata.uid) for pod in victims.pods or []], victims.num_pdb_violations)
            for node, victims in (self.node_name_to_victims or {}).items()
        }


class PreemptionResult(Message):
    """Nodes on which preemption helps, with their victims."""

    node_name_to_meta_victims: dict[str, MetaVictims]


class BindingArgs(Message):
    """The arguments of `bind`: pod and node."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class BindingResult(Message):
    """Empty when the pod is bound."""

    error: str = ""


class BadMessage(Exception):
    """A body that is not a message of the kind; its text is one sentence."""


def read(body: bytes, kind: type[Any]) -> Any:
    """A message of a kind.

    Raises:
        BadMessage: no JSON, or a field that is absent or of another type; the text names it.
    """
    try:
        return decode_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"the body is not a valid {kind.__name__} of the scheduler extender: {error}") from None


class Names:
    """Names in the order of the message."""

    def __init__(self, text: bytes | msgspec.Raw) -> None:
        """Read a JSON array of names.

        Raises:
            BadMessage: it is something else.
        """
        text = bytes(text)
        found = _ends(text)
        if found is None:  # the same list as Go would write it
            try:
                text = msgspec.json.encode(decode_json(text, list[str]))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadMessage(f"NodeNames is not a list of names: {error}") from None
            found = _ends(text)
        if found is None:
            raise BadMessage(
                "NodeNames has an invalid node name: names have no quotes, commas, backslashes or controls"
            )
        if len(found[0]) > MAX_NAMES:
            raise BadMessage(f"NodeNames has {len(found[0])} names; the maximum is {MAX_NAMES}")
        if int((found[1] - found[0]).max(initial=0)) > LONGEST:
            raise BadMessage(f"NodeNames has a name of more than {LONGEST} bytes, which no node has")
        self._text = text
        self._starts, self._ends = found

    @classmethod
    def of(cls, names: Sequence[str]) -> Names:
        """Names that are strings already."""
        return cls(msgspec.json.encode(list(names)))

    def __len__(self) -> int:
        """How many."""
        return len(self._starts)

    def __getitem__(self, place: int) -> str:
        """One of them as a string."""
        return self._text[self._starts[place] : self._ends[place]].decode()

    def strings(self) -> list[str]:
        """All of them as strings."""
        found: list[str] = msgspec.json.decode(self._text)
        return found

    def words(self) -> Words:
        """The names as columns of numbers, eight bytes in each and zeros behind short ones; the last is the length."""
        lengths = self._ends - self._starts
        count = -(-int(lengths.max(initial=0)) // _WORD)
        text = self._text + bytes(_WORD * (count + 1))
        here: NDArray[np.uint64] = np.ndarray((len(text) - _WORD + 1,), "<u8", text, strides=(1,))
        found = [
            here[self._starts + at] & _KEPT[np.clip(lengths - at, 0, _WORD)] for at in range(0, count * _WORD, _WORD)
        ]
        return [*found, lengths.astype(np.uint64)]

    def grouped(self, codes: NDArray[np.int32]) -> dict[int, bytes]:
        """The names of every code that occurs, as the inside of a JSON array; `codes` int32 [n], one for each name."""
        if not len(codes):
            return {}
        kinds = np.unique(codes).tolist()
        if len(kinds) == 1:
            return {kinds[0]: self._text[1:-1]}
        lengths = self._ends - self._starts + 3  # with its quotes and the comma or bracket behind it
        text = np.frombuffer(self._text, dtype=np.uint8)[1:]
        return {kind: text[np.repeat(codes == kind, lengths)].tobytes()[:-1] for kind in kinds}


class NameTable:
    """Numbers by name: built once for a set of nodes, queried for many names at a time."""

    def __init__(self, index: Mapping[str, int]) -> None:
        self._words = Names.of(list(index)).words()
        self._numbers = np.fromiter(index.values(), dtype=np.int64, count=len(index))
        bits = max(4, (len(index) * _SLOTS_PER_NAME).bit_length())
        self._shift = np.uint64(64 - bits)
        self._slots = np.full((1 << bits) + len(index) + 1, -1, dtype=np.int64)
        for number, slot in enumerate((_hashes(self._words) >> self._shift).tolist()):
            while self._slots[slot] >= 0:  # every name into its slot or the next that is free
                slot += 1
            self._slots[slot] = number

    def numbers(self, names: Names) -> IntArray:
        """The number of each name, -1 for unknown names: int64 [n]."""
        words = names.words()
        if not len(self._numbers) or not len(names):
            return np.full(len(names), -1)
        slots = (_hashes(words) >> self._shift).astype(np.int64)
        found = self._slots[slots]
        left = np.flatnonzero((found >= 0) & ~self._same(words, slice(None), found))
        while len(left):
            slots[left] += 1
            found[left] = self._slots[slots[left]]
            left = left[(found[left] >= 0) & ~self._same(words, left, found[left])]
        return np.where(found >= 0, self._numbers[found], -1)

    def _same(self, words: Words, places: IntArray | slice, found: IntArray) -> NDArray[np.bool_]:
        """Whether the names at these places are the ones that were found."""
        same = words[-1][places] == self._words[-1][found]
        for asked, known in zip(words[:-1], self._words[:-1], strict=False):
            same &= asked[places] == known[found]
        return np.asarray(same)


class Numbering:
    """The indices of nodes in a cluster whose nodes change."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._layout = -1
        self._table = NameTable({})

    def __call__(self, names: Names) -> IntArray:
        """The index of each node, -1 for those that the cluster does not have: int64 [n]."""
        if self._layout != self._cluster.layout:
            self._table, self._layout = NameTable(self._cluster.index), self._cluster.layout
        return self._table.numbers(names)


def _hashes(words: Words) -> NDArray[np.uint64]:
    """A number for each name, in whose upper bits names that differ little differ much; words of zeros add nothing."""
    *parts, lengths = words
    found, factor = lengths.copy(), _MIX
    with np.errstate(over="ignore"):
        for part in parts:
            found += (part ^ (part >> _HALF)) * factor
            factor *= _MIX
    return found


def _ends(text: bytes) -> tuple[IntArray, IntArray] | None:
    """Where each name begins and ends; None when the text is not written as Go writes it, without blanks or escapes."""
    if text == b"[]":
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    whole = np.frombuffer(text, dtype=np.uint8)
    quotes = np.flatnonzero(whole == _QUOTE)
    if len(quotes) < 2 or len(quotes) % 2 or text[:2] != b'["' or text[-2:] != b'"]':
        return None
    starts, ends = quotes[0::2] + 1, quotes[1::2]
    odd = (starts[1:] - ends[:-1] != 3) | (whole[ends[:-1] + 1] != _COMMA)
    if text.count(b",") != len(odd):
        return None
    if odd.any() or ends[-1] != len(text) - 2 or b"\\" in text or int(whole.min()) < _FIRST_PRINTABLE:
        return None
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return starts, ends


def filter_result(judged: Judged, names: Names, nodes: dict[str, msgspec.Raw] | None) -> FilterResult:
    """The answer to a filter, in names or in nodes as the question was."""
    groups = names.grouped(judged.codes)
    fitting = groups.pop(FITS, b"")
    # One sentence stands there once for every node.
    reasons = [(group, shortened(judged.sentence(code)), lasting(code)) for code, group in groups.items()]
    failed, unresolvable = (
        host_reasons((group, text) for group, text, lasts in reasons if lasts is kind) for kind in (False, True)
    )
    if nodes is None:
        return FilterResult(None, msgspec.Raw(b"[" + fitting + b"]"), failed, unresolvable)
    staying = [raw for raw, code in zip(nodes.values(), judged.codes.tolist(), strict=True) if code == FITS]
    return FilterResult(NodeList(staying), failed_nodes=failed, failed_and_unresolvable_nodes=unresolvable)


@dataclass(frozen=True, slots=True)
class LastRefusal:
    """How a pod was refused last."""

    second: bool
    """Whether in the second of the two wordings."""
    new: bool
    """Whether in other words than before, so that kube-scheduler writes it and calls again."""
    version: str
    """The resource version of the pod in that call."""
    spent_until_s: float
    """Until when its new words so far use up what `EVERY_S` allows."""


@dataclass
class Wording:
    """Remembers how pods were refused last."""

    clock: Clock = field(default_factory=Clock)
    _last: Bounded[str, LastRefusal] = field(default_factory=lambda: Bounded(MAX_REMEMBERED))

    def retried(self, key: str, version: str) -> bool:
        """Whether the call for the pod in this resource version is the retry that its last refusal brought about."""
        last = self._last.get(key)
        return last is not None and last.new and version != last.version

    def next_is_second(self, key: str, version: str) -> bool:
        """Whether the pod, about to be refused, is to be refused in the other of the two wordings.

        `version` is the pod's resource version as kube-scheduler knows it.
        """
        retried, now_s = self.retried(key, version), self.clock.monotonic_s()
        last = self._last.pop(key, None)
        if last is None:
            made = LastRefusal(False, True, version, now_s + EVERY_S)
        elif retried:
            made = replace(last, new=False, version=version)
        else:
            spent_until_s = max(last.spent_until_s, now_s) + EVERY_S
            often = spent_until_s > now_s + BURST * EVERY_S
            made = last if often else LastRefusal(not last.second, True, version, spent_until_s)
        self._last[key] = made
        return made.second

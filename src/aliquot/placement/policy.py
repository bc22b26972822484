"""The interface of placement policies: score nodes for a shape, and choose the devices inside the chosen node.

The decider does what all policies have in common: find the nodes that fit, cache scores, break ties, apply labels. A
policy sees only nodes that fit and returns integers, so that one state of a cluster has one answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

from aliquot.lib.arrays import IntArray
from aliquot.model.errors import AliquotError, UserError
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.fits import Rules, pick_devices

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster


MAX_CPU_MILLI: Final = 128_000.0
MAX_GPU_MILLI: Final = 8_000.0
"""CPU and GPUs of the largest machine in the published benchmark, by which its scores are normalised."""
MEMORY_VERSION: Final = 1
MAX_BYTES: Final = 512 * 1024
"""Half of what an object of the API server may have. 4,096 arrivals of 125 shapes take 24 KiB."""
_LEAST_PART: Final = 1 / 1024


class Policy(Protocol):
    """The interface of every policy; `BasePolicy` implements what most policies have in common.

    `stable` says that a score depends on the shape and that node alone, so the decider caches it until the node or
    `epoch` changes. Otherwise the decider calls `scores` for every request, with all fitting nodes at once.
    """

    name: str
    because: str
    """What it prefers, for explanations: the words that follow "NAME takes", such as "the fullest GPU that fits"."""
    stable: bool
    epoch: int

    def start(self, cluster: Cluster, seed: int) -> None:
        """Forget everything and use this cluster from now on; `seed` is the only source of randomness."""

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """The value of each node for a shape, higher is better; `nodes` are indices [n], all of them fit."""

    def choose(self, ask: Ask, node: int, fitting: Sequence[int]) -> tuple[int, ...]:
        """Devices of a node by index: the whole ones first, the shared one last.

        `fitting` are the devices that labels, vGPU names and models allow and that have room for a whole GPU or for the
        shared part.
        """

    def arrived(self, shape: Shape) -> None:
        """An arrival was seen; called once for each pod, before it is scored, whether it finds a place or not."""

    def departed(self, shape: Shape) -> None:
        """A pod of this shape has left."""

    def idle(self, budget_us: int) -> bool:
        """Learn for at most `budget_us` microseconds between arrivals; returns whether there is more to do."""


@runtime_checkable
class LabelAware(Policy, Protocol):
    """A policy whose scores depend on labels too; the decider calls `ask_scores` in place of `scores`."""

    def ask_scores(self, ask: Ask, nodes: IntArray, rules: Rules | None) -> IntArray:
        """As `scores`, for one request with its labels; `rules` say which devices these allow, None for all."""


class BasePolicy:
    """What most policies share: nothing to learn, whole GPUs close to each other, the fullest device for the rest."""

    name = ""
    because = ""
    """See `Policy.because`; empty: explanations leave it out."""
    stable = True
    epoch = 0
    cluster: Cluster

    def start(self, cluster: Cluster, seed: int) -> None:
        """Look at this cluster."""
        self.cluster = cluster
        self.epoch += 1

    def choose(self, ask: Ask, node: int, fitting: Sequence[int]) -> tuple[int, ...]:
        """Whole GPUs by Link, the rest on the nearest, of equals on the one `prefers` orders first, then by index."""
        return pick_devices(self.cluster, ask.shape, node, fitting, self.prefers)

    def prefers(self, node: int, gpu: int) -> tuple[int, ...]:
        """What orders devices for the shared part, smallest first: milli-GPU left, so the fullest."""
        return (self.cluster.free_milli.item(node, gpu),)

    def arrived(self, shape: Shape) -> None:
        """Nothing to learn."""

    def departed(self, shape: Shape) -> None:
        """Nothing to learn."""

    def idle(self, budget_us: int) -> bool:
        """Nothing to do."""
        return False


class BadMemory(AliquotError):
    """A record of what was learned that cannot be read."""


@runtime_checkable
class Learner(Protocol):
    """A policy that can save what it has learned. Other policies are not saved and start fresh each time."""

    def dump(self, part: float = 1.0) -> Mapping[str, Any]:
        """What was learned, fit for JSON; with a `part` below 1 only about so much of it, the latest."""

    def load(self, record: Mapping[str, Any]) -> None:
        """Go on from such a record.

        Raises:
            BadMemory: it cannot be read; nothing is changed.
        """


def pack(policy: Policy) -> str:
    """What a policy has learned as a text, in ASCII and at most `MAX_BYTES` long; empty where it has nothing to say.

    Two lines of JSON: a header with the version, the policy's name and the SHA-256 of the second line, and what the
    policy itself wrote. What would be longer is cut to its latest half, again and again. The caller decides where it
    is stored: a file, or an object of the API server.
    """
    if not isinstance(policy, Learner):
        return ""
    part = 1.0
    while part >= _LEAST_PART:
        body = json.dumps(policy.dump(part), separators=(",", ":"))
        header = {"version": MEMORY_VERSION, "policy": policy.name, "sha256": hashlib.sha256(body.encode()).hexdigest()}
        text = f"{json.dumps(header)}\n{body}\n"
        if len(text) <= MAX_BYTES:
            return text
        part /= 2
    return ""


def unpack(policy: Policy, text: str) -> None:
    """Let a policy go on from a text that `pack` made of one of its name.

    Raises:
        BadMemory: it is none, is damaged, or is another policy's; the policy is as it was.
    """
    if not isinstance(policy, Learner):
        return
    if len(text) > MAX_BYTES:
        raise BadMemory(f"it has {len(text)} characters, {MAX_BYTES} are the most")
    head, _, body = text.partition("\n")
    body = body.removesuffix("\n")
    try:
        header = json.loads(head)
        version, name, checksum = (header[key] for key in ("version", "policy", "sha256"))
    except (ValueError, TypeError, LookupError, RecursionError):
        raise BadMemory("its first line is not a header of what a policy has learned") from None
    if version != MEMORY_VERSION:
        raise BadMemory(f"it is of version {version}, this program reads version {MEMORY_VERSION}")
    if name != policy.name:
        raise BadMemory(f'it is of the policy "{name}", not of "{policy.name}"')
    if checksum != hashlib.sha256(body.encode()).hexdigest():
        raise BadMemory("it does not have the checksum that it was written with")
    try:
        policy.load(json.loads(body))
    except BadMemory:
        raise
    except Exception as fault:  # a third-party policy; a failure to load must not stop the program
        raise BadMemory(f"the policy cannot read it ({fault!r})") from fault


class UnknownPolicy(UserError):
    """No policy by that name."""


def _maker(module: str, name: str) -> Callable[[], Policy]:
    """Makes a policy; its module is imported when it is first wanted."""

    def make() -> Policy:
        return cast(Policy, getattr(import_module(f"aliquot.placement.policies.{module}"), name)())

    return make


POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {
    "aliquot": _maker("aliquot", "Aliquot"),
    "bestfit": _maker("baselines", "BestFit"),
    "binpack": _maker("binpack", "Binpack"),
    "clustering": _maker("baselines", "Clustering"),
    "dotprod": _maker("baselines", "DotProduct"),
    "fgd": _maker("fgd", "Fgd"),
    "gaia": _maker("gaia", "Gaia"),
    "kubeshare": _maker("kubeshare", "KubeShare"),
    "packing": _maker("baselines", "Packing"),
    "random": _maker("baselines", "Random"),
    "spread": _maker("spread", "Spread"),
}
"""How to make each policy, by name."""


def policy(name: str) -> Policy:
    """A fresh policy of the core by name.

    Raises:
        UnknownPolicy: no policy has that name; the text lists all.
    """
    if name not in POLICIES:
        raise UnknownPolicy(f'there is no policy "{name}"; there are {", ".join(sorted(POLICIES))}')
    return POLICIES[name]()

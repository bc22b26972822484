"""The interface of placement policies: score nodes for a shape, and choose the devices inside the chosen node.

The decider does what all policies have in common: find the nodes that fit, cache scores, break ties, apply labels. A
policy sees only nodes that fit and returns integers, so that one state of a cluster has one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast, runtime_checkable

from aliquot.lib.arrays import IntArray
from aliquot.model.errors import UserError
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.fits import Rules, pick_devices

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster


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


class UnknownPolicy(UserError):
    """No policy by that name."""


def _maker(module: str, name: str) -> Callable[[], Policy]:
    """Makes a policy; its module is imported when it is first wanted."""

    def make() -> Policy:
        return cast(Policy, getattr(import_module(f"aliquot.placement.policies.{module}"), name)())

    return make


POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {
    "aliquot": _maker("aliquot", "Aliquot"),
    "bestfit": _maker("bestfit", "BestFit"),
    "binpack": _maker("binpack", "Binpack"),
    "clustering": _maker("clustering", "Clustering"),
    "dotprod": _maker("dotprod", "DotProduct"),
    "fgd": _maker("fgd", "Fgd"),
    "gaia": _maker("gaia", "Gaia"),
    "kubeshare": _maker("kubeshare", "KubeShare"),
    "packing": _maker("packing", "Packing"),
    "random": _maker("chance", "Random"),
    "spread": _maker("spread", "Spread"),
}
"""How to make each policy, by name."""


def policy(name: str, more: Mapping[str, Callable[[], Policy]] | None = None) -> Policy:
    """A fresh policy by name; `more` are those that were found outside, by entry points.

    Raises:
        UnknownPolicy: no policy has that name; the text lists all.
    """
    known = {**POLICIES, **(more or {})}
    if name not in known:
        raise UnknownPolicy(f'there is no policy "{name}"; there are {", ".join(sorted(known))}')
    return known[name]()

"""Short ways to make a cluster and to place on it."""

from collections.abc import Sequence

from asking import asking
from ledger import check

from aliquot.model.requests import Device, Labels
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policy import Policy, policy
from aliquot.placement.quota import NO_QUOTAS, Quotas
from aliquot.placement.reasons import Infeasible
from aliquot.topology import Topology

V100 = "Tesla V100-SXM2-16GB"


def node(
    name: str,
    gpus: int | Sequence[str] = 1,
    *,
    mib: int = 16384,
    cpu: int = 64000,
    memory: int = 1 << 20,
    topology: Topology | None = None,
    rank: int = 0,
) -> NodeSpec:
    """A node with so many V100, or with GPUs of these models."""
    models = [V100] * gpus if isinstance(gpus, int) else list(gpus)
    devices = tuple(Device(g, f"{name}/{g}", model, mib) for g, model in enumerate(models))
    return NodeSpec(name, devices, cpu, memory, topology, rank)


def ask(milli: int = 0, **fields) -> Ask:
    """So many milli-GPU; labels are given by their own names."""
    named = {key: fields.pop(key) for key in ("affinity", "anti_affinity", "exclusion") if key in fields}
    return asking(milli // 1000, milli % 1000, labels=Labels(**named), **fields)


class Scene:
    """A cluster under a policy."""

    def __init__(
        self, *nodes: NodeSpec, by: str | Policy = "binpack", seed: int = 0, quotas: Quotas = NO_QUOTAS
    ) -> None:
        self.cluster = Cluster(nodes)
        self.decider = Decider(self.cluster, policy(by) if isinstance(by, str) else by, seed, quotas)
        self._number = 0

    def decide(self, milli: int = 0, **fields) -> Placement | Infeasible:
        """Where an ask would go."""
        return self.decider.decide(ask(milli, **fields))

    def where(self, milli: int = 0, **fields) -> list[str]:
        """The devices an ask would get, as `node/gpu`; none when refused."""
        found = self.decide(milli, **fields)
        return [piece.gpu for piece in found.slices] if isinstance(found, Placement) else []

    def place(self, milli: int = 0, name: str = "", **fields) -> list[str]:
        """Place and reserve; the devices it got."""
        wanted = ask(milli, **fields)
        found = self.decider.decide(wanted)
        assert isinstance(found, Placement), [verdict.reason for verdict in found.reasons()]
        self._number += 1
        self.decider.commit(name or f"t{self._number}", found, wanted)
        check(self.cluster)
        return [piece.gpu for piece in found.slices]

    def put(self, gpu: str, milli: int, name: str = "", **fields) -> str:
        """Reserve a part of a certain device; the tenant's name."""
        self._number += 1
        name = name or f"t{self._number}"
        wanted = ask(milli, gpu_uuid=gpu, **fields)
        found = self.decider.decide(wanted)
        assert isinstance(found, Placement)
        self.decider.commit(name, found, ask(milli, **fields))
        return name

"""The columnar core decides as a plain one that counts everything anew, under every policy."""

import pytest
from histories import asks, clusters, steps
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ledger import check
from plain_ledger import PlainLedger, fits
from plain_placement import (
    BestFit,
    Binpack,
    Clustering,
    DotProduct,
    Fgd,
    Gaia,
    KubeShare,
    Oracle,
    Packing,
    Spread,
)

from aliquot.placement.asks import Ask, Shape
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policies.fgd import Fgd as ProductionFgd
from aliquot.placement.policy import POLICIES, Policy, policy

QUICK = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.generate],  # a history of fifty steps shrinks slowly
)
TARGET = [
    (Shape(0, 300, cpu_milli=2000), 0.4),
    (Shape(1, 0, cpu_milli=9000), 0.3),
    (Shape(2, 0, models=("V100",), cpu_milli=500), 0.2),
    (Shape(cpu_milli=4000), 0.1),
]
PLAIN: dict[str, Oracle] = {
    "binpack": Binpack(),
    "spread": Spread(),
    "dotprod": DotProduct(),
    "bestfit": BestFit(),
    "clustering": Clustering(),
    "packing": Packing(),
    "gaia": Gaia(),
    "kubeshare": KubeShare(),
    "fgd": Fgd(TARGET),
}


class Twins:
    """One history, told to the production core and to the plain one."""

    def __init__(self, specs: list[NodeSpec], name: str) -> None:
        self.policy: Policy = ProductionFgd(TARGET) if name == "fgd" else policy(name)
        self.cluster = Cluster(specs)
        self.decider = Decider(self.cluster, self.policy, seed=7)
        self.ledger = PlainLedger({spec.name: spec for spec in specs})
        self.gone: list[NodeSpec] = []
        self.tenants = 0

    def step(self, kind: str, what: object) -> None:
        """Anything but an ask."""
        names = sorted(self.ledger.nodes)
        match kind:
            case "end" if self.ledger.held:
                tenant = sorted(self.ledger.held)[int(what) % len(self.ledger.held)]
                self.decider.release(tenant)
                del self.ledger.held[tenant]
            case "fail" if len(names) > 1:
                node = names[int(what) % len(names)]
                self.gone.append(self.ledger.nodes[node])
                self.ledger.fail(node)
                self.cluster.remove_node(node)
            case "join" if self.gone:
                spec = self.gone.pop()
                self.cluster.add_node(spec)
                self.ledger.nodes[spec.name] = spec
            case "cordon" if names:
                node = names[int(what) % len(names)]
                self.cluster.set_cordoned(node, node not in self.ledger.cordoned)
                self.ledger.cordoned ^= {node}

    def take(self, ask: Ask, found: Placement) -> None:
        """Write a placement into both ledgers."""
        self.tenants += 1
        self.decider.commit(f"t{self.tenants}", found, ask)
        self.ledger.reserve(f"t{self.tenants}", found, ask)


def chosen(twins: Twins, found: object) -> tuple[str, tuple[int, ...]] | None:
    """The production core's answer in the plain one's words."""
    if not isinstance(found, Placement):
        return None
    uuids = [gpu.uuid for gpu in twins.ledger.nodes[found.node].gpus]
    return found.node, tuple(uuids.index(piece.gpu) for piece in found.slices)


@pytest.mark.parametrize("name", sorted(POLICIES))
@QUICK
@given(specs=clusters(), history=steps())
def test_every_decision_is_the_plain_one_and_breaks_no_promise(name: str, specs, history):
    """After any history an ask is refused exactly if no node can take it, node and devices are those that the plain
    policy chooses, and nothing is promised twice, whatever the labels are."""
    twins = Twins(specs, name)
    for kind, what in history:
        if kind != "ask":
            twins.step(kind, what)
            continue
        found = twins.decider.decide(what)
        if name in PLAIN:
            assert PLAIN[name].decide(twins.ledger, what) == chosen(twins, found)
        possible = any(fits(twins.ledger, what, node) for node in twins.ledger.nodes)
        assert possible == isinstance(found, Placement)
        if isinstance(found, Placement):
            twins.take(what, found)
        check(twins.cluster)
        assert_promises(twins.ledger)


@QUICK
@given(specs=clusters(), history=steps(), probe=asks(), name=st.sampled_from(sorted(POLICIES)))
def test_feasible_nodes_are_the_plain_ones(specs, history, probe, name):
    """`feasible` is true for exactly the nodes that can take the ask, and one that was chosen by others is obeyed."""
    twins = Twins(specs, name)
    for kind, what in history:
        if kind != "ask":
            twins.step(kind, what)
        elif isinstance(found := twins.decider.decide(what), Placement):
            twins.take(what, found)
    feasible = twins.decider.feasible(probe)

    for node, number in twins.cluster.index.items():
        assert fits(twins.ledger, probe, node) == feasible[number]
        assert feasible[number] == isinstance(twins.decider.place_on(probe, node), Placement)


def assert_promises(ledger: PlainLedger) -> None:
    """Nothing is promised twice, an affinity label is on one GPU, anti-affinity never meets, exclusion never mixes."""
    affinity: dict[str, set[tuple[str, int]]] = {}
    for node, spec in ledger.nodes.items():
        assert min(ledger.free(node), default=0) >= 0
        assert min(ledger.free_mib(node), default=0) >= 0
        assert ledger.cpu(node) >= 0 and ledger.memory(node) >= 0
        for g in range(len(spec.gpus)):
            here = [ask for _, _, ask in ledger.on(node, g)]
            anti = [ask.labels.anti_affinity for ask in here if ask.labels.anti_affinity]
            assert len(anti) == len(set(anti))
            assert len({ask.labels.exclusion for ask in here}) <= 1
            for ask in here:
                affinity.setdefault(ask.labels.affinity, set()).add((node, g))
    affinity.pop("", None)
    assert all(len(devices) == 1 for devices in affinity.values())

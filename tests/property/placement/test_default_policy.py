"""The default policy with all that it remembers decides as one that remembers nothing, whatever has happened."""

import pytest
from asking import asking
from histories import clusters, steps
from hypothesis import HealthCheck, Phase, given, settings
from ledger import check
from plain_kernels import PlainKernels

from aliquot.model.requests import Device
from aliquot.placement import kernels as loops
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.kernels import Kernels
from aliquot.placement.policies.aliquot import Aliquot, Constants

SMALL = Constants(sequences=4, visits=8)
"""Few and short sequences: the oracle takes its time."""
LIBRARY = loops.kernels()


class Side:
    """A cluster, its decider and the loops under it; a forgetful one makes every score anew."""

    def __init__(self, specs: list[NodeSpec], loops_of_it: Kernels, *, forgetful: bool) -> None:
        self.loops, self.forgetful = loops_of_it, forgetful
        loops._current = loops_of_it
        self.cluster = Cluster(specs)
        self.policy = Aliquot(SMALL)
        self.decider = Decider(self.cluster, self.policy)
        self.gone: list[NodeSpec] = []

    def step(self, number: int, kind: str, what: object) -> Placement | None:
        """One thing that happens; where an ask went."""
        loops._current = self.loops
        names = sorted(self.cluster.index)
        match kind:
            case "ask":
                return self._place(f"t{number}", what)
            case "end" if self.cluster.tenants:
                self.decider.release(sorted(self.cluster.tenants)[int(what) % len(self.cluster.tenants)])
            case "fail" if len(names) > 1:
                node = names[int(what) % len(names)]
                self.gone.append(self.cluster.spec(self.cluster.node_index(node)))
                self.cluster.remove_node(node)
            case "join" if self.gone:
                self.cluster.add_node(self.gone.pop())
            case "cordon":
                node = names[int(what) % len(names)]
                self.cluster.set_cordoned(node, bool(self.cluster.open[self.cluster.node_index(node)]))
        return None

    def _place(self, tenant: str, ask: Ask) -> Placement | None:
        if self.forgetful:
            self.decider._memos.clear()
        found = self.decider.decide(ask)
        if not isinstance(found, Placement):
            return None
        self.decider.commit(tenant, found, ask)
        return found


@pytest.fixture(autouse=True)
def same_loops_as_before():
    """What a test puts in use is not in use after it."""
    yield
    loops._current = LIBRARY


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
)
@given(specs=clusters(), history=steps())
def test_memory_changes_no_decision(specs, history):
    """After arrivals, departures, failures and cordons, the library with its memos and the oracle without agree."""
    quick, plain = Side(specs, LIBRARY, forgetful=False), Side(specs, PlainKernels(), forgetful=True)

    for number, (kind, what) in enumerate(history):
        assert plain.step(number, kind, what) == quick.step(number, kind, what)
        assert plain.policy.dump() == quick.policy.dump()
    check(quick.cluster)


def test_nine_gpus_and_more_are_no_other_case():
    """Nodes of more devices than a register of the library holds are judged as by the oracle, full and empty."""
    specs = [
        NodeSpec(f"n{n}", tuple(Device(g, f"G-{n}-{g}", "V100", 16384) for g in range(count)), 96_000, 1 << 20, rank=n)
        for n, count in enumerate((8, 9, 16, 3))
    ]
    sides = [Side(specs, LIBRARY, forgetful=False), Side(specs, PlainKernels(), forgetful=True)]
    sizes = (
        asking(rest_milli=470),
        asking(whole=1),
        asking(rest_milli=160),
        asking(whole=2),
        asking(whole=1, rest_milli=300),
    )

    found = [[side.step(n, "ask", sizes[n * 7 % 5]) for n in range(60)] for side in sides]

    assert found[0] == found[1]
    assert 4 == len({placement.node for placement in found[0] if placement})

"""What slots for several GPUs and scarce models cost."""

import numpy as np
import pytest
from conftest import cluster_of

from aliquot.placement.asks import Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.demand import MODEL_PRICE, SLOT_PRICE, ArrivalHistory, Prices, Pricing, ShapeDemand
from aliquot.placement.kernels import Columns, Kernels, shape_record

PAIR = Shape(whole=2, cpu_milli=8000)
ONE = Shape(whole=1, cpu_milli=4000)
PICKY = Shape(whole=1, cpu_milli=4000, models=("T4",))


def prices_of(
    kernels: Kernels, cluster: Cluster, arrivals: list[Shape], chi: float = 0.0, prior: bool = False
) -> Prices:
    """The prices after these arrivals, none of which was placed."""
    history = ArrivalHistory()
    for shape in arrivals:
        history.arrive(shape)
    demands = [
        ShapeDemand(shape_record(cluster, shape, n), shape.devices, shape.milli, count)
        for n, shape, count in history.counts()
    ]
    pricing = Pricing(prior=prior)
    pricing.look(cluster)
    columns = Columns(cluster)
    return pricing.prices(kernels, columns, history, demands, kernels.idle(columns), chi)


def test_slots_are_dear_when_they_are_few(both: Kernels):
    """The price of a slot is that of its GPUs, by the square of expected pods per slot."""
    cluster = cluster_of(("T4", 2, 64000), ("T4", 2, 64000))

    found = prices_of(both, cluster, [PAIR, ONE, ONE])

    expected_pods = 1 * 4000 / 4000
    assert pytest.approx(SLOT_PRICE * 2000 * (expected_pods / 2) ** 2) == found.slots["price"][0]


def test_slots_cost_their_expected_use_in_a_cluster_that_lives(both: Kernels):
    """With chi 1 the price is linear, at full scale, and departures add to the horizon."""
    cluster = cluster_of(("T4", 2, 64000), ("T4", 2, 64000))

    found = prices_of(both, cluster, [PAIR, ONE, ONE], chi=1.0)

    expected_pods = 1 * (4000 + 0.2 * 4000) / 4000
    assert pytest.approx(2000 * expected_pods / 2) == found.slots["price"][0]


def test_no_slot_no_price(both: Kernels):
    """A cluster that cannot hold two GPUs on one node keeps no slots for them."""
    cluster = cluster_of(("T4", 1, 64000), ("T4", 1, 64000))

    assert [0.0] == prices_of(both, cluster, [PAIR, ONE]).slots["price"].tolist()


def test_unseen_pods_that_fill_a_node_have_a_price(both: Kernels):
    """Each kind of node with several GPUs is priced for one pod that wants all of it."""
    cluster = cluster_of(("T4", 2, 64000), ("G3", 8, 128000), ("A10", 1, 32000))

    found = prices_of(both, cluster, [ONE], prior=True)

    assert [2.0, 8.0] == found.slots["gpus"].tolist()
    assert (found.slots["price"] > 0).all()


def test_scarce_models_cost_those_who_could_do_without(both: Kernels):
    """A model that demand will use up costs the full price, one that nobody insists on costs nothing."""
    cluster = cluster_of(("T4", 1, 64000), ("V100", 8, 64000))

    found = prices_of(both, cluster, [PICKY, ONE])

    t4, v100 = cluster.models.index("T4"), cluster.models.index("V100")
    assert MODEL_PRICE == found.model_price[t4]
    assert 0.0 == found.model_price[v100]


def test_without_constraints_models_are_free(both: Kernels):
    """Nobody who insists on a model, no price of models."""
    cluster = cluster_of(("T4", 1, 64000), ("V100", 8, 64000))

    assert not np.any(prices_of(both, cluster, [ONE, PAIR]).model_price)


def test_nodes_that_are_held_are_no_slots(both: Kernels):
    """A cordoned node offers no slot."""
    cluster = cluster_of(("T4", 2, 64000), ("T4", 2, 64000))
    free = prices_of(both, cluster, [PAIR, ONE, ONE]).slots["price"][0]
    cluster.set_cordoned("n0")

    assert prices_of(both, cluster, [PAIR, ONE, ONE]).slots["price"][0] > free

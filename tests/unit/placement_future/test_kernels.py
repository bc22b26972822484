"""The native inner loops and their plain oracles give the same answers, to the last bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_kernels import PlainKernels, value_of
from strategies import clusters, sequences, shapes, slots, targets

from aliquot.placement.asks import Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.fits import fitting_nodes
from aliquot.placement.kernels import MODELS, Columns, Records, kernels, shape_record

NATIVE, PLAIN = kernels(), PlainKernels()
EXAMPLES = settings(max_examples=60, deadline=None)


@EXAMPLES
@given(clusters())
def test_idle_milli(cluster: Cluster):
    """Idle milli-GPU agree in all and by model."""
    columns = Columns(cluster)
    total, by_model = PLAIN.idle(columns)

    assert (total, by_model.tolist()) == (NATIVE.idle(columns)[0], NATIVE.idle(columns)[1].tolist())


@EXAMPLES
@given(clusters(), shapes(), targets())
def test_fgd_scores_and_fragmentation(cluster: Cluster, shape: Shape, workload: Records):
    """Fragmentation is equal to the last bit, scores and devices of FGD with it."""
    columns, record = Columns(cluster), shape_record(cluster, shape, 0)
    everywhere = np.arange(columns.nodes, dtype=np.int64)
    before = PLAIN.fragmentation(columns, workload, everywhere)
    fitting = np.flatnonzero(fitting_nodes(cluster, shape, everywhere))

    ours, devices = NATIVE.fgd_scores(columns, workload, record, before, fitting)
    oracle, oracle_devices = PLAIN.fgd_scores(columns, workload, record, before, fitting)

    assert before.tolist() == NATIVE.fragmentation(columns, workload, everywhere).tolist()
    assert (oracle.tolist(), oracle_devices.tolist()) == (ours.tolist(), devices.tolist())


@EXAMPLES
@given(clusters(), shapes(), sequences(), slots(), st.sampled_from([0.0, 0.3, 1.0]), st.floats(0.0, 2.0))
def test_scores_of_the_future(
    cluster: Cluster, shape: Shape, sequence: Records, kinds: Records, chi: float, price: float
):
    """Scores, options on devices and slots agree, also when they are asked for a second time and from the memo."""
    columns, record = Columns(cluster), shape_record(cluster, shape, 3)
    fitting = np.flatnonzero(fitting_nodes(cluster, shape, np.arange(columns.nodes)))
    weight = 0.7 + 0.3 * 0.5 ** np.arange(1, sequence.shape[1] + 1)
    model_price = np.zeros(MODELS)
    model_price[:3] = price
    found = []
    for loops in (NATIVE, PLAIN):
        future = loops.future(columns.nodes, columns.gpus)
        future.learn(sequence, weight)
        future.price(kinds, model_price, chi)
        scores = [future.scores(columns, record, fitting, 20.0).tolist() for _ in range(2)]
        options = [
            future.option(columns, record, int(node), gpu)
            for node in fitting
            for gpu in range(int(cluster.gpu_count[node]))
            if shape.rest_milli
        ]
        found.append((scores, options, loops.capacity(columns, kinds, chi, ~cluster.open).tolist()))

    assert found[1] == found[0]


@EXAMPLES
@given(clusters(), sequences(), st.integers(0, 40_000), st.lists(st.integers(0, 1000), min_size=1, max_size=9))
def test_value_of_a_node(cluster: Cluster, sequence: Records, cpu_milli: int, left: list[int]):
    """The value of a node does not depend on the order of its devices nor on the form of the loop."""
    weight = np.linspace(1.0, 0.3, sequence.shape[1])
    plain, native = PLAIN.future(1, 9), NATIVE.future(1, 9)
    for future in (plain, native):
        future.learn(sequence, weight)
    devices = np.array(left, dtype=np.int64)

    assert value_of(plain, 0, cpu_milli, devices) == value_of(native, 0, cpu_milli, devices[::-1])


@EXAMPLES
@given(clusters(), st.integers(1, 999), targets(), st.sets(st.integers(0, 7), min_size=1))
def test_fgd_takes_one_of_the_devices_that_labels_leave(
    cluster: Cluster, milli: int, workload: Records, allowed: set[int]
):
    """Where labels rule devices of a node out, FGD chooses among the others, by the same scores."""
    shape, columns = Shape(rest_milli=milli), Columns(cluster)
    record, everywhere = shape_record(cluster, shape, 0), np.arange(columns.nodes, dtype=np.int64)
    before = PLAIN.fragmentation(columns, workload, everywhere)
    for node in np.flatnonzero(fitting_nodes(cluster, shape, everywhere)).tolist():
        left, one = columns.only(node, sorted(allowed)), np.array([node])
        (score,), (gpu,) = NATIVE.fgd_scores(left, workload, record, before, one)
        among = {g: PLAIN.fgd_scores(columns.only(node, [g]), workload, record, before, one)[0][0] for g in allowed}

        assert score == max(among.values())
        assert gpu == min((g for g in allowed if among[g] == score), default=-1) or score == -1

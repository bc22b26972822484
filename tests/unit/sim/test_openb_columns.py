"""The benchmark's measures: fragmentation and the columns of the result files."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aliquot.placement.asks import Shape
from aliquot.placement.policies.fgd import typical_shapes
from aliquot_lab.sim.openb.fragmentation import Fragmentation
from aliquot_lab.sim.openb.results import TaskEvents, columns

MODELS = ["T4", "G2"]

shapes = st.builds(
    lambda milli, **rest: Shape(milli // 1000, milli % 1000, **rest),
    milli=st.sampled_from([50, 300, 500, 1000]),
    cpu_milli=st.sampled_from([0, 1000, 4000, 16000]),
    models=st.sampled_from([(), ("T4",), ("G2", "T4")]),
) | st.sampled_from([Shape(2, cpu_milli=8000), Shape(cpu_milli=2000), Shape(4, models=("G2",), cpu_milli=8000)])
states = st.tuples(st.lists(st.integers(0, 1000), min_size=0, max_size=4), st.integers(0, 20000), st.integers(0, 1))


def plain(shape: Shape, left: list[int], cpu: int, model: str) -> int:
    """FGD's definition for one shape, word by word."""
    idle, each = sum(left), 1000 if shape.whole else shape.rest_milli
    fitting = [milli for milli in left if milli >= each]
    if shape.devices == 0 or (shape.models and model not in shape.models):
        return idle
    if cpu < shape.cpu_milli or len(fitting) < shape.devices:
        return idle
    return sum(milli for milli in left if milli < each)


@given(st.lists(st.tuples(shapes, st.integers(1, 9)), min_size=1, max_size=6), st.lists(states, min_size=1, max_size=5))
def test_fragmentation_is_the_mean_over_the_workload(workload, nodes):
    """A node's fragmentation is what the expected task could not use of its idle GPU, exactly."""
    free = np.full((len(nodes), 4), -1, dtype=np.int32)
    for row, (left, _, _) in enumerate(nodes):
        free[row, : len(left)] = left
    cpu = np.array([cpu for _, cpu, _ in nodes], dtype=np.int64)
    model = np.array([model if left else -1 for left, _, model in nodes], dtype=np.int64)

    ours = Fragmentation(workload, MODELS).numerators(free, cpu, model)

    expected = [
        sum(count * plain(shape, left, cpu_left, MODELS[number]) for shape, count in workload)
        for left, cpu_left, number in nodes
    ]
    assert expected == ours.tolist()


def test_the_target_workload_covers_most_of_the_trace():
    """Shapes are taken from the most frequent down until 95 % are covered; of equals the larger CPU first."""
    often, seldom, rare = (Shape(0, 500, cpu_milli=cpu) for cpu in (1, 9, 2))

    assert [(often, 90), (seldom, 5)] == typical_shapes({often: 90, rare: 5, seldom: 5})


def test_columns_are_means_by_percent_arrived():
    """A column is the mean over the events at its percent; where there is none, over the neighbours."""
    events = TaskEvents(
        arrived_milli=np.array([1000, 3000, 3400]),
        used_milli=np.array([1000, 3000, 3000]),
        frag_numerator=np.array([500, 700, 700]) * 4,
        frag_denominator=4,
        gpus=100,
    )

    seen = columns(events)

    assert [1.0, 2.33, 3.0, 3.0] == seen.allocation[[1, 2, 3, 4]].tolist()
    assert [0.5, 0.7] == seen.frag[[1, 3]].tolist()
    assert np.isnan(seen.allocation[5])

"""What the value of a node means, on nodes small enough to work it out by hand."""

import numpy as np
import pytest
from conftest import visits
from plain_kernels import value_of

from aliquot.placement.asks import Shape
from aliquot.placement.kernels import Kernels

HALF = Shape(rest_milli=500, cpu_milli=1000)
THIRD = Shape(rest_milli=300, cpu_milli=1000)
ONE = Shape(whole=1, cpu_milli=4000)
TWO = Shape(whole=2, cpu_milli=8000)


@pytest.mark.parametrize(
    ("value", "cpu_milli", "left", "sequences"),
    [
        (1000, 10_000, [1000], [[HALF, ONE, HALF, THIRD]]),  # what fits adds its milli-GPU in turn; the rest passes
        (800, 10_000, [500, 400], [[THIRD, HALF]]),  # 0.3 goes where 0.4 is left, so that 0.5 still holds a half
        (0, 10_000, [500] * 4, [[TWO]]),  # two GPUs do not come together from four halves
        (2000, 10_000, [500, 1000, 1000], [[TWO]]),
        (1000, 2500, [1000, 1000], [[HALF] * 3]),  # CPU runs out
        (0, 999, [1000, 1000], [[HALF] * 3]),
        (1000, 4000, [1000], [[HALF, HALF], [ONE, ONE]]),  # the mean of sequences that start from the same node
    ],
)
def test_value_is_what_the_visits_put_on_the_node(
    both: Kernels, value: int, cpu_milli: int, left: list[int], sequences: list[list[Shape]]
):
    """After sequences of visits of equal weight a node is worth what these would take of its devices."""
    future = both.future(1, 8)
    future.learn(visits(*sequences), np.ones(len(sequences[0])))

    assert value == value_of(future, 0, cpu_milli, np.array(left))


def test_late_visits_weigh_less(both: Kernels):
    """A visit counts with the weight of its place, whoever was placed before it."""
    future = both.future(1, 1)
    future.learn(visits([ONE, HALF, HALF]), np.array([1.0, 0.5, 0.25]))

    assert pytest.approx(500 * 0.5 + 500 * 0.25) == value_of(future, 0, 2_000, np.array([1000]))


def test_nothing_learned_is_worth_nothing(both: Kernels):
    """Before the first arrival every node has value 0."""
    assert 0 == value_of(both.future(1, 1), 0, 2_000, np.array([1000]))

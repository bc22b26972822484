"""What the value of a node means, on nodes small enough to work it out by hand."""

import numpy as np
import pytest
from conftest import visits
from plain_kernels import value_of

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Shape
from aliquot.placement.kernels import Future, Kernels

HALF = Shape(rest_milli=500, cpu_milli=1000)
THIRD = Shape(rest_milli=300, cpu_milli=1000)
ONE = Shape(whole=1, cpu_milli=4000)
TWO = Shape(whole=2, cpu_milli=8000)


def learned(kernels: Kernels, *sequences: list[Shape]) -> Future:
    """A value function that has seen these sequences, all visits of equal weight."""
    future = kernels.future(1, 8)
    future.learn(visits(*sequences), np.ones(len(sequences[0])))
    return future


def devices(*left: int) -> IntArray:
    """What is left of each device."""
    return np.array(left, dtype=np.int64)


def test_value_is_what_the_visits_put_on_the_node(both: Kernels):
    """Visits that fit add their milli-GPU, one after the other; the rest passes."""
    future = learned(both, [HALF, ONE, HALF, THIRD])

    assert 1000 == value_of(future, 0, 10_000, devices(1000))


def test_a_fraction_takes_the_device_with_the_least_left(both: Kernels):
    """0.3 goes to the device with 0.4, so that the one with 0.5 still holds a half."""
    future = learned(both, [THIRD, HALF])

    assert 800 == value_of(future, 0, 10_000, devices(500, 400))


def test_whole_gpus_need_untouched_devices(both: Kernels):
    """Two GPUs do not come together from four halves."""
    future = learned(both, [TWO])

    assert 0 == value_of(future, 0, 10_000, devices(500, 500, 500, 500))
    assert 2000 == value_of(future, 0, 10_000, devices(500, 1000, 1000))


def test_cpu_runs_out(both: Kernels):
    """A node without CPU has no future, however many GPUs are idle."""
    future = learned(both, [HALF, HALF, HALF])

    assert 1000 == value_of(future, 0, 2_500, devices(1000, 1000))
    assert 0 == value_of(future, 0, 999, devices(1000, 1000))


def test_value_is_the_mean_of_the_sequences(both: Kernels):
    """Each sequence starts from the same node."""
    future = learned(both, [HALF, HALF], [ONE, ONE])

    assert 1000 == value_of(future, 0, 4_000, devices(1000))


def test_late_visits_weigh_less(both: Kernels):
    """A visit counts with the weight of its place, whoever was placed before it."""
    future = both.future(1, 1)
    future.learn(visits([ONE, HALF, HALF]), np.array([1.0, 0.5, 0.25]))

    assert pytest.approx(500 * 0.5 + 500 * 0.25) == value_of(future, 0, 2_000, devices(1000))


def test_nothing_learned_is_worth_nothing(both: Kernels):
    """Before the first arrival every node has value 0."""
    assert 0 == value_of(both.future(1, 1), 0, 2_000, devices(1000))

"""Figures of a run: means over time are exact, waits count what they should."""

import numpy as np
from asking import asking
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement.cluster import NodeSpec
from aliquot_lab.sim.engine import SimSettings, Simulation
from aliquot_lab.sim.figures import BINS, Curve, measured
from aliquot_lab.sim.kernel import Job, us
from aliquot_lab.sim.policies import made

NODE = NodeSpec("a", tuple(Device(i, GpuUuid(f"a/{i}"), "V100", 16000) for i in range(2)), 64_000, 64_000)


def figures(jobs, **how):
    outcome = Simulation([NODE], jobs, made("binpack"), settings=SimSettings(**how)).run()
    return measured(outcome, [NODE])


def job(name: str, milli: int, at_s: float, for_s: float) -> Job:
    return Job(name, asking(whole=milli // 1000, rest_milli=milli % 1000), us(at_s), us(for_s))


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 9)), min_size=1, max_size=20), st.integers(0, 99))
def test_the_mean_of_a_curve_is_its_integral(steps, start):
    """The mean over a span equals the sum of value times duration, whatever the steps."""
    at = np.cumsum([gap for gap, _ in steps])
    values = [value for _, value in steps]
    end = int(at[-1]) + 10
    curve = Curve(at.astype(np.int64), np.array(values), end)
    low, high = sorted((min(start, end), end))

    plain = sum(([0.0, *values][int((at <= t).sum())]) for t in range(low, high))

    assert abs(plain - curve.integral(low, high)) < 1e-6


def test_a_runs_figures_are_what_one_reckons():
    """Two GPUs, a whole one for 10 s and half of one for 20 s: 50 % of the first 10 s were 75 % given away."""
    seen = figures([job("x", 1000, 0, 10), job("y", 500, 0, 20), job("z", 1000, 10, 0)]).figures

    assert 75.0 == seen["allocation_percent"]
    assert (20.0, 50.0) == (seen["makespan_s"], seen["utilisation_percent"])
    assert 9.0 == seen["throughput_per_min"]
    assert (3, 3, 0) == (seen["placed"], seen["finished"], seen["waiting_at_end"])


def test_who_never_starts_has_waited_until_the_end():
    """A job that is still waiting when the run ends counts with the time until then."""
    seen = figures([job("x", 2000, 0, 100), job("y", 1000, 10, 5)], until_us=us(50)).figures

    assert (40.0, 1) == (seen["wait_max_s"], seen["waiting_at_end"])
    assert 20.0 == seen["wait_mean_s"]


def test_the_heat_strip_holds_what_the_curve_holds():
    """The use of all GPUs together is the allocation at every time."""
    seen = figures([job(f"{n}", 300 + 100 * (n % 4), 3.0 * n, 7 + n % 5) for n in range(40)])

    assert (2, BINS) == seen.gpu_use.shape
    assert np.abs(100 * seen.gpu_use.mean(axis=0) - seen.curves["allocation_percent"]).max() < 0.1

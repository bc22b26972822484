"""Windows over samples, and what a mix is due."""

import pytest

from aliquot_lab.bench.fig6 import Sample, Tenant
from aliquot_lab.bench.shares import MIXES, ShareMix, mix_error, windows

S = 1_000_000_000
T0, T1 = Tenant("t0"), Tenant("t1")


def samples(*used_s: tuple[float, float]) -> list[Sample]:
    """One sample a second; the numbers are what each tenant used in it."""
    out, totals = [Sample(0, {}, {T0: 0, T1: 0})], {T0: 0, T1: 0}
    for second, used in enumerate(used_s, 1):
        totals = {tenant: totals[tenant] + int(part * S) for tenant, part in zip(totals, used, strict=True)}
        out.append(Sample(second * S, {}, totals))
    return out


def test_every_whole_window_is_looked_at():
    """Windows begin at every sample that has one a window later."""
    seen = windows(samples((0.5, 0.5), (0.3, 0.7), (0.7, 0.3)), 2)

    assert [pytest.approx({T0: 0.4, T1: 0.6}), pytest.approx({T0: 0.5, T1: 0.5})] == seen


def test_the_worst_window_counts():
    """One bad window is a bad mix."""
    mix = ShareMix("m", ((500, 1000, ()), (500, 1000, ())))

    assert pytest.approx(10) == mix_error(mix, [{T0: 0.5, T1: 0.5}, {T0: 0.4, T1: 0.6}])


def test_equal_tenants_are_measured_against_each_other():
    """Time that both leave idle is nobody's error."""
    mix = ShareMix("m", ((500, 1000, ()), (500, 1000, ())), equal=True)

    assert pytest.approx(5) == mix_error(mix, [{T0: 0.35, T1: 0.45}])


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_requests_of_a_mix_fill_the_gpu(mix):
    """The due of every mix is its request, so requests add up to one GPU."""
    assert 1000 == sum(ask.request_milli for _, ask, _ in mix.wanted)

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


@pytest.mark.parametrize(
    ("equal", "used", "error"),
    [
        (False, [(0.5, 0.5), (0.4, 0.6)], 10),  # one bad window is a bad mix
        (True, [(0.35, 0.45)], 5),  # equal tenants are measured against each other: time that both leave is no error
    ],
)
def test_the_worst_window_counts(equal: bool, used: list[tuple[float, float]], error: int):
    """The error of a mix is that of its worst window, in points."""
    mix = ShareMix("m", ((500, 1000, ()), (500, 1000, ())), equal=equal)

    assert pytest.approx(error) == mix_error(mix, [{T0: first, T1: second} for first, second in used])


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_requests_of_a_mix_fill_the_gpu(mix):
    """The due of every mix is its request, so requests add up to one GPU."""
    assert 1000 == sum(ask.request_milli for _, ask, _ in mix.wanted)

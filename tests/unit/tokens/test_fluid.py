"""The fluid: requests first, then the rest levelled up to the limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.tokens import Share
from aliquot.tokens.fluid import WHOLE, rates


@pytest.mark.parametrize(
    ("shares", "milli"),
    [
        ([(300, 1000)], [1000]),
        ([(300, 600)], [600]),
        ([(200, 500), (300, 1000), (500, 500)], [200, 300, 500]),
        ([(200, 500), (300, 1000)], [500, 500]),
        ([(200, 500), (500, 500)], [500, 500]),
        ([(0, 1000), (0, 1000), (700, 1000)], [150, 150, 700]),
        ([(800, 1000), (800, 1000)], [500, 500]),
        ([], []),
    ],
)
def test_rates_are_requests_and_the_rest_levelled_up(shares, milli):
    """The lowest are raised together, never beyond a limit, and nobody below its request while requests fit."""
    assert [m * WHOLE // 1000 for m in milli] == rates([Share(*share) for share in shares], [["g"]] * len(shares))


def alone(shares: list[Share]) -> list[int]:
    return rates(shares, [["g"]] * len(shares))


def by_halving(shares: list[Share]) -> list[float]:
    """The same by trying levels."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        level = (low + high) / 2
        full = sum(min(max(level, s.request_milli), s.limit_milli) for s in shares)
        low, high = (level, high) if full < 1000 else (low, level)
    return [min(max(high, s.request_milli), s.limit_milli) / 1000 for s in shares]


@st.composite
def fitting(draw: st.DrawFn) -> list[Share]:
    """Shares whose requests fit one GPU."""
    left, shares = 1000, []
    for _ in range(draw(st.integers(1, 8))):
        request = draw(st.integers(0, left))
        shares.append(Share(request, draw(st.integers(max(request, 1), 1000))))
        left -= request
    return shares


@given(fitting())
def test_rates_are_those_of_the_level_found_by_trying(shares: list[Share]):
    """Every rate is within a millionth for each tenant of the plain oracle's, and all are never more than the GPU."""
    assert sum(alone(shares)) <= WHOLE
    for rate, oracle in zip(alone(shares), by_halving(shares), strict=True):
        assert abs(rate / WHOLE - oracle) * WHOLE < len(shares) + 1e-3


def test_a_tenant_of_two_gpus_has_one_rate():
    """Where one of its GPUs is shared, it uses the other no more than that one; the other's neighbour has the rest."""
    half = Share(500, 1000)
    assert [500_000, 500_000, 500_000] == rates([half, half, half], [["g0", "g1"], ["g0"], ["g1"]])
    assert [300_000, 700_000, 700_000] == rates(
        [Share(300, 1000), Share(700, 1000), Share(100, 1000)], [["g0", "g1"], ["g0"], ["g1"]]
    )


@given(fitting(), st.data())
def test_nobody_could_have_more(shares: list[Share], data: st.DataObject):
    """Every tenant is at its limit or has a GPU that is full, no GPU is overfull, and every request is met."""
    gpus = [sorted(data.draw(st.sets(st.integers(0, 3), min_size=1))) for _ in shares]
    found = rates(shares, gpus)
    used = {g: sum(r for r, mine in zip(found, gpus, strict=True) if g in mine) for g in range(4)}
    assert max(used.values()) <= WHOLE
    for share, rate, mine in zip(shares, found, gpus, strict=True):
        assert share.request_milli * 1000 <= rate <= share.limit_milli * 1000
        assert rate == share.limit_milli * 1000 or max(used[g] for g in mine) > WHOLE - len(shares)

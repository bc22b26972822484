"""Whether promises were kept, from the arbiter's counts of windows."""

import pytest

from aliquot.status.history import MAX_READINGS, PromiseHistory
from aliquot.status.tenants import PromiseStatus, TenantStatus

S = 1_000_000_000


def status(windows: int, kept: int) -> TenantStatus:
    """A tenant of which the arbiter has judged so many windows."""
    return TenantStatus(
        name="a", request_milli=500, limit_milli=1000, usage=0, charged_ns=0, memory_used_mib=0, memory_limit_mib=0,
        memory_context_mib=0, wait_ms_p50=0, debt_ms=0, quota_ms=0, handovers=0, processes=1, waiting=False,
        promise=PromiseStatus(windows=windows, kept=kept),
    )  # fmt: skip


def judged(*looks: TenantStatus, every_s: float = 10.0) -> tuple[float | None, int]:
    """Percent kept and windows counted after looks that are so far apart."""
    history = PromiseHistory(10.0)
    for n, look in enumerate(looks):
        history.add("GPU-0", look, round(n * every_s * S))
    return history.kept_percent("GPU-0", "a")


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([status(0, 0), status(0, 0)], (None, 0)),
        ([status(40, 30)], (75.0, 40)),
        ([status(40, 40), status(40, 40), status(50, 45)], (90.0, 50)),
    ],
    ids=["no window yet", "those of before the first look", "those since"],
)
def test_each_window_counts_once(looks: list[TenantStatus], expected: tuple[float | None, int]):
    """The first look shows the windows since the tenant came, later ones add what came since."""
    assert expected == judged(*looks)


@pytest.mark.parametrize("later", [status(4, 4), status(50, 20)])
def test_counts_that_go_back_begin_anew(later: TenantStatus):
    """A new tenant of an old name, or a restarted arbiter, adds its own windows to those of before."""
    percent, windows = judged(status(40, 40), later)

    assert 40 + later.promise.windows == windows
    assert 100.0 * (40 + later.promise.kept) / windows == percent


def test_only_the_last_hour_counts():
    """Windows older than an hour do not count any more."""
    broken, kept = status(40, 0), [status(40 + 40 * n, 40 * n) for n in range(1, 362)]

    assert (100.0, 361 * 40) == judged(broken, *kept)


def test_a_clock_that_creeps_fills_no_memory():
    """A node that says that next to no time has passed has no more looks than an honest one."""
    looks = [status(n, n) for n in range(1, 4001)]

    assert MAX_READINGS == judged(*looks, every_s=0.001)[1]


@pytest.mark.parametrize(("windows", "kept"), [(10, 20), (-5, -5), (10, -1)])
def test_counts_that_cannot_be_are_cut(windows: int, kept: int):
    """A node that counts more kept than there were, or below zero, gives a figure from 0 to 100."""
    percent, count = judged(status(windows, kept))

    assert percent is None or 0 <= percent <= 100
    assert count >= 0

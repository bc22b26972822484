"""Fig. 6 as arithmetic."""

import pytest

from aliquot.tokens.actions import Share
from aliquot.tokens.fluid import rates
from aliquot_lab.bench.fig6 import FAST, PAPER, RESIZE, A, B, C, Measured, Report, Sample, measure, shares

S = 1_000_000_000


def perfect(timeline=PAPER, *, off: float = 0.0) -> Report:
    """A report in which every share is off by the same amount."""
    report = Report("Tesla V100", emulated=True)
    for phase in timeline.phases:
        seen = {tenant: due + off for tenant, due in phase.expected.items()}
        report.phases.append(Measured(phase, seen, seen))
    return report


def test_the_paper_timeline_is_the_paper_s():
    """B comes at 200 s, C at 400 s, C leaves at 660 s."""
    assert [phase.start_s for phase in PAPER.phases] == [0, 200, 400, 660]


def test_the_fast_timeline_ends_within_a_minute():
    """Fast is under a minute and leaves each phase more than two windows to be measured in."""
    assert FAST.end_s < 60
    assert all(phase.end_s - phase.start_s >= 4 * FAST.window_s for phase in FAST.phases)


@pytest.mark.parametrize("phase", [*PAPER.phases, *RESIZE.phases], ids=lambda phase: phase.name)
def test_what_is_due_follows_from_the_asks(phase):
    """The shares of every phase are what request and limit give where the rest is levelled."""
    asks = [Share(phase.asks[tenant].request_milli, phase.asks[tenant].limit_milli) for tenant in phase.expected]
    due = [rate / 1e6 for rate in rates(asks, [("GPU",)] * len(asks))]

    assert pytest.approx(list(phase.expected.values())) == due


def test_a_share_is_the_difference_over_the_span():
    """Time used between two samples over the time between them."""
    assert shares({A: 1 * S}, {A: 6 * S, B: 5 * S // 2}, 10 * S) == {A: 0.5, B: 0.25}


def test_no_span_no_share():
    """A span of zero is refused, not divided by."""
    with pytest.raises(ValueError, match="above zero"):
        shares({}, {A: 1}, 0)


def test_a_tenant_that_left_does_not_count():
    """C's leftovers are no part of the phase after it ended."""
    settled = Sample(0, {A: 0, B: 0, C: 5}, {A: 0, B: 0})
    last = Sample(10 * S, {A: 5 * S, B: 5 * S, C: 5}, {A: 5 * S, B: 5 * S})

    seen = measure(PAPER.phases[3], settled, last)

    assert {A: 0.0, B: 0.0} == seen.errors()
    assert {A, B} == set(seen.charged)


def test_a_missing_tenant_is_an_error_as_large_as_its_share():
    """Who never ran is off by all it was due."""
    seen = measure(PAPER.phases[0], Sample(0, {}, {}), Sample(S, {}, {}))

    assert pytest.approx(0.6) == seen.errors()[A]


def test_the_promise_is_kept_within_two_points():
    """1.9 points of what is charged pass, 2.1 do not, and nothing measured is not a success."""
    assert perfect(off=0.019).kept
    assert not perfect(off=0.021).kept
    assert not Report("x", emulated=True).kept


@pytest.mark.parametrize(("emulated", "done", "kept"), [(True, 0.75, True), (True, 0.65, False), (False, 0.9, False)])
def test_a_machine_that_does_less_of_everything_changes_nobody_s_part(emulated, done, kept):
    """Kernels that fill only a part of the time charged are no error of a share, within what the GPU may lose."""
    report = perfect()
    lossy = [
        Measured(seen.phase, {tenant: share * done for tenant, share in seen.measured.items()}, seen.charged)
        for seen in report.phases
    ]
    seen = Report("x", emulated=emulated, phases=lossy)

    assert (pytest.approx(done), pytest.approx(0.0), kept) == (seen.done_per_charged, seen.max_error, seen.kept)


def test_a_tenant_whose_kernels_do_not_fill_its_share_is_off():
    """One of two tenants that does a tenth less than it is charged is off by a part of that."""
    phase = PAPER.phases[1]
    seen = Measured(phase, {A: 0.5, B: 0.45}, dict(phase.expected))

    assert pytest.approx({A: 0.5 / 0.95 - 0.5, B: 0.5 - 0.45 / 0.95}) == seen.errors()


def test_the_json_has_the_promised_fields():
    """Programs find phases, max_error, done_per_charged, gpu and emulated."""
    facts = perfect().as_json()

    assert {"phases", "max_error", "done_per_charged", "gpu", "emulated"} == set(facts)
    assert {"name", "start_s", "end_s", "expected", "measured"} <= set(facts["phases"][0])

"""What tenants are owed under the fluid: earned, paid, handed on when one joins or leaves, and kept over a restart."""

from hypothesis import given
from hypothesis import strategies as st

from aliquot.tokens import MS, SECOND, FluidPolicy, Grant, Share
from aliquot.tokens.fluid import KEPT_NS, WHOLE, Flow, Lag

SHARES = (Share(200, 500), Share(300, 1000), Share(500, 500), Share(0, 1000))
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["join", "leave", "charge"]), st.integers(0, 50)), max_size=40
)


@given(STEPS)
def test_who_joins_or_leaves_takes_nothing_from_the_whole(steps: list[tuple[int, str, int]]):
    """What the busy tenants are owed together is what they have earned and not been charged, whoever comes and goes."""
    flow, now = Flow(0), 0
    lags = [Lag(flow, share, []) for share in SHARES]
    for lag in lags:
        lag.wait(0)
    due = 0
    for which, what, span_ms in steps:
        lag, others = lags[which], [other for other in flow.busy if other is not lags[which]]
        due += sum(flow.busy.values()) * span_ms * MS
        now += span_ms * MS
        flow.accrue(now)
        if what == "join":
            lag.wait(now)
        elif what == "leave" and others:
            lag.go(now)
        elif what == "charge" and lag in flow.busy:
            lag.charge(now, span_ms * MS)
            due -= span_ms * MS * WHOLE
        if not any(flow.busy.values()):
            return  # only tenants that the fluid gives nothing: nobody is there to hand anything to
        assert due == sum(busy.level for busy in flow.busy)


def test_a_long_rest_keeps_a_second_of_what_was_owed():
    """A tenant that was owed more than a second when it came to rest is owed a second when it wakes."""
    flow = Flow(0)
    lag, other = Lag(flow, Share(500, 1000), []), Lag(flow, Share(500, 1000), [])
    other.wait(0)
    lag.wait(0)
    lag.begin(10 * SECOND)
    lag.idle(10 * SECOND, at_once=True)
    assert 5 * SECOND == lag.level // WHOLE
    lag.wait(20 * SECOND)
    assert KEPT_NS == lag.level // WHOLE


def test_who_was_ahead_before_a_restart_waits_after_it():
    """What the journal says a tenant was ahead by counts against it under a new arbiter; what it was behind, for it."""
    policy = FluidPolicy()
    for name, debt_ns in (("ahead", 50 * MS), ("even", 0), ("behind", -50 * MS)):
        policy.add_tenant(name, {"g": Share(300, 1000)}, 0)
        policy.restore(name, "g", used_ns=0, debt_ns=debt_ns, total_ns=0, now_ns=0)
        policy.want(name, 0)
    assert ["behind"] == [action.tenant for action in policy.tick(0) if isinstance(action, Grant)]
    assert policy.account("ahead", "g").missing_ns(0) < policy.account("even", "g").missing_ns(0)


def test_a_moment_of_rest_costs_no_more_than_the_moment():
    """A tenant that is owed more than a second, and pauses for a millisecond, is owed a millisecond less."""
    flow = Flow(0)
    waits, runs = (Lag(flow, Share(500, 1000), []) for _ in range(2))
    for lag in (waits, runs):
        lag.wait(0)
    runs.charge(5 * SECOND, 5 * SECOND)
    waits.begin(5 * SECOND)
    waits.idle(5 * SECOND, at_once=True)
    waits.wait(5 * SECOND + MS)

    assert waits.owed_ns(5 * SECOND + MS) == 2500 * MS - MS

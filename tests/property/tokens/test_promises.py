"""What the token policy promises, for any set of tenants, under virtual time."""

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from virtual import VirtualNode, shares_between

from aliquot.tokens import MS, SECOND, Grant, Handover, Renew, Revoke, TokenConfig, Turns

QUICK = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # a simulated history shrinks slowly, and one example says enough
)


@st.composite
def tenant_shares(draw, most=6):
    """Requests whose sum is at most one GPU, each with a limit at or above it."""
    left, shares = 1000, []
    for _ in range(draw(st.integers(1, most))):
        request = draw(st.integers(0, left))
        limit = draw(st.integers(max(request, 50), 1000))
        shares.append((request, limit))
        left -= request
    return shares


def node_of(shares, config=None, **more) -> VirtualNode:
    node = VirtualNode(config or TokenConfig())
    for index, (request, limit) in enumerate(shares):
        node.tenant(f"t{index}", request, limit, **more)
    return node


@given(tenant_shares())
@example([(865, 868), (0, 340), (100, 380), (17, 183), (8, 134)])  # a limit that leaves no room to catch up
@QUICK
def test_every_request_is_met_when_all_are_greedy(shares):
    """Whoever always wants the GPU gets at least its request over a window, to a point and a half."""
    node = node_of(shares)
    measured = shares_between(node, list(node.tenants), 20 * SECOND, 40 * SECOND)

    for name, (request, _) in zip(node.tenants, shares, strict=True):
        assert measured[name] >= request / 1000 - 0.015


@given(tenant_shares(), st.integers(0, 300))
@QUICK
def test_nobody_is_above_its_limit(shares, residual_ms):
    """Over any window a tenant gets at most its limit, a few quotas, and work that could not be stopped.

    Its first such work may be followed by some more, until it is known how long such work takes.
    """
    node = node_of(shares, residual_ns=residual_ms * MS)
    window = node.config.window_ns
    limits = {name: limit for name, (_, limit) in zip(node.tenants, shares, strict=True)}
    slack = 2 * node.config.quota_ns + residual_ms * MS

    def check(seen):
        for name, limit in limits.items():
            if limit < 1000 and seen.now > 0:
                account = seen.policy.account(name, "g0")
                assert account.window.used_ns(seen.now) <= limit * window // 1000 + slack

    node.run_until(1)
    node.check = check
    node.run_until(25 * SECOND)


@given(tenant_shares(), st.sampled_from(list(Handover)), st.integers(0, 50), st.integers(0, 30))
@QUICK
def test_no_gpu_is_idle_while_an_eligible_tenant_waits(shares, handover, residual_ms, busy_ms):
    """After every tick, a GPU without grant and residual work has no waiter that its limit would allow."""
    config = TokenConfig(handover=handover)
    node = node_of(shares, config, residual_ns=residual_ms * MS, busy_ns=busy_ms * MS, idle_ns=7 * MS)

    def check(seen):
        if seen.policy.holders("g0"):
            return
        for tenant in seen.policy._tenants.values():
            if tenant.wanting_since_ns is not None:
                assert tenant.open_at_ns(seen.now) > seen.now

    node.check = check
    node.run_until(10 * SECOND)


@given(tenant_shares(most=4), st.integers(1, 30))
@QUICK
def test_debts_are_paid(shares, residual_s):
    """A tenant whose kernels run for seconds past every grant gets no more than its share in the long run."""
    first = max(shares[0][0], 100)
    node = VirtualNode(TokenConfig(handover=Handover.DRAIN, drain_timeout_ns=100 * SECOND), keep_log=False)
    node.tenant("long", min(first, 500), 1000, residual_ns=residual_s * SECOND)
    node.tenant("short", 500, 1000)
    spans = 60 * residual_s * SECOND
    measured = shares_between(node, ["long", "short"], 0, spans)

    assert measured["short"] >= 0.5 - 0.03


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 40))
@QUICK
def test_gangs_never_deadlock_and_never_starve(pairs, residual_ms):
    """Whatever GPUs the gangs and single tenants have, each is granted again and again."""
    node = VirtualNode(TokenConfig())
    for index, (low, high) in enumerate(pairs):
        gpus = tuple(sorted({f"g{low}", f"g{high}"}))
        node.tenant(f"t{index}", 100, 1000, gpus=gpus, residual_ns=residual_ms * MS)
    for gpu in range(4):
        node.tenant(f"single{gpu}", 100, 1000, gpus=(f"g{gpu}",))
    node.run_until(30 * SECOND)

    late = {action.tenant for at, action in node.log if at > 20 * SECOND and isinstance(action, Grant | Renew)}
    assert late == set(node.tenants)


@given(tenant_shares(), st.integers(0, 50))
@QUICK
def test_grants_of_one_gpu_never_overlap(shares, residual_ms):
    """At any moment at most one tenant has a valid grant of a GPU."""
    node = node_of(shares, residual_ns=residual_ms * MS)
    node.run_until(10 * SECOND)

    holder = None
    for _, action in node.log:
        if isinstance(action, Grant):
            assert holder is None
            holder = action.tenant
        elif isinstance(action, Revoke):
            assert holder == action.tenant
            holder = None


@given(tenant_shares())
@QUICK
def test_same_history_same_answers(shares):
    """The order of choice is total: two runs of one history give the same actions."""
    first, second = node_of(shares), node_of(shares)
    first.run_until(5 * SECOND)
    second.run_until(5 * SECOND)

    assert first.log == second.log


@pytest.mark.parametrize(
    ("window_s", "scale"), [(10, 1.0), (2, 0.04)], ids=["as published, 900 s", "compressed, phases of 8 s and more"]
)
@pytest.mark.parametrize("handover", list(Handover))
def test_figure_6(window_s, scale, handover):
    """KubeShare Fig. 6: A alone 0.6; two 0.5 each; three 0.3/0.4/0.3; two again 0.5, each phase within 0.02."""
    node = VirtualNode(TokenConfig(window_ns=window_s * SECOND, handover=handover), keep_log=False)
    t = [int(s * scale * SECOND) for s in (0, 200, 400, 660, 900)]
    node.tenant("A", 300, 600, start_ns=t[0])
    node.tenant("B", 400, 600, start_ns=t[1])
    node.tenant("C", 300, 500, start_ns=t[2], end_ns=t[3])
    expected = [
        {"A": 0.6},
        {"A": 0.5, "B": 0.5},
        {"A": 0.3, "B": 0.4, "C": 0.3},
        {"A": 0.5, "B": 0.5},
    ]
    for phase, want in enumerate(expected):
        node.run_until(t[phase])
        measured = shares_between(node, list(want), t[phase], t[phase + 1])
        assert measured == pytest.approx(want, abs=0.02)


def test_limit_is_paced_within_every_second():
    """A tenant alone at a limit of 0.6 runs six tenths of every second, not six seconds of every ten."""
    node = VirtualNode()
    node.tenant("a", 300, 600)
    for second in range(20):
        share = shares_between(node, ["a"], second * SECOND, (second + 1) * SECOND)["a"]
        assert share == pytest.approx(0.6, abs=0.04)


def test_steady_shares_are_within_a_point_in_every_window():
    """Among greedy tenants whose requests fill the GPU, every window of ten seconds is right to one point."""
    node = node_of([(300, 600), (400, 600), (300, 500)])
    names = list(node.tenants)
    node.run_until(20 * SECOND)
    for start in range(20, 60, 10):
        measured = shares_between(node, names, start * SECOND, (start + 10) * SECOND)
        assert measured == pytest.approx({"t0": 0.3, "t1": 0.4, "t2": 0.3}, abs=0.01)


@given(st.integers(50, 950), st.integers(10, 30_000), st.sampled_from([Handover.DRAIN, Handover.AUTO]))
@example(300, 1_000, Handover.DRAIN)
@example(300, 25_000, Handover.AUTO)
@QUICK
@pytest.mark.timeout(600)  # 22 s of a processor, which may be shared by many
def test_kernels_of_any_length_leave_the_neighbour_its_request(request_milli, kernel_ms, handover):
    """A tenant whose kernels outlive every grant and its neighbour with short ones each get their request."""
    node = VirtualNode(TokenConfig(handover=handover), keep_log=False)
    node.tenant("long", request_milli, 1000, residual_ns=kernel_ms * MS)
    node.tenant("short", 1000 - request_milli, 1000)
    period_ns = kernel_ms * MS * 1000 // request_milli + 20 * SECOND
    measured = shares_between(node, ["long", "short"], period_ns, 41 * period_ns)

    assert measured["short"] == pytest.approx(1 - request_milli / 1000, abs=0.03)


@pytest.mark.parametrize("minutes", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_each_of_32_greedy_tenants_gets_its_request_for_an_hour(minutes):
    """In an hour with 32 greedy tenants each is near its request."""
    node = VirtualNode(TokenConfig(turns=Turns.KUBESHARE), keep_log=False)
    for index in range(32):
        node.tenant(f"t{index:02}", 31, 1000)
    measured = shares_between(node, list(node.tenants), 0, minutes * 60 * SECOND)

    assert min(measured.values()) >= 0.029

"""What the policy says beforehand about who is next on a GPU, held against what it decides when it is asked then."""

from copy import deepcopy

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from virtual import VirtualNode

from aliquot.tokens import MS, SECOND, Grant, Handover, Share, TokenConfig, Turns, token_policy

QUICK = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
GPU = "g0"


@st.composite
def workloads(draw, most=5):
    """Tenants with shares of one GPU that are greedy, bursty, or leave work behind."""
    left, found = 1000, []
    for _ in range(draw(st.integers(2, most))):
        request = draw(st.integers(0, left))
        limit = draw(st.integers(max(request, 50), 1000) | st.just(1000))
        left -= request
        bursty = draw(st.booleans())
        found.append(
            {
                "request": request,
                "limit": limit,
                "wake_ns": draw(st.sampled_from((0, 0, 5 * MS))),
                "start_ns": draw(st.integers(0, 200)) * MS + draw(st.integers(0, MS)),
                "residual_ns": draw(st.integers(0, 4_000_000)),
                "busy_ns": draw(st.integers(300_000, 40_000_000)) if bursty else 0,
                "idle_ns": draw(st.integers(300_000, 40_000_000)) if bursty else 0,
            }
        )
    return found


def node_of(found, config) -> VirtualNode:
    node = VirtualNode(config, keep_log=True)
    for index, each in enumerate(found):
        made = node.tenant(f"t{index}", each["request"], each["limit"], **{k: each[k] for k in list(each)[3:]})
        made.shares[GPU] = Share(each["request"], each["limit"], each["wake_ns"])
    return node


def ask_then(policy, upcoming, at_ns, *, wanting: bool):
    """What a copy of the policy decides when the occupant has returned or drained at this time."""
    policy = deepcopy(policy)
    if policy.holder(GPU) == upcoming.occupant:
        policy.returned(upcoming.occupant, at_ns)
    else:
        if wanting:
            policy.want(upcoming.occupant, at_ns)
        policy.drained(upcoming.occupant, GPU, at_ns)
    return policy.tick(at_ns)


@pytest.mark.parametrize("turns", list(Turns))
@given(found=workloads(), parts=st.lists(st.integers(0, 1000), min_size=3, max_size=3), every=st.integers(2, 7))
@QUICK
def test_who_is_upcoming_is_who_is_granted(turns, found, parts, every):
    """At any time until then, the tenant that was named is granted, and its quota is at least what was said."""
    node = node_of(found, TokenConfig(turns=turns, window_ns=2 * SECOND))
    asked = 0

    def check(seen):
        nonlocal asked
        upcoming = seen.policy.upcoming(GPU, seen.now)
        if upcoming is None:
            return
        asked += 1
        if asked % every:
            return
        span = upcoming.until_ns - seen.now
        for part in parts:
            at = min(seen.now + span * part // 1000, upcoming.until_ns - 1)
            for wanting in (False, True) if at < upcoming.until_wanting_ns else (False,):
                grants = [a for a in ask_then(seen.policy, upcoming, at, wanting=wanting) if isinstance(a, Grant)]
                assert [upcoming.tenant] == [grant.tenant for grant in grants]
                assert grants[0].quota_ns >= upcoming.quota_ns
                if turns is Turns.FLUID:
                    assert grants[0].quota_ns == upcoming.quota_ns

    node.check = check
    node.run_until(SECOND // 4)


@pytest.mark.parametrize("turns", list(Turns))
@given(found=workloads())
@QUICK
def test_asking_who_is_upcoming_changes_nothing(turns, found):
    """A policy that is asked after every tick takes the same decisions at the same times as one that is not."""
    config = TokenConfig(turns=turns, window_ns=2 * SECOND)
    asked, silent = node_of(found, config), node_of(found, config)
    asked.check = lambda seen: seen.policy.upcoming(GPU, seen.now)
    asked.run_until(SECOND // 2)
    silent.run_until(SECOND // 2)

    assert silent.log == asked.log
    assert [silent.charged(name) for name in silent.tenants] == [asked.charged(name) for name in asked.tenants]


@pytest.mark.parametrize("turns", list(Turns))
def test_most_hand_overs_between_greedy_tenants_are_known_beforehand(turns):
    """Of the hand-overs between tenants that always want the GPU, nine in ten had the next tenant named in time."""
    node = VirtualNode(TokenConfig(turns=turns), delay_ns=500_000)
    for index in range(4):
        node.tenant(f"t{index}", 250, 1000)
    named, known, handed = None, 0, 0

    def check(seen):
        nonlocal named, known, handed
        for at, action in seen.log:
            if at == seen.now and isinstance(action, Grant):
                handed += 1
                known += named is not None and named.tenant == action.tenant and seen.now < named.until_ns
        named = seen.policy.upcoming(GPU, seen.now)

    node.check = check
    node.run_until(10 * SECOND)

    assert handed > 20
    assert known >= 0.9 * handed


def test_a_gpu_of_a_gang_has_nobody_upcoming():
    """Where a tenant has several GPUs, who is next on one depends on the others, and nobody is named."""
    policy = token_policy(TokenConfig())
    policy.add_tenant("gang", {GPU: Share(300, 1000), "g1": Share(300, 1000)}, 0)
    for name in ("a", "b"):
        policy.add_tenant(name, {GPU: Share(300, 1000)}, 0)
        policy.want(name, 0)
    policy.tick(0)

    assert policy.holder(GPU) is not None
    assert policy.upcoming(GPU, 0) is None


def test_nobody_is_upcoming_beside_work_that_was_passed_over():
    """While work of another tenant overlaps, the end of one occupant's work does not free the GPU: nobody is named."""
    policy = token_policy(TokenConfig(handover=Handover.OVERLAP))
    for name in ("a", "b", "c"):
        policy.add_tenant(name, {GPU: Share(300, 1000)}, 0)
        policy.want(name, 0)
    policy.tick(0)
    at = 0
    while len(policy.holders(GPU)) < 2:
        at = policy.next_wake_ns()
        policy.tick(at)

    assert policy.upcoming(GPU, at) is None

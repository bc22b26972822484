"""What a tenant whose share changes while it runs is promised, under every order of turns, in virtual time."""

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from virtual import VirtualNode, shares_between

from aliquot.tokens import MS, SECOND, Share, TokenConfig, Turns
from aliquot.tokens.fluid import rates

QUICK = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # a simulated history shrinks slowly, and one example says enough
)


@st.composite
def two_splits(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Request and limit of two to four tenants before and after, each time of at most one GPU."""
    count, splits = draw(st.integers(2, 4)), []
    for _ in range(2):
        left, shares = 1000, []
        for _ in range(count):
            request = draw(st.integers(0, left))
            shares.append((request, draw(st.integers(max(request, 50), 1000))))
            left -= request
        splits.append(shares)
    return splits


def resize(node: VirtualNode, name: str, request: int, limit: int) -> None:
    gpus = node.tenants[name].shares
    node.policy.resize(name, dict.fromkeys(gpus, Share(request, limit)), node.now)
    node.run_until(node.now)


def dues(shares: list[tuple[int, int]]) -> dict[str, float]:
    """What the fluid gives to tenants that always want the GPU."""
    found = rates([Share(*share) for share in shares], [["g0"]] * len(shares))
    return {f"t{index}": rate / 1e6 for index, rate in enumerate(found)}


def shares_after(node: VirtualNode, before: list[tuple[int, int]], after: list[tuple[int, int]], wait_s: int):
    """What busy tenants have in the window that begins so long after their resize from one split to another."""
    for name, share in zip(dues(before), before, strict=True):
        node.tenant(name, *share)
    node.run_until(25 * SECOND)
    for name, share in zip(dues(after), after, strict=True):
        resize(node, name, *share)
    return shares_between(node, list(node.tenants), (25 + wait_s) * SECOND, (35 + wait_s) * SECOND)


@given(two_splits())
@example([[(800, 1000), (100, 1000)], [(200, 300), (700, 1000)]])  # a limit far below what it used
@QUICK
def test_the_window_after_a_resize_has_the_new_due(splits):
    """In the window that begins with a resize each busy tenant's share is within a point of its new due."""
    assert shares_after(VirtualNode(keep_log=False), *splits, 0) == pytest.approx(dues(splits[1]), abs=0.01)


@pytest.mark.parametrize("turns", [Turns.KUBESHARE, Turns.GEMINI])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([(300, 600), (400, 600), (300, 500)], [(600, 800), (200, 600), (200, 500)]),
        ([(800, 1000), (100, 1000)], [(200, 300), (700, 1000)]),
        ([(200, 300), (700, 1000)], [(800, 1000), (100, 1000)]),
    ],
    ids=["one grows", "far down", "far up"],
)
def test_windows_slide_to_the_new_due(turns, before, after):
    """Where turns are ordered by what the last window has seen, the due is reached when that has passed."""
    node = VirtualNode(TokenConfig(turns=turns), keep_log=False)

    assert shares_after(node, before, after, 10) == pytest.approx(dues(after), abs=0.01)


@given(st.data(), st.sampled_from(list(Turns)))
@QUICK
def test_resizes_at_any_time_keep_what_always_holds(data, turns):
    """However shares change while tenants come to want and rest: one grant at a time, each nanosecond charged to one
    tenant, no GPU kept from a tenant that may have it, and no more than what the limits of each moment allowed."""
    node = VirtualNode(TokenConfig(turns=turns, window_ns=2 * SECOND))
    window, allowed, changes = node.config.window_ns, {}, {}
    for index in range(3):
        name = f"t{index}"
        node.tenant(name, 300, 600, residual_ns=index * MS, busy_ns=index * 30 * MS, idle_ns=20 * MS)
        changes[name] = [(-window, 600)]

    def allowed_ns(name: str) -> int:
        ends = [at for at, _ in changes[name][1:]] + [node.now]
        spans = [(max(at, node.now - window), end, limit) for (at, limit), end in zip(changes[name], ends, strict=True)]
        return sum(limit * max(0, end - at) // 1000 for at, end, limit in spans)

    def check(seen: VirtualNode) -> None:
        allowed.update({name: allowed_ns(name) for name in seen.tenants})
        if turns is Turns.FLUID:
            for name in seen.tenants if seen.now else ():
                used = seen.policy.account(name, "g0").window.used_ns(seen.now)
                assert used <= allowed[name] + window // 500 + window // 250 + 5 * MS
        assert sum(tenant.hold is not None for tenant in seen.policy._tenants.values()) <= 1
        if not seen.policy.holders("g0"):
            for tenant in seen.policy._tenants.values():
                if tenant.wanting_since_ns is not None:
                    assert tenant.open_at_ns(seen.now) > seen.now

    node.run_until(1)
    node.check = check
    for _ in range(40):
        node.run_until(node.now + data.draw(st.integers(1, 400)) * MS)
        name = data.draw(st.sampled_from(sorted(node.tenants)))
        request = data.draw(st.integers(0, 333))
        limit = data.draw(st.integers(max(request, 20), 1000))
        resize(node, name, request, limit)
        changes[name].append((node.now, limit))

    assert sum(node.charged(name) for name in node.tenants) <= node.now


def test_a_gang_and_its_neighbours_have_the_rates_of_the_new_share():
    """A tenant of two GPUs is resized on both, also while it rests and a neighbour's rates are known from before."""
    node = VirtualNode(keep_log=False)
    node.tenant("gang", 200, 1000, gpus=("g0", "g1"), phases=[(0, 5 * SECOND), (15 * SECOND, 60 * SECOND)])
    node.tenant("one", 200, 1000, gpus=("g0",))
    node.tenant("two", 200, 1000, gpus=("g1",))
    node.run_until(10 * SECOND)
    resize(node, "gang", 200, 300)
    node.run_until(20 * SECOND)

    for gpu, alone in (("g0", "one"), ("g1", "two")):
        assert 300_000 == node.policy.account("gang", gpu).lag.rate
        assert 700_000 == node.policy.account(alone, gpu).lag.rate


def test_windows_from_before_a_resize_are_not_judged():
    """A tenant that grows is judged by its new request only in windows that begin after that."""
    node = VirtualNode(keep_log=False)
    node.tenant("a", 200, 200)
    node.tenant("b", 200, 1000)
    node.check = lambda seen: seen.policy.judge(seen.now)
    node.run_until(20 * SECOND)
    resize(node, "a", 800, 800)
    node.run_until(40 * SECOND)

    kept = node.policy.account("a", "g0").kept
    assert (kept.windows, kept.busy_windows) == (kept.kept, kept.busy_kept)
    assert kept.error_worst <= 0.02


def test_a_new_arbiter_does_not_hold_a_tenant_for_what_an_earlier_limit_allowed():
    """A tenant whose limit was lowered just before a restart has its share in the window after it."""
    node = VirtualNode(keep_log=False)
    node.tenant("a", 200, 300, phases=[(MS, 60 * SECOND)])
    node.tenant("b", 700, 1000)
    node.run_until(1)
    node.policy.restore("a", "g0", used_ns=8 * SECOND, debt_ns=0, total_ns=8 * SECOND, now_ns=node.now)

    assert 0.3 == pytest.approx(shares_between(node, ["a"], 1, SECOND)["a"], abs=0.05)

"""What turns that follow the fluid promise to any programs, in the simulator: see `aliquot sim turns`."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aliquot.tokens import FluidPolicy, Share, TokenConfig, Turns
from aliquot_lab.sim.turns.mixes import MISBEHAVIOURS, MS, SECOND, Member, Mix, inference, irregular, loop, spinner
from aliquot_lab.sim.turns.node import MachineSpeeds, SimulatedNode
from aliquot_lab.sim.turns.study import case_of, play

FEW = settings(
    max_examples=3,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # a history of a minute shrinks slowly, and one seed says enough
)
SEEDS = st.integers(0, 1 << 20)


@st.composite
def irregular_mixes(draw: st.DrawFn) -> Mix:
    """Two to six tenants that work and rest, of at most half a GPU each, whose requests leave a tenth of it."""
    left, members = 900, []
    for number in range(draw(st.integers(2, 6))):
        request = draw(st.integers(0, min(left, 500)))
        limit = draw(st.sampled_from([1000, request + 100, max(request + 100, 400)]))
        members.append(Member(f"t{number}", request, limit, irregular()))
        left -= request
    return Mix("drawn", "", tuple(members))


@given(irregular_mixes(), SEEDS)
@FEW
def test_every_window_is_near_the_fluid(mix: Mix, seed: int):
    """Each has its request for the time it wants the GPU in 99 of 100 windows, and all are within 0.04 of the fluid.

    A tenant of more than half a GPU that rests has little to make up in for each time that it waits for a long kernel
    when it wakes.
    """
    case = case_of(play(mix, Turns.FLUID, seed, 45), Turns.FLUID, seed)
    assert case["promise_a"] >= 0.99
    assert case["promise_c"] is None or case["promise_c"] >= 0.99
    assert case["error_p95"] <= 0.02
    assert case["error_worst"] <= 0.04
    assert case["used_of_fluid"] >= 0.985


@given(irregular_mixes(), SEEDS)
@FEW
def test_no_window_has_more_than_the_limit(mix: Mix, seed: int):
    """A window is charged limit x window, a five-hundredth of it and what is queued at a turn's end, at most."""
    node = SimulatedNode(FluidPolicy(), mix, seed, 40)
    window, queued = node.policy.config.window_ns, node.machine.queued_ns + 20 * MS
    sample = node._sample

    def check() -> None:
        sample()
        for member in mix.members:
            used = node.policy.account(member.name, "g0").window.used_ns(node.now)
            assert used <= member.limit_milli * window // 1000 + window // 500 + queued

    node._sample = check
    node.run()
    assert node.handovers > 0


@pytest.mark.parametrize("mix", MISBEHAVIOURS, ids=lambda mix: mix.name)
@given(seed=SEEDS)
@settings(FEW, max_examples=1)
def test_misbehaviour_gains_nothing(mix: Mix, seed: int):
    """No tenant gets more than a point beyond the fluid by it, and no neighbour two points less in the long run."""
    case = case_of(play(mix, Turns.FLUID, seed, 60), Turns.FLUID, seed)
    assert case["gain_points"] <= 1.0
    for tenant in case["tenants"][1:]:
        assert tenant["got"] >= tenant["fluid"] - 0.02


@given(SEEDS)
@FEW
def test_a_program_that_wakes_goes_next(seed: int):
    """Beside one that always wants the GPU, it waits for what is queued: 5 ms at the median, 8 in 99 of 100."""
    members = (Member("infer", 300, 1000, inference(15)), Member("train", 700, 1000, spinner()))
    case = case_of(play(Mix("w", "", members, "infer", False), Turns.FLUID, seed, 40), Turns.FLUID, seed)
    assert case["wake"]["p50_ms"] <= 5
    assert case["wake"]["p99_ms"] <= 8


@given(SEEDS)
@settings(FEW, max_examples=1)
def test_gangs_and_single_tenants_all_get_on(seed: int):
    """Gangs over two of three GPUs beside single tenants: each runs in every window, whatever overlaps."""
    pairs = (("g0", "g1"), ("g1", "g2"), ("g0", "g2"))
    members = [Member(f"gang{n}", 200, 1000, irregular(), gpus=pair) for n, pair in enumerate(pairs)]
    members += [Member(f"one{n}", 200, 1000, loop(3, 2 * MS), gpus=(f"g{n}",)) for n in range(3)]
    node = play(Mix("gangs", "", tuple(members)), Turns.FLUID, seed, 15)
    for tenant in node.tenants.values():
        windows = [later - early for early, later in zip(tenant.ran, tenant.ran[200:], strict=False)]
        assert min(windows) > SECOND // 10


@given(SEEDS, st.integers(8, 30))
@FEW
def test_an_arbiter_that_is_restarted_goes_on_where_it_was(seed: int, at_s: int):
    """A new policy that is told what each was charged and owes keeps the promises of the windows after it."""
    mix = Mix("crash", "", (Member("a", 300, 600, irregular()), Member("b", 700, 1000, spinner())))
    node = SimulatedNode(FluidPolicy(), mix, seed, 60, MachineSpeeds())

    def crash() -> None:
        old, node.policy = node.policy, FluidPolicy(TokenConfig())
        for tenant in node.tenants.values():
            name, share = tenant.member.name, Share(tenant.member.request_milli, tenant.member.limit_milli)
            account = old.account(name, "g0")
            node.policy.add_tenant(name, {"g0": share}, node.now)
            node.policy.restore(
                name, "g0", used_ns=account.window.used_ns(node.now), debt_ns=account.debt_ns(node.now),
                total_ns=account.window.total_ns, now_ns=node.now,
            )  # fmt: skip
            node._revoke(tenant)
        node._tick()

    node._at(at_s * SECOND, crash)
    case = case_of(node.run(), Turns.FLUID, seed)
    assert 1.0 == case["promise_a"]
    assert case["error_worst"] <= 0.04

"""Programs that share a GPU in virtual time, and what is said of them."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from aliquot.cli.main import cli
from aliquot.tokens import FluidPolicy, Share
from aliquot_lab.sim.turns.mixes import BY_NAME, MS, SECOND, Member, Mix, loop, spinner
from aliquot_lab.sim.turns.node import MachineSpeeds, SimulatedNode
from aliquot_lab.sim.turns.study import TenantRun, fluid, judge, wanted


def played(*members: Member, seconds: float = 5, **machine: int) -> SimulatedNode:
    """These tenants under `fluid`."""
    return SimulatedNode(FluidPolicy(), Mix("m", "", members), 1, seconds, MachineSpeeds(**machine)).run()


def test_a_program_alone_uses_the_whole_gpu():
    """Without neighbours nothing is lost but the first message there and back."""
    node = played(Member("a", 300, 1000, spinner()))

    assert node.tenants["a"].ran_ns >= 5 * SECOND - 6 * MS
    assert 1 == node.handovers


def test_a_hand_over_takes_what_the_machine_says():
    """Two tenants that always want the GPU lose one hand-over at each change of turn."""
    quick = played(Member("a", 500, 1000, spinner()), Member("b", 500, 1000, spinner()), handover_ns=0)
    slow = played(Member("a", 500, 1000, spinner()), Member("b", 500, 1000, spinner()), handover_ns=2 * MS)
    idle = [5 * SECOND - sum(t.ran_ns for t in node.tenants.values()) for node in (quick, slow)]

    assert idle[0] <= 6 * MS
    assert slow.handovers * 2 * MS == pytest.approx(idle[1], abs=12 * MS)


def test_two_processes_share_their_tenants_turn():
    """More processes bring no more time."""
    node = played(Member("a", 500, 1000, spinner(), processes=4), Member("b", 500, 1000, spinner()), seconds=20)

    assert 0.5 == pytest.approx(node.tenants["a"].ran_ns / (20 * SECOND), abs=0.01)


def test_one_seed_gives_one_history():
    """The same mix with the same seed does the same."""
    first, second = (SimulatedNode(FluidPolicy(), BY_NAME["irregular"], 7, 5).run() for _ in range(2))

    assert first.tenants["a"].ran == second.tenants["a"].ran
    assert first.tenants["a"].phases == second.tenants["a"].phases


def test_a_tenant_that_never_gives_back_is_charged_for_it():
    """One that clings to its turns pays for the time it does not use."""
    node = played(
        Member("a", 500, 1000, loop(1, MS, 30 * MS), clings=True), Member("b", 500, 1000, spinner()), seconds=20
    )

    assert 0.5 == pytest.approx(node.policy.account("a", "g0").window.total_ns / (20 * SECOND), abs=0.02)
    assert node.tenants["b"].ran_ns / (20 * SECOND) > 0.48


def test_the_time_wanted_is_the_sum_of_the_phases_so_far():
    """Within a phase it grows with the clock, between phases it stays."""
    at_s = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 9.0])

    assert [0, 0, 1, 2, 2, 4] == wanted([(1, 3), (5, 7)], at_s).tolist()


def test_the_fluid_gives_what_others_leave():
    """Alone up to the limit, together the requests and half each of the rest."""
    seen = {
        "a": TenantRun(Share(200, 500), ("g",), [(0, 10)], []),
        "b": TenantRun(Share(300, 1000), ("g",), [(5, 10)], []),
    }
    given = fluid(seen, np.array([0.0, 5.0, 10.0]))

    assert {"a": [0, 2.5, 5.0], "b": [0, 0, 2.5]} == {name: series.tolist() for name, series in given.items()}


def test_windows_that_miss_the_request_are_counted():
    """A tenant of 0.5 that always wants the GPU and gets 0.4 is not kept a promise in any window."""
    steps = [0.02 * n for n in range(200)]
    seen = {
        "a": TenantRun(Share(500, 1000), ("g",), [(0, 10)], steps),
        "b": TenantRun(Share(500, 1000), ("g",), [(0, 10)], [1.5 * step for step in steps]),
    }
    found = judge(seen, 0.05, window_s=2, warm_s=1)

    assert (0.5, 0.5, 0.1, 1.0) == (
        found["promise_a"], found["promise_c"], found["error_worst"], found["used_of_fluid"]
    )  # fmt: skip
    assert [0.4, 0.6] == [tenant["got"] for tenant in found["tenants"]]
    assert 1.0 == judge(seen, 0.05, window_s=2, warm_s=1, excused="a")["promise_a"]


def test_too_short_a_run_has_no_window():
    """Less than a window is refused."""
    with pytest.raises(ValueError, match="no window"):
        judge({"a": TenantRun(Share(500, 1000), ("g",), [(0, 1)], [0.0] * 20)}, 0.05, window_s=2, warm_s=1)


def test_the_table_fits_a_terminal():
    """`aliquot sim turns` prints at most 80 columns, a row for each mix and way."""
    asked = ["sim", "turns", "--mix", "steady", "--mix", "waking", "--mix", "rejoins-long", "--seconds", "16"]
    result = CliRunner().invoke(cli, asked)
    lines = result.output.splitlines()

    assert 0 == result.exit_code
    assert 1 + 3 * 3 == len(lines)
    assert max(map(len, lines)) <= 80


def test_json_has_every_case():
    """`-o json` has a case for each mix, way and seed."""
    asked = ["sim", "turns", "--mix", "steady", "--turns", "fluid", "--seed", "1..2", "--seconds", "16", "-o", "json"]
    cases = json.loads(CliRunner().invoke(cli, asked).output)["cases"]

    assert [("steady", "fluid", 1), ("steady", "fluid", 2)] == [(c["mix"], c["turns"], c["seed"]) for c in cases]
    assert all(case["promise_c"] == 1.0 and case["used_of_fluid"] > 0.98 for case in cases)


def test_an_unknown_mix_is_one_sentence():
    """A name that is no mix is refused with those that are."""
    result = CliRunner().invoke(cli, ["sim", "turns", "--mix", "nope"])

    assert 2 == result.exit_code or "nope" in str(result.exception)

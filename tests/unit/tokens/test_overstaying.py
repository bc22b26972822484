"""Work that is always left on the GPU and waits for its own tenant's next launch: what its owner gains by it.

Such work cannot be stopped. The best that any policy could do is to let its owner launch for no more than its rate of
the fluid: the neighbour then has all other turns, beside work that takes half of the GPU if it computes, and nothing of
it if it only waits. The owner is charged the half in either case.
"""

from itertools import pairwise
from typing import NamedTuple

import pytest

from aliquot.tokens import MS, SECOND, FluidPolicy, Grant, Revoke, Share, TokenPolicy


class Beside(NamedTuple):
    """What the owner of such work and its neighbour had, as parts of the time; and the longest wait for a grant."""

    owner_launches: float
    neighbour_launches: float
    owner_charged: float
    longest_wait_ns: int


def play(policy: TokenPolicy, request_milli: int, released_ns: int, seconds: int) -> Beside:
    """The old work ends so long after each grant and new work is there then; beside an honest one with the rest."""
    policy.add_tenant("owner", {"g": Share(request_milli, 1000)}, 0)
    policy.add_tenant("other", {"g": Share(1000 - request_milli, 1000)}, 0)
    policy.want("owner", 0)
    policy.want("other", 0)
    now, drains_ns, ends_ns = 0, None, None
    began: dict[str, int] = {}
    held = {"owner": 0, "other": 0}
    grants = []
    while now < seconds * SECOND:
        if drains_ns == now:
            drains_ns = policy.drained("other", "g", now)
        if ends_ns == now:
            ends_ns = policy.caught_up("owner", "g", now)
        while actions := policy.tick(now):
            for action in actions:
                if isinstance(action, Grant):
                    began[action.tenant] = now
                    if action.tenant == "owner":
                        grants.append(now)
                        ends_ns = now + released_ns
                elif isinstance(action, Revoke):
                    held[action.tenant] += now - began.pop(action.tenant)
                    policy.want(action.tenant, now)
                    if action.tenant == "other":
                        drains_ns = now + MS
        now = min(at for at in (policy.next_wake_ns(), drains_ns, ends_ns) if at is not None and at > now)
    charged = policy.account("owner", "g").window.total_ns
    longest_ns = max(later - early for early, later in pairwise(grants))
    return Beside(held["owner"] / now, held["other"] / now, charged / now, longest_ns)


@pytest.mark.parametrize("released_ms", [0.2, 9])
@pytest.mark.parametrize("request_milli", [20, 50, 200])
def test_work_that_is_always_left_gives_its_owner_no_more_turns_than_its_share(request_milli: int, released_ms: float):
    """Whenever it lets its old work end, its owner launches for at most a point more than its request."""
    seen = play(FluidPolicy(), request_milli, int(released_ms * MS), 100)

    assert seen.owner_launches <= request_milli / 1000 + 0.01
    assert seen.neighbour_launches >= 1 - request_milli / 1000 - 0.12
    assert 0.48 <= seen.owner_charged <= (1 + request_milli / 1000) / 2 + 0.06


@pytest.mark.parametrize(("request_milli", "released_ms", "within_ms"), [(500, 2, 150), (200, 2, 150), (50, 2, 150)])
def test_honest_work_that_waits_for_its_owner_goes_on_within_its_share(
    request_milli: int, released_ms: int, within_ms: int
):
    """Steps of 2 ms that wait for the next launch are never farther apart than 150 ms, for a small share, too."""
    seen = play(FluidPolicy(), request_milli, released_ms * MS, 20)

    assert seen.longest_wait_ns <= within_ms * MS

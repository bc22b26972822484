"""Tenants on one GPU under the policy of a name, and the turns that it gives those that want the GPU again at once."""

from collections.abc import Iterator, Mapping

from aliquot.tokens import Grant, Revoke, Share, TokenConfig, TokenPolicy, Turns, token_policy


def policy_of(turns: Turns, **shares: tuple[int, int]) -> TokenPolicy:
    """The policy of that name, with tenants of these requests and limits on g0."""
    policy = token_policy(TokenConfig(turns=turns))
    for name, (request, limit) in shares.items():
        policy.add_tenant(name, {"g0": Share(request, limit)}, 0)
    return policy


def grants(
    policy: TokenPolicy, until_ns: int, bursts_ns: Mapping[str, int] | None = None
) -> Iterator[tuple[int, Grant]]:
    """Each grant until then with its moment; who is revoked has ended its work, its burst, and wants the GPU again."""
    now = 0
    while now < until_ns:
        for action in policy.tick(now):
            if isinstance(action, Grant):
                yield now, action
            elif isinstance(action, Revoke):
                policy.want(action.tenant, now)
                policy.drained(action.tenant, "g0", now, (bursts_ns or {}).get(action.tenant, 0))
        wake = policy.next_wake_ns()
        now = now if wake is None or policy.holder("g0") is None else wake

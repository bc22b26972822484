"""Namespaces that lend each other quota: what a cohort holds, and who is refused, against a plain count."""

from asking import asking
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.model.requests import Device
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policy import policy
from aliquot.placement.quota import Quota, Quotas
from aliquot.placement.reasons import Infeasible

NAMES = ("red", "green", "blue")
BOUNDS = st.tuples(st.integers(0, 20), st.integers(0, 20))
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-3, 9)), max_size=40)


@given(st.tuples(BOUNDS, BOUNDS, BOUNDS), STEPS)
@settings(max_examples=60, deadline=None)
def test_unused_nominal_quota_is_lent_and_no_more(bounds: tuple[tuple[int, int], ...], steps: list[tuple[str, int]]):
    """A pod is placed exactly where its namespace stays within its bound and the cohort within the sum of what is
    nominal; one within its nominal quota is refused only while another namespace holds more than its own."""
    most = {name: 100 * max(pair) for name, pair in zip(NAMES, bounds, strict=True)}
    nominal = {name: 100 * min(pair) for name, pair in zip(NAMES, bounds, strict=True)}
    rules = [Quota(name, milli=most[name], cohort="all", nominal=(nominal[name], None)) for name in NAMES]
    devices = tuple(Device(g, f"GPU-{g}", "V100", 16384) for g in range(64))
    decider = Decider(Cluster([NodeSpec("n", devices, 64000, 1 << 20)]), policy("binpack"), quotas=Quotas(rules))
    pods: dict[str, list[tuple[str, int]]] = {name: [] for name in NAMES}
    for number, (name, tenths) in enumerate(steps):
        held = {other: sum(milli for _, milli in mine) for other, mine in pods.items()}
        if tenths <= 0:
            if pods[name]:
                decider.release(pods[name].pop()[0])
            continue
        asked, wanted = 100 * tenths, asking(0, 100 * tenths)
        found = decider.decide(wanted, name)
        fits = held[name] + asked <= most[name] and sum(held.values()) + asked <= sum(nominal.values())

        assert fits is isinstance(found, Placement)
        if isinstance(found, Infeasible):
            borrowers = [other for other in NAMES if held[other] > nominal[other]]
            assert borrowers or held[name] + asked > nominal[name]
            assert borrowers == [
                other for other in NAMES if decider.quotas.borrows(decider.cluster, other, name, ["V100"])
            ]
        else:
            decider.commit(f"{name}/{number}", found, wanted)
            pods[name].append((f"{name}/{number}", asked))

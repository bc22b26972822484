"""Explanations are true: what is said to help helps, and nothing is touched by asking."""

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import ledger
from histories import asks, clusters
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aliquot.model.quantities import MILLI, Memory
from aliquot.placement.asks import PPM, Ask
from aliquot.placement.changes import apply
from aliquot.placement.cluster import Cluster, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.explain import explain_with
from aliquot.placement.fits import one_model
from aliquot.placement.policy import policy
from aliquot.placement.quota import NO_QUOTAS, Quota, QuotaExceeded, Quotas
from aliquot.placement.reasons import Infeasible, judge, node_reasons
from aliquot.placement.saved import dump, load
from aliquot.placement.sentences import suggestion, text_of

QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.generate],  # a history of fifty steps shrinks slowly
)
QUOTAS = Quotas([Quota("ns", "V100", milli=2500), Quota("ns", "", memory_mib=120_000)])


def filled(specs, arrivals, quotas=NO_QUOTAS) -> Cluster:
    """A cluster with as many of the arrivals as it holds; of equal models a larger one may be over the quota."""
    cluster = Cluster(specs)
    decider = Decider(cluster, policy("binpack"), quotas=quotas)
    for number, ask in enumerate(arrivals):
        found = decider.decide(ask, "ns")
        if isinstance(found, Placement):
            with suppress(QuotaExceeded):
                decider.commit(f"ns/{number}", found, ask)
    return cluster


@QUICK
@given(clusters(), st.lists(asks(), max_size=25), asks(), st.booleans())
def test_every_change_applied_makes_it_fit(specs, arrivals, ask, with_quota):
    """Each change that is offered, done to a copy of the cluster, lets the ask in on the node that it names."""
    quotas = QUOTAS if with_quota else NO_QUOTAS
    cluster = filled(specs, arrivals, quotas)
    before = dump(cluster)

    for change in explain_with(Decider(cluster, policy("binpack"), quotas=quotas), ask, "ns").changes:
        changed = load(before)
        smaller = apply(change, changed)
        decider = Decider(changed, policy("binpack"), quotas=quotas)
        found = decider.place_on(smaller, change.node, "ns")
        assert isinstance(found, Placement), suggestion(change)
        decider.commit("ns/new", found, smaller)
        ledger.check(changed)

    assert before == dump(cluster)


@QUICK
@given(clusters(), st.lists(asks(), max_size=25), asks())
def test_a_change_is_offered_where_one_exists(specs, arrivals, ask):
    """A refused ask that would fit on an emptier cluster is told what to change."""
    cluster = filled(specs, arrivals)
    waits = isinstance(Decider(cluster, policy("binpack")).decide(ask), Infeasible)
    fits_empty = isinstance(Decider(Cluster(specs), policy("binpack")).decide(ask), Placement)

    found = explain_with(Decider(cluster, policy("binpack")), ask)

    assert waits == (found.placement is None)
    if waits and fits_empty:
        assert found.changes
        assert found.changes[0].size_milli == min(change.size_milli for change in found.changes)


STEPS = {"rest_milli": 1, "gpu_mib": 82, "gpu_mem_ppm": 1001, "cpu_milli": 65, "memory_mib": 263}
"""A thousandth of the largest device or node and a little more, which is what changes are counted in."""


def with_number(ask: Ask, name: str, number: int) -> Ask:
    """The same ask with another of the numbers in `STEPS`."""
    if name == "rest_milli":
        return ask.sized(ask.whole * MILLI + number)
    if name == "gpu_mib":
        return ask.but(memory=Memory(mib=number))
    if name == "gpu_mem_ppm":
        return ask.but(memory=Memory(part=Fraction(number, PPM)))
    return replace(ask, **{name: number})


@QUICK
@given(clusters(), st.lists(asks(), max_size=25), asks())
def test_no_reduction_is_larger_than_needed(specs, arrivals, ask):
    """Where one number has to be smaller, a little more of it than is offered does not fit on that node."""
    cluster = filled(specs, arrivals)
    decider = Decider(cluster, policy("binpack"))

    for change in explain_with(Decider(cluster, policy("binpack")), ask).changes:
        less = [name for name in STEPS if getattr(change.ask, name) != getattr(ask, name)]
        if change.kind != "less" or change.ask.whole != ask.whole or len(less) != 1:
            continue
        more = getattr(change.ask, less[0]) + STEPS[less[0]]
        if more < getattr(ask, less[0]):
            larger = with_number(ask, less[0], more)
            assert isinstance(decider.place_on(larger, change.node), Infeasible), suggestion(change)


@QUICK
@given(clusters(), st.lists(asks(), max_size=25), asks())
def test_every_refusal_has_a_reason_for_every_node(specs, arrivals, ask):
    """Where nothing fits, each node has a first obstacle, and each lasting one is there on the empty cluster too."""
    cluster = filled(specs, arrivals)
    found = Decider(cluster, policy("binpack")).decide(ask)
    empty = Decider(Cluster(specs), policy("binpack"))
    if isinstance(found, Placement):
        return

    for verdict in found.reasons():
        assert verdict.reason is not None
        assert verdict.lasting == isinstance(empty.place_on(ask, verdict.node), Infeasible)


@QUICK
@given(clusters(), st.lists(asks(), max_size=25), asks(), st.booleans())
def test_nodes_are_classified_at_once_as_one_by_one(specs, arrivals, ask, with_quota):
    """The reasons that kube-scheduler is given for all nodes are those that an explanation finds for each."""
    quotas = QUOTAS if with_quota else NO_QUOTAS
    cluster = filled(specs, arrivals, quotas)
    decider = Decider(cluster, policy("binpack"), quotas=quotas)
    closed = quotas.closed(cluster, "ns", ask) if quotas else {}
    mixed = decider.feasible(ask.but(mixed=True), "ns") if one_model(cluster, ask) else None

    found = node_reasons(cluster, ask, decider.feasible(ask, "ns"), closed, mixed)

    for number, verdict in enumerate(Infeasible(cluster, ask, quotas, "ns").reasons()):
        told = text_of(found.reasons[found.which[number]]) if found.which[number] >= 0 else ""
        assert told == (text_of(verdict.reason) if verdict.reason else "")


@QUICK
@given(clusters(), st.lists(asks(), max_size=25), st.lists(asks(), min_size=5, max_size=10))
def test_a_verdict_is_what_placing_finds(specs, arrivals, probes):
    """A node has an obstacle if and only if nothing can be placed there."""
    cluster = filled(specs, arrivals)
    decider = Decider(cluster, policy("binpack"))

    for probe in probes:
        for spec in specs:
            free = judge(cluster, probe, spec.name).reason is None
            assert free == isinstance(decider.place_on(probe, spec.name), Placement)

"""Quotas: kept where a placement is written into the ledger, told in the filter, and shown with what is held."""

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.objects import node

from aliquot.kube.custom import GPUQuota
from aliquot.kube.dialects import read
from aliquot.kube.objects import Pod
from aliquot.kube.quotas import quotas_of
from aliquot.kube.reflector import Change
from aliquot.kube.requests import PodAsk
from aliquot.placement.policy import policy
from aliquot.placement.quota import Quota, Quotas
from aliquot.scheduler.ledger import Ledger, NodeFull
from aliquot.scheduler.operator.status import quota_body
from aliquot.scheduler.verdicts import verdicts

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)


def ledger(*quotas: Quota) -> Ledger:
    """PlainLedger of one node with two V100 and an A100."""
    made = Ledger(policy("binpack"))
    made.node_changed(Change("added", node("n", ["Tesla V100", "Tesla V100", "NVIDIA A100"])))
    made.decider.quotas = Quotas(quotas)
    return made


def ask(name: str, percent: int, namespace: str = "team", model: str = "", **words: str) -> PodAsk:
    limits = {"aliquot.dev/gpu-percent": percent}
    notes = {"aliquot.dev/gpu-model": model} if model else {}
    notes |= {f"aliquot.dev/{name.replace('_', '-')}": text for name, text in words.items()}
    metadata = {"name": name, "namespace": namespace, "uid": name, "annotations": notes}
    containers = [{"name": "c", "resources": {"limits": limits}}]
    found = read(msgspec.convert({"metadata": metadata, "spec": {"containers": containers}}, Pod))
    assert found is not None
    return found


def test_the_filter_says_that_it_is_the_quota():
    """Where only closed models would do, the reason is the quota's own sentence; where room is short, it is room."""
    made = ledger(Quota("team", "V100", 500))
    closed = verdicts(made, ask("a", 60, model="V100"), ["n"]).failed["n"]
    assert 'namespace "team" holds 0.00 of V100 GPUs of 0.50 it may have, 0.60 more were asked' == closed

    for name, percent in (("two", 200), ("one", 100)):
        made.allocate(ask(name, percent, "others"), "n", 0.0)
    assert verdicts(made, ask("b", 60), ["n"]).failed["n"].startswith("does not have a GPU")


@given(st.lists(st.tuples(st.sampled_from("hr"), st.integers(1, 120), st.integers(0, 9)), max_size=40))
@settings(max_examples=20, deadline=None)
def test_no_order_of_promises_goes_over_the_bound(steps: list[tuple[str, int, int]]):
    """Promised and taken back in any order, the sum by a plain count stays within 1.5 GPUs."""
    made = ledger(Quota("team", "", 1500))
    held: dict[str, int] = {}
    for what, percent, number in steps:
        name = f"p{number}"
        if what == "r" and name in held:
            made.forget(made.allocations[name][0])
            del held[name]
        elif what == "h" and name not in held:
            try:
                made.allocate(ask(name, percent), "n", 0.0)
                held[name] = percent * 10
            except NodeFull:
                continue
        assert sum(held.values()) <= 1500
        assert sum(held.values()) == sum(milli for milli, _ in made.cluster.usage("team").values())


def quota(limits: list[dict[str, Any]], status: dict[str, Any] | None = None) -> GPUQuota:
    return msgspec.convert({"metadata": {"name": "q"}, "spec": {"limits": limits}, "status": status or {}}, GPUQuota)


def test_people_see_what_is_held_of_each_bound():
    """One line for kubectl, one entry for each bound; written once, and not again while nothing changes."""
    limits = [{"model": "V100", "gpus": "2", "memory": "64Gi"}, {"gpus": "2500m"}]
    usage = {"Tesla V100": (1500, 8192), "NVIDIA A100": (300, 1024)}
    patch = quota_body(quota(limits), usage, NOW)
    assert patch is not None
    status = patch["status"]

    assert "V100: 1.50/2.00 GPU, 8.0 GiB/64.0 GiB; all: 1.80/2.50 GPU" == status["summary"]
    assert [("V100", "1.50", "8.0 GiB"), ("", "1.80", "9.0 GiB")] == [
        (use["model"], use["gpus"], use["memory"]) for use in status["used"]
    ]
    assert ("False", "Within") == (status["conditions"][0]["status"], status["conditions"][0]["reason"])
    assert quota_body(quota(limits, status), usage, NOW + datetime.timedelta(days=1)) is None


def test_a_bound_below_what_is_held_is_told():
    """When pods were there before the quota, the condition Exceeded says so."""
    patch = quota_body(quota([{"model": "V100", "gpus": "1"}]), {"Tesla V100": (1500, 8192)}, NOW)

    assert patch is not None and ("True", "Over") == (
        patch["status"]["conditions"][0]["status"],
        patch["status"]["conditions"][0]["reason"],
    )


@pytest.mark.parametrize(
    ("label", "words"),
    [("affinity", "affinity"), ("antiAffinity", "anti_affinity"), ("exclusion", "exclusion")],
)
def test_a_namespace_may_be_forbidden_labels(label: str, words: str):
    """A pod with a label that a quota of its namespace forbids gets no GPU; without it, or elsewhere, it does."""
    spec = {"limits": [{"gpus": "2"}], "forbid": [label]}
    quota = msgspec.convert({"metadata": {"name": "q", "namespace": "team"}, "spec": spec}, GPUQuota)
    made = ledger(*quotas_of(quota))
    labelled = {words: "mine"}
    why = f'the quota "q" of namespace "team" forbids labels of {label}'

    assert {"n": why} == verdicts(made, ask("a", 10, **labelled), ["n"]).unresolvable
    with pytest.raises(NodeFull, match="forbids labels of"):
        made.allocate(ask("a", 10, **labelled), "n", 0.0)
    for fitting in (ask("b", 10), ask("c", 10, namespace="other", **labelled), ask("d", 60, gpu_parts="2")):
        assert ["n"] == verdicts(made, fitting, ["n"]).fitting
    patch = quota_body(quota, {}, NOW)
    assert patch is not None and f"all: 0.00/2.00 GPU; no {label}" == patch["status"]["summary"]

"""Explanations from a cluster's ledger: who decides by them is not held up, and answers are not old for long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asking import asking

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement import explain
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec
from aliquot.placement.decide import Decider
from aliquot.placement.policy import policy
from aliquot.placement.reasons import Infeasible
from aliquot.scheduler import cluster_source
from aliquot.scheduler.cluster_source import COPY_S, ClusterSource, LedgerExplanations
from aliquot.status import Workload


class Scene:
    """Two nodes of one GPU each, and somebody who explains by their ledger."""

    def __init__(self) -> None:
        device = [Device(0, GpuUuid(f"GPU-{n}"), "V100", 16384) for n in range(2)]
        specs = [NodeSpec(f"node-{n}", (device[n],), cpu_milli=8000, memory_mib=65536) for n in range(2)]
        self.decider = Decider(Cluster(specs), policy("binpack"))
        self.now_s = 0.0
        self.standing_still = False
        self.copies = 0
        self.explaining = LedgerExplanations(self.decider, self.calmly, lambda: self.now_s)

    def calmly(self, work: Callable[[], Any]) -> Any:
        """Run something while the ledger stands still."""
        before, self.standing_still = self.decider.cluster.copy, True
        self.decider.cluster.copy = self.copied  # type: ignore[method-assign]
        try:
            return work()
        finally:
            self.standing_still = False
            self.decider.cluster.copy = before  # type: ignore[method-assign]

    def copied(self) -> Cluster:
        """A copy, counted."""
        self.copies += 1
        return Cluster.copy(self.decider.cluster)

    def place(self, tenant: str, milli: int) -> None:
        """Somebody comes."""
        found = self.decider.decide(asking(rest_milli=milli))
        assert not isinstance(found, Infeasible)
        self.decider.commit(tenant, found, asking(rest_milli=milli))


@pytest.fixture
def scene() -> Scene:
    """Both GPUs have 0.4 left."""
    made = Scene()
    made.place("x/a", 600)
    made.place("x/b", 600)
    return made


def test_what_takes_long_is_found_while_the_books_may_move(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """Why something waits is found in a copy, in the thread of who asks; the ledger stands still for the copy only."""
    seen = []

    def explained(decider: Decider, ask: Ask, trial: Cluster, *rest: Any) -> explain.PlacementExplanation:
        seen.append((scene.standing_still, trial is decider.cluster))
        return explain.explain_waiting(decider, ask, trial, *rest)

    monkeypatch.setattr(cluster_source, "explain_waiting", explained)
    found = scene.explaining.explain(asking(rest_milli=500))

    assert [(False, False)] == seen
    assert found.placement is None and ["2 nodes"] == [reason.where for reason in found.place_reasons]


def test_what_fits_is_found_in_the_books_themselves(scene: Scene):
    """It is where the decider would put it now, and needs no copy."""
    found = scene.explaining.explain(asking(rest_milli=300))

    assert found.placement == scene.decider.decide(asking(rest_milli=300))
    assert found.why and 0 == scene.copies


def test_many_who_ask_cost_one_copy(scene: Scene):
    """However many pages of waiting workloads are open, the ledger is copied once in a while."""
    for second in range(5):
        scene.now_s = second * 0.9
        for milli in (500, 600, 700):
            scene.explaining.explain(asking(rest_milli=milli))
    assert 1 == scene.copies

    scene.now_s = COPY_S
    scene.explaining.explain(asking(rest_milli=500))
    assert 2 == scene.copies


def test_an_answer_is_given_again_until_the_next_copy(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """A page that asks each second costs one explanation in five."""
    asked = []
    plain = explain.explain_waiting
    monkeypatch.setattr(cluster_source, "explain_waiting", lambda *given: asked.append(given) or plain(*given))
    for second in range(5):
        scene.now_s = float(second)
        scene.explaining.explain(asking(rest_milli=500))

    assert 1 == len(asked)


def test_an_old_answer_is_news(scene: Scene):
    """When an answer is too old to be given again the pages ask anew, also where nothing else has changed."""
    facts = ClusterSource(scene.decider, title="test")
    facts.waiting = [(Workload("x/c", "Pod", "Pending", 500, 500, [], 0.0), [asking(rest_milli=500)])]
    facts.refresh(0.0)
    facts.explain("x/c")
    before = facts.revision
    facts.refresh(1.0)
    assert before == facts.revision

    facts._explanations._good_until_s = 0.0
    facts.refresh(6.0)
    assert before + 1 == facts.revision
    facts.refresh(7.0)
    assert before + 1 == facts.revision

"""What a viewer sees who has rights to some namespaces only."""

from __future__ import annotations

import msgspec
import pytest
from starlette.testclient import TestClient

from aliquot.web.api import AskFor
from aliquot.web.app import dashboard, everyone
from aliquot.web.rights import OTHERS, NamespacedView
from aliquot.web.testing import MadeUpFacts


@pytest.fixture
def seen(facts: MadeUpFacts) -> NamespacedView:
    """The made-up cluster for somebody of the namespace `web`, in which parts of GPUs are."""
    return NamespacedView(facts, frozenset({"web"}))


def test_no_name_of_another_namespace_is_told(seen: NamespacedView, facts: MadeUpFacts):
    """Nowhere in the API or on a page is a name of another namespace."""
    visitor = TestClient(dashboard(everyone(seen)), base_url="http://localhost")
    others = {share.tenant for gpu in facts.gpus() for share in gpu.shares if not share.tenant.startswith("web/")}
    shared = next(gpu for gpu in facts.gpus() if gpu.state == "whole")
    paths = ["/", "/gpus", "/workloads", "/pool", "/topology", "/try?request=0.3", f"/gpus/{shared.uuid}"]
    paths += [f"/api/v1/{name}" for name in ("gpus", "workloads", "pool", "quota", "events", "try?request=0.3")]
    paths += [f"/api/v1/gpus/{shared.uuid}/history"]
    told = "".join(visitor.get(path).text for path in paths)

    assert others and not [name for name in others if name in told]
    assert "research" not in visitor.get("/api/v1/quota").text + visitor.get("/api/v1/events").text


def test_room_is_everybodys(seen: NamespacedView, facts: MadeUpFacts):
    """What is free and what is used is the same for all viewers."""

    def numbers(gpus):
        return [(gpu.uuid, gpu.free_milli, gpu.busy_milli, [s.request_milli for s in gpu.shares]) for gpu in gpus]

    assert numbers(facts.gpus()) == numbers(seen.gpus())
    assert facts.nodes() == seen.nodes()


def test_own_names_are_told(seen: NamespacedView, facts: MadeUpFacts):
    """Tenants of the viewer's namespaces keep their names, the others are counted."""
    for before, after in zip(facts.gpus(), seen.gpus(), strict=True):
        for share, told in zip(before.shares, after.shares, strict=True):
            assert share.tenant == told.tenant if share.tenant.startswith("web/") else told.tenant.startswith(OTHERS)


def test_a_foreign_workload_is_not_there(seen: NamespacedView, facts: MadeUpFacts):
    """A workload of another namespace is answered like one that does not exist."""
    other = next(w.name for w in facts.workloads() if w.namespace == "research")
    mine = next(w.name for w in facts.workloads() if w.namespace == "web")

    assert seen.explain(other) is None and seen.explain(mine) is not None
    assert {"web"} == {workload.namespace for workload in seen.workloads()}


def test_a_name_that_only_begins_like_mine_is_not_mine(facts: MadeUpFacts):
    """Rights to `we` are none to `web`, and a run without a namespace is nobody's."""
    assert [] == list(NamespacedView(facts, frozenset({"we", ""})).workloads())


def test_a_trial_keeps_the_viewers_own_part(seen: NamespacedView):
    """A dry run shows the viewer's request among unnamed others."""
    trial = seen.try_request(AskFor(request="0.1"))

    assert trial.fits and msgspec.json.encode(trial)

"""What nobody measures is shown as not known, on pages and in the API, and never as nothing."""

from __future__ import annotations

import pytest
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient

from aliquot.status import Pool, QuotaLine
from aliquot.web.app import dashboard, everyone

WHY = "it cannot be reached"


@pytest.fixture
def silent(facts: MadeUpFacts) -> MadeUpFacts:
    """The made-up cluster, of whose first node nobody says what is used."""
    facts.silence("node-000", WHY)
    return facts


def test_the_list_says_so(silent: MadeUpFacts, visitor: TestClient):
    """GPUs of a silent node have their promises and no use, with the reason above them; the sums say how many."""
    text = visitor.get("/gpus?q=node-000").text

    assert 8 == text.count("use not known · ")
    assert WHY in text
    assert "8 not known" in visitor.get("/").text
    assert "use not known" not in visitor.get("/gpus?q=node-001").text


def test_a_gpu_and_its_workload_say_so(silent: MadeUpFacts, visitor: TestClient):
    """Usage, memory, waits and state of a tenant are dashes, its request and limit are not."""
    gpu = next(gpu for gpu in silent.gpus() if not gpu.measured and gpu.shares)
    share = gpu.shares[0]
    page = visitor.get(f"/gpus/{gpu.uuid}").text
    rows = visitor.get(f"/workloads?q={share.tenant}").text
    one = visitor.get(f"/workloads/{share.workload}").text

    assert "Not reported by its node" in page and "an unknown part" in page
    assert 'class="promised' in page and 'class="used' not in page
    for text in (page, rows, one):
        assert f"<b>{share.usage_milli / 1000:.2f}</b>" not in text
    assert "Not reported by its node" in rows and "Not reported by its node" in one


def test_an_hour_that_is_not_known_is_not_empty(facts: MadeUpFacts, visitor: TestClient):
    """Where somebody is on a GPU and nothing is known of its hour, nobody says that nobody was."""
    gpu = next(gpu for gpu in facts.gpus() if gpu.shares)
    idle = next(gpu for gpu in facts.gpus() if not gpu.shares)
    facts.forget()

    assert "Its last hour is not known" in visitor.get(f"/gpus/{gpu.uuid}").text
    assert "This GPU had no tenant" in visitor.get(f"/gpus/{idle.uuid}").text


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/", "kubectl aliquot doctor"),
        ("/gpus", "kubectl aliquot doctor"),
        ("/topology", "kubectl aliquot doctor"),
        ("/workloads", "aliquot apply -f FILE"),
    ],
)
def test_where_there_is_nothing_the_page_says_what_to_do(path: str, advice: str):
    """A cluster that has just begun is shown with the next step, not as a filter that nothing fits."""
    visitor = TestClient(dashboard(everyone(MadeUpFacts(nodes=0))), base_url="http://localhost")

    assert advice in visitor.get(path).text


def test_an_empty_page_is_not_in_the_navigation(
    facts: MadeUpFacts, visitor: TestClient, monkeypatch: pytest.MonkeyPatch
):
    """Pool and quota are offered where there is a vGPU or a quota."""
    assert 'href="/pool"' in visitor.get("/").text

    monkeypatch.setattr(facts, "quota", lambda: [QuotaLine("lab", "V100", 500, 1024)])
    assert 'href="/pool"' in visitor.get("/").text
    monkeypatch.setattr(facts, "pool", lambda: Pool("on-demand", []))
    assert 'href="/pool"' not in visitor.get("/").text


def test_programs_are_told(silent: MadeUpFacts, visitor: TestClient):
    """The API tells a GPU that is not measured from an idle one, and counts them."""
    gpus = visitor.get("/api/v1/gpus").json()["items"]
    nodes = {node["name"]: node["silent"] for node in visitor.get("/api/v1/nodes").json()["items"]}

    assert {"node-000"} == {gpu["node"] for gpu in gpus if not gpu["measured"]}
    assert 8 == visitor.get("/api/v1/totals").json()["unmeasured"]
    assert {WHY, ""} == set(nodes.values()) and WHY == nodes["node-000"]


def test_history_has_a_gap(silent: MadeUpFacts):
    """While nothing is known of a GPU its hour gets no points, not zeros."""
    gpu = next(gpu for gpu in silent.gpus() if not gpu.measured and gpu.shares)
    silent.pass_time(points=2)
    history = silent.history(gpu.uuid, 10.0)

    assert history is not None
    assert all(value is None for series in history.series for value in series.usage_milli)

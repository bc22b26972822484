"""The pages of the past: timelines and GPU-hours, and who sees which names."""

from __future__ import annotations

import csv
import html
import io
import re

import pytest
from kit.browsing import browser
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient

from aliquot.status import NamespacedView, Share, Timeline
from aliquot.status.history import RANGES, Lane
from aliquot.web.history.keeping import LongHistory
from aliquot.web.pages.timeline import charts, gaps, outline


@pytest.fixture
def facts() -> MadeUpFacts:
    """Two nodes with four GPUs each, and half an hour of them."""
    made_up = MadeUpFacts(nodes=2, gpus=4)
    made_up.remember(minutes=30)
    return made_up


def shared(facts: MadeUpFacts):
    """A GPU with several tenants."""
    return max(facts.gpus(), key=lambda gpu: len(gpu.shares))


@pytest.mark.parametrize("word", ["", "1m", *RANGES, "x"])
def test_a_timeline_has_every_tenant(visitor: TestClient, facts: MadeUpFacts, word: str):
    """For each range the page draws the GPU and names all its tenants; an unknown range is the usual one."""
    gpu = shared(facts)
    answer = visitor.get("/timeline", params={"gpu": gpu.uuid, "range": word})

    assert 200 == answer.status_code
    assert '<svg class="chart' in answer.text
    assert all(share.tenant in answer.text for share in gpu.shares)


def test_a_tenants_timeline_is_of_its_gpus(visitor: TestClient, facts: MadeUpFacts):
    """The timeline of a tenant shows the GPUs that it is on, and it alone by name."""
    gpu = shared(facts)
    text = visitor.get("/timeline", params={"tenant": gpu.shares[0].tenant, "range": "1h"}).text

    assert [gpu.uuid] == re.findall(r'<h2><a href="/gpus/([^"]+)">', text)
    assert gpu.shares[0].tenant in text and f"</i>{gpu.shares[1].tenant}" not in text
    assert 404 == visitor.get("/timeline", params={"tenant": "nobody"}).status_code


@pytest.mark.parametrize("word", ["1m", "1h"])
def test_the_timeline_has_all_gpus_at_once(visitor: TestClient, facts: MadeUpFacts, word: str):
    """Without a GPU in the query each has one chart and its tenants in the same page, with a link to its own."""
    text = visitor.get("/timeline", params={"range": word}).text
    charts = re.findall(r'<section id="timeline-.*?</section>', text, re.DOTALL)

    assert [gpu.uuid for gpu in facts.gpus()] == [re.search(r"gpu=([^\"]+)", chart)[1] for chart in charts]
    for gpu, chart in zip(facts.gpus(), charts, strict=True):
        assert chart.count('<svg class="chart') == bool(gpu.shares) or word == "1h"
        assert chart.count("<table") == 0 and all(share.tenant in chart for share in gpu.shares)


def test_the_timeline_of_a_large_cluster_is_bounded():
    """Of many GPUs the first eight with tenants are drawn, and the page says so."""
    visitor = browser(MadeUpFacts(nodes=40))
    text = visitor.get("/timeline").text

    assert 8 == text.count('<section id="timeline-')
    assert "8 of 320 GPUs" in text


def test_hours_have_every_controller(visitor: TestClient, facts: MadeUpFacts):
    """The page and the CSV have the same lines, whose sums are the total."""
    hours = visitor.get("/api/v1/hours", params={"range": "24h"}).json()
    text = visitor.get("/hours?range=24h").text
    lines = list(csv.reader(io.StringIO(visitor.get("/api/v1/hours.csv?range=24h").text)))

    assert all(line["owner"] in text for line in hours["lines"])
    assert ["namespace", "controller", "promised_gpu_hours"] == lines[0][:3]
    assert {(line["namespace"], line["owner"]) for line in hours["lines"]} == {(row[0], row[1]) for row in lines[1:]}
    assert hours["total"]["promised"] == pytest.approx(sum(float(row[2]) for row in lines[1:]), abs=1e-4)
    running = sum(share.request_milli for gpu in facts.gpus() for share in gpu.shares)
    assert running * 30 / 60 / 1000 == pytest.approx(hours["total"]["promised"], rel=0.05)


def test_hours_say_what_is_promised_and_unused(visitor: TestClient, facts: MadeUpFacts):
    """Below the hours are the sums of every namespace and each controller's size, from the same facts as the API's."""
    facts.remember(minutes=60)
    found = visitor.get("/api/v1/recommendations?range=24h").json()
    text = html.unescape(visitor.get("/hours?range=24h").text)
    promised = {row["namespace"]: row["promised_milli"] for row in found["namespaces"]}
    shares = [share for gpu in facts.gpus() for share in gpu.shares]

    assert {share.tenant.partition("/")[0] for share in shares} == set(promised)
    assert promised["web"] == sum(share.request_milli for share in shares if share.tenant.startswith("web/"))
    assert all(f"{line['namespace']}/{line['controller']}" in text for line in found["recommendations"])
    assert any(line["command"] and line["command"] in text for line in found["recommendations"])


def test_what_is_idle_might_be_parked(visitor: TestClient, facts: MadeUpFacts):
    """On one machine a share that has not used its GPU for ten minutes is said to be idle; a shorter rest is none."""
    for name, idle_s in (("lab/idle-0", 7200), ("lab/rests-0", 60)):
        share = Share(name, 100, 200, 0, 1024, 512, idle_s=idle_s)
        facts.put("GPU-00000000-0000-0000-0000-000000000000", share)
    found = visitor.get("/api/v1/recommendations?range=24h").json()["recommendations"]
    lines = {line["controller"]: line for line in found}
    text = html.unescape(visitor.get("/hours?range=24h").text)

    said = "idle for 120m: parked, its memory would be others' meanwhile"
    assert (7200, said) == (lines["Deployment/idle"]["idle_s"], lines["Deployment/idle"]["reasons"][-1])
    assert said not in lines["Deployment/rests"]["reasons"]
    assert said in text


def test_hours_are_sorted_by_what_is_asked(visitor: TestClient):
    """Each column's heading sorts by it, the largest first."""
    text = visitor.get("/hours", params={"range": "24h", "sort": "idle"}).text
    idle = [float(number.replace(",", "")) for number in re.findall(r'data-label="Idle">([\d.,]+)<', text)]

    assert idle[:-1] == sorted(idle[:-1], reverse=True)
    assert 'aria-sort="descending"' in text


@pytest.mark.parametrize("query", [{"range": "2w"}, {"by": "colour"}])
def test_unknown_words_are_named(visitor: TestClient, query: dict[str, str]):
    """The API answers an unknown range or dimension with a sentence; the page shows the usual one."""
    answer = visitor.get("/api/v1/hours", params=query)
    ((name, text),) = query.items()

    assert (400, True) == (answer.status_code, f'{name} "{text}" is unknown' in answer.json()["error"])
    assert 400 == visitor.get("/api/v1/hours.csv", params=query).status_code
    assert 200 == visitor.get("/hours", params=query).status_code


def test_others_names_are_not_in_the_past(facts: MadeUpFacts):
    """A viewer with rights to one namespace sees of a GPU's others one part without a name, which is their sum."""
    facts.put("GPU-00000000-0000-0000-0000-000000000000", Share("research/mine", 100, 200, 50, 1024, 512))
    facts.put("GPU-00000000-0000-0000-0000-000000000000", Share("web/theirs", 100, 200, 50, 1024, 512))
    facts.remember(minutes=5)
    view = browser(NamespacedView(facts, frozenset({"research"})))
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    lanes = view.get(f"/api/v1/gpus/{uuid}/timeline?range=1h").json()["lanes"]
    whole = browser(facts).get(f"/api/v1/gpus/{uuid}/timeline?range=1h")
    assert "(other namespaces)" == lanes[-1]["tenant"]
    assert lanes[-1]["used"][-2] == pytest.approx(
        sum(lane["used"][-2] for lane in whole.json()["lanes"] if not lane["tenant"].startswith("research/")), abs=1e-3
    )


def lane(name: str, *used: float | None) -> Lane:
    """A tenant that used these parts."""
    nothing: list = [None if value is None else 0 for value in used]
    return Lane(name, "", list(used), nothing, nothing, nothing, nothing, nothing, nothing)


def test_gaps_are_drawn_as_gaps():
    """Where nothing was recorded there is a rectangle of its own and no part of any tenant."""
    gpu = shared(MadeUpFacts())
    found = Timeline(gpu.uuid, 0, 240, 60, [0, 60, 120, 180], [1, 0, 0, 1], [lane("a", 0.5, None, None, 0.25)])
    drawn = charts(found, gpu)

    assert [(250, 500)] == drawn["gaps"]
    assert "M0 500H250V1000H0ZM750 750H1000V1000H750Z" == drawn["compute"][0].path


def test_parts_are_stacked():
    """Each layer begins where the one below ends, and none is higher than the GPU."""
    assert "M0 500H500V250H1000V500H500V1000H0Z" == outline([0.0, 0.5], [0.5, 0.75])
    assert "" == outline([0.2, 0.2], [0.2, 0.2])
    assert [] == gaps([1, 1])
    gpu = shared(MadeUpFacts())
    found = Timeline(gpu.uuid, 0, 60, 60, [0], [1], [lane("a", 0.75), lane("b", 0.5)])
    assert ["M0 250H1000V1000H0Z", "M0 0H1000V250H0Z"] == [layer.path for layer in charts(found, gpu)["compute"]]


def test_many_tenants_are_drawn_as_one_part():
    """Beyond a dozen tenants the smaller ones are one layer, whose height is theirs together."""
    gpu = shared(MadeUpFacts(nodes=1, gpus=1))
    lanes = [lane(f"x/{n}", (40 - n) / 1000) for n in range(40)]
    drawn = charts(Timeline(gpu.uuid, 0, 60, 60, [0], [1], lanes), gpu)

    assert (13, 28) == (len(drawn["compute"]), drawn["others"])
    assert f"V{1000 - sum(40 - n for n in range(12))}" in drawn["compute"][-1].path


def test_pages_of_the_past_say_that_a_history_was_damaged(tmp_path):
    """The pages and the API name the file that was put aside, in the place where a failure is told."""
    made_up = MadeUpFacts(nodes=1, gpus=2)
    (tmp_path / "history.db").write_bytes(b"no database at all" * 1000)
    made_up.past = LongHistory(tmp_path / "history.db")
    try:
        client = browser(made_up)
        paths = ("/hours", "/timeline", "/api/v1/hours", f"/api/v1/gpus/{made_up.gpus()[0].uuid}/timeline")
        told = [client.get(path).text for path in paths]
    finally:
        made_up.past.close()

    assert [True] * 4 == ["was damaged and is kept as" in text and "history.db.damaged" in text for text in told]

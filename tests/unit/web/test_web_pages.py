"""What the pages show, how old they say that it is, and that what nobody measures is never shown as nothing."""

import html
import re
import time
from urllib.parse import quote

import pytest
from kit.browsing import browser
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient

from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest
from aliquot.status import NamespacedView, Pool, QuotaLine, Share, Workload
from aliquot.status.sensors import Sensors
from aliquot.web.pages import STALE_S, stale_since
from aliquot.web.pages.gpus import PER_PAGE, ordered
from aliquot.web.pages.trying import gpu_spec, request_of
from aliquot.web.render import percent, slug

PATHS = ["/", "/gpus", "/workloads", "/topology", "/pool", "/try"]
WHY = "it cannot be reached"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}${7*7}"


@pytest.fixture
def silent(facts: MadeUpFacts) -> MadeUpFacts:
    """The made-up cluster, of whose first node nobody says what is used."""
    facts.silence("node-000", WHY)
    return facts


def shown_gpus(text: str) -> list[str]:
    """UUIDs of the GPUs of a page, in order."""
    return re.findall(r'<a href="/gpus/([^"]+)">', text)


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_there(visitor: TestClient, path: str):
    """Each page answers, says its name once as heading, and marks itself in the navigation."""
    answer = visitor.get(path)

    assert 200 == answer.status_code
    assert 1 == answer.text.count("<h1>") == answer.text.count('aria-current="page"')


def test_all_gpus_are_listed(visitor: TestClient, facts: MadeUpFacts):
    """A small cluster is shown whole, every GPU with everybody on it."""
    text = visitor.get("/gpus").text

    assert [gpu.uuid for gpu in facts.gpus()] == shown_gpus(text)
    assert all(share.tenant in text for gpu in facts.gpus() for share in gpu.shares)


@pytest.mark.parametrize("state", ["idle", "shared", "whole"])
def test_gpus_are_found_by_state(visitor: TestClient, facts: MadeUpFacts, state: str):
    """The filter by state leaves exactly those."""
    wanted = [gpu.uuid for gpu in facts.gpus() if gpu.state == state]

    assert wanted == shown_gpus(visitor.get(f"/gpus?state={state}").text)


def test_gpus_are_found_by_tenant(visitor: TestClient, facts: MadeUpFacts):
    """The search finds the GPU on which a tenant is."""
    gpu = next(gpu for gpu in facts.gpus() if gpu.shares)

    assert gpu.uuid in shown_gpus(visitor.get("/gpus", params={"q": gpu.shares[0].tenant.upper()}).text)


def test_gpus_are_sorted_by_what_is_free(facts: MadeUpFacts):
    """Sorted by free compute, the freest node comes first and within it the freest GPU."""
    found = ordered(facts.gpus(), {"sort": "free"})

    assert max(gpu.free_milli for gpu in facts.gpus()) == found[0].free_milli
    for node in {gpu.node for gpu in found}:
        free = [gpu.free_milli for gpu in found if gpu.node == node]
        assert sorted(free, reverse=True) == free


def test_bars_are_as_long_as_shares(visitor: TestClient, facts: MadeUpFacts):
    """The promised lane of a GPU's bar has one rectangle for each tenant, as wide as its request."""
    gpu = next(gpu for gpu in facts.gpus() if len(gpu.shares) > 1)
    text = visitor.get("/gpus", params={"q": gpu.uuid}).text
    bar = text[text.index('class="bar compute"') :]
    widths = re.findall(r'class="promised[^>]* width="(\d+)"', bar[: bar.index("</svg>")])

    assert [share.request_milli for share in gpu.shares] == [int(width) for width in widths]


def test_a_gpu_opens_to_its_tenants(visitor: TestClient, facts: MadeUpFacts):
    """A GPU's page shows each tenant with usage, memory, wait, quota, debt and promise, and the hour as a table."""
    gpu = next(gpu for gpu in facts.gpus() if gpu.state == "shared")
    text = visitor.get(f"/gpus/{gpu.uuid}").text

    for share in gpu.shares:
        assert share.tenant in text and f"{share.wait_ms:.0f} ms" in text
        assert percent(share.kept_percent) in text
    assert "As a table" in text and "Wait for a grant, median (ms)" in text


def test_lent_memory_is_shown_with_what_is_called_back(visitor: TestClient, facts: MadeUpFacts):
    """Of a GPU and a workload the lists show how much is lent and called back, and their own pages say it in words."""
    uuid, lent = facts.gpus()[0].uuid, {"memory_lent_mib": 3072, "memory_called_mib": 1024}
    lists = ("/gpus", "/workloads")
    before = [visitor.get(path).text for path in lists]
    facts.put(uuid, Share("lab/x", 200, 1000, 450, 2048, 5120, "lab/x", notes=["lab/x has 3.0 GiB lent"], **lent))

    assert not any("called back" in text for text in before)
    assert all("3.0 lent, 1.0 called back" in visitor.get(path).text for path in lists)
    assert all("lab/x has 3.0 GiB lent" in visitor.get(f"/{of}").text for of in (f"gpus/{uuid}", "workloads/lab/x"))
    (shown,) = (gpu for gpu in visitor.get("/api/v1/gpus").json()["items"] if gpu["uuid"] == uuid)
    assert lent == {name: shown[name] for name in lent} == {name: shown["shares"][-1][name] for name in lent}


def test_sensors_are_shown_as_far_as_they_are_known(visitor: TestClient, facts: MadeUpFacts):
    """A GPU's page has a row for each reading that its driver gives, and none for the others."""
    gpu = facts.gpus()[0]
    assert "Temperature" not in visitor.get(f"/gpus/{gpu.uuid}").text
    facts.sense(gpu.uuid, Sensors(celsius=0, watts=61.4, limit_watts=300.0))
    text = visitor.get(f"/gpus/{gpu.uuid}").text

    assert "<dd>0 °C</dd>" in text and "<dd>61 of 300 W</dd>" in text
    assert "clock" not in text


@pytest.mark.parametrize("path", ["/gpus/GPU-none", "/workloads/not/here", "/topology?node=none", "/nowhere"])
def test_what_is_not_there_is_told(visitor: TestClient, path: str):
    """A page about something that is gone answers 404 with a sentence and a way back."""
    answer = visitor.get(path)

    assert 404 == answer.status_code and "There is no" in answer.text and 'href="/"' in answer.text


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/workloads?state=zzz", 'state "zzz" is not one of Pending, Running, Completed.'),
        ("/hours?since=abc", 'There is no parameter "since" here; the page takes range, by, sort.'),
        ("/hours?by=model,abc", 'by "model,abc" is not one of namespace, controller, model.'),
        ("/gpus?state=zzz", 'state "zzz" is not one of idle, shared, whole, unhealthy, unmeasured.'),
        ("/timeline?range=2y", 'range "2y" is not one of 1m, '),
        ("/try?request=abc", '"abc"'),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(visitor: TestClient, path: str, sentence: str):
    """A page whose address has a parameter or a word that it does not know is drawn, with a sentence that says so."""
    answer = visitor.get(path)

    assert 200 == answer.status_code and sentence in html.unescape(answer.text)


@pytest.mark.parametrize(
    "path", ["/workloads?state=", "/hours?by=namespace,controller", "/gpus?sort=&group=&state=idle"]
)
def test_what_a_form_sends_is_understood(visitor: TestClient, path: str):
    """Empty fields of a form and combinations that the page offers bring up no such sentence."""
    assert 'id="misread"' not in visitor.get(path).text


def test_a_waiting_workload_says_why(visitor: TestClient):
    """The list shows the message, the workload's page the reasons one by one, and all that would let it in."""
    page = visitor.get("/workloads/batch/wait-0").text

    assert "no node has two idle GPUs" in visitor.get("/workloads?state=Pending").text
    assert "have no V100" in page
    assert "Nearest: ask 0.10 GPU less, and it fits on n." in page
    assert "Or: after batch/one has ended it fits on n." in page


def test_try_it_answers_on_the_page(visitor: TestClient):
    """A request that fits, one that waits and one that makes no sense each get their answer, with status 200."""
    assert "It fits on GPU" in visitor.get("/try?request=0.3").text
    assert "It would wait." in visitor.get("/try?request=7").text
    wrong = visitor.get("/try?request=lots")

    assert 200 == wrong.status_code and "is not a fraction of a GPU" in wrong.text


SHAREPOD = """
apiVersion: aliquot.dev/v1alpha1
kind: SharePod
metadata: {name: a}
spec:
  gpu: {request: 0.25, limit: 0.5, memory: 2Gi}
  template: {spec: {containers: [{name: main, command: [sleep, "1"]}]}}
"""


def test_try_it_takes_a_sharepod(visitor: TestClient):
    """A pasted SharePod is tried by its spec.gpu; a wrong one is told by its field; it stays in the form."""
    right = visitor.get("/try", params={"yaml": SHAREPOD}).text
    wrong = visitor.get("/try", params={"yaml": SHAREPOD.replace("limit", "limt")}).text

    assert "It fits on GPU" in right and "0.25" in right and "name: main" in right
    assert "spec.gpu has no field" in wrong


def test_a_pasted_sharepod_is_tried_with_all_that_it_asks_for():
    """What the form has no field for, such as `wake`, is part of the request that is tried."""
    text = SHAREPOD.replace("memory: 2Gi", "memory: 2Gi, wake: 5ms")

    assert GpuRequest(250, 500, Memory(mib=2048), wake_us=5000) == request_of({"yaml": text})


def test_a_key_that_is_written_twice_is_refused(visitor: TestClient):
    """Of two requests neither is taken silently: the message names the key and both lines, as `aliquot apply` does."""
    answer = visitor.get(
        "/try", params={"yaml": SHAREPOD.strip().replace("  gpu:", "  gpu: {request: 0.5}\n  gpu:")}
    ).text

    assert "line 6: the key &#34;gpu&#34; stands in line 5 already; write it once" in answer


def test_a_request_is_shown_as_a_sharepod(visitor: TestClient):
    """The YAML under the answer is a SharePod with the fields of the form, which the page takes as it is."""
    asked = {
        "request": "0.3",
        "limit": "60%",
        "memory": "4Gi",
        "model": "V100|A100",
        "gpu_id": "mine",
        "affinity": "yes",
    }
    text = visitor.get("/try", params=asked).text
    (found,) = re.findall(r"<pre><code>(.*?)</code></pre>", text, re.S)

    written = html.unescape(found)
    assert gpu_spec(asked) == gpu_spec({"yaml": written})
    assert "Not understood" not in visitor.get("/try", params={"yaml": written}).text


BOMB = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12))
"""Six hundred bytes, of which merging makes 10^11 entries."""


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- 1\n- 2",
        "--- a\n--- b",
        "!!python/object/apply:os.system [ls]",
        "!!int ''",
        "x" * 20_000,
        "[" * 15_000,
        "a: 2001-99-99",
        "1" * 5000,
        "\0",
        BOMB,
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.timeout(20)
def test_try_it_survives_any_text(visitor: TestClient, text: str):
    """What is no SharePod is refused with a sentence."""
    answer = visitor.get("/try", params={"yaml": text})

    assert 200 == answer.status_code and "Not understood" in answer.text
    assert 400 == visitor.get("/api/v1/try", params={"yaml": text}).status_code


@pytest.mark.parametrize("word", ["path", "template", "id", "block_id", "title", "yaml", "uuid", "page", "node", "q"])
def test_no_word_in_an_address_breaks_a_page(visitor: TestClient, word: str):
    """Words of the query that a page does not know, and empty ones, change nothing."""
    for path in PATHS:
        for value in ("", "2"):
            status = visitor.get(path, params={word: value, "page": "2"}).status_code
            assert status == 200 or (path, word, value) == ("/topology", "node", "2")


def test_hostile_names_are_text(facts: MadeUpFacts, visitor: TestClient):
    """Names, messages and events from outside never become markup, on any page."""
    gpu = facts.gpus()[0]
    facts.put(gpu.uuid, Share(HOSTILE, 100, 1000, 50, 100, 50))
    facts.add(Workload(HOSTILE, "Pod", "Pending", 100, 100, [], 1.0, message=HOSTILE, events=[HOSTILE]))
    pages = [
        "/",
        "/gpus",
        f"/gpus/{gpu.uuid}",
        "/workloads",
        f"/workloads/{quote(HOSTILE)}",
        "/pool",
        "/gpus/" + quote(HOSTILE),
    ]
    words = quote(HOSTILE)
    pages += [
        f"/topology?node={gpu.node}",
        f"/gpus?q={words}",
        f"/?first={words}",
        f"/try?request={words}",
        f"/try?yaml={words}",
        f"/{words}",
    ]
    for path in pages:
        text = visitor.get(path).text
        assert "<script>alert" not in text and "<img" not in text and "onerror=alert(2)>" not in text, path


def test_many_gpus_are_shown_a_page_at_a_time():
    """With 300 nodes of 8 GPUs the list is cheap, small and bounded, and the last page is reachable."""
    facts = MadeUpFacts(nodes=300, gpus=8)
    client = browser(facts)
    client.get("/gpus")
    first = client.get("/gpus", headers={"accept-encoding": "identity"})
    last = client.get("/gpus?page=50").text

    assert len(first.content) < 100_000 and first.text.count("<") < 5000
    assert PER_PAGE == len(shown_gpus(first.text))
    assert facts.gpus()[-1].uuid == shown_gpus(last)[-1]


def test_what_is_in_the_query_stays_in_the_pager():
    """The next page keeps filters and order."""
    client = browser(MadeUpFacts(nodes=30, gpus=8))

    assert 'href="/gpus?sort=busy&amp;page=2" rel="next"' in client.get("/gpus?sort=busy").text


def test_ids_are_unique_and_plain():
    """Any name makes an id without characters that selectors know, and different names different ids."""
    names = ["a.b", "a_b", "a-b", "a b", "ä", "a.b.", HOSTILE]

    assert len(names) == len({slug(name) for name in names})
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", slug(name)) for name in names)


def test_a_broken_promise_is_never_rounded_up():
    """99.96 % is not 100 %."""
    assert ("99.9 %", "100 %", "–") == (percent(99.96), percent(100.0), percent(None))


@pytest.mark.parametrize("path", PATHS)
def test_old_facts_are_said_on_every_page(visitor: TestClient, facts: MadeUpFacts, path: str):
    """When nothing was read for a while each page has a banner with the time of the last reading; then it goes."""
    assert "No news since" not in visitor.get(path).text
    facts.hold(time.time() - STALE_S - 1)
    assert re.search(r"No news since <b>[\d: -]{8,20} \S+</b>", visitor.get(path).text)
    facts.hold(None)
    assert "No news since" not in visitor.get(path).text


def test_without_scripts_a_page_says_when_its_facts_were_made(visitor: TestClient):
    """The time of the facts is in each page for browsers that run no scripts; a page of no facts claims none."""
    assert "as of" not in visitor.get("/nowhere").text
    assert re.search(r"<noscript> · as of [\d:]{8} \S+, reload for newer</noscript>", visitor.get("/").text)


def test_age_is_the_same_for_every_viewer(facts: MadeUpFacts):
    """A viewer of a namespace sees the age of the cluster's facts."""
    facts.hold(time.time() - 100)

    assert facts.as_of_s == stale_since(NamespacedView(facts, frozenset({"web"})))


def test_a_silent_nodes_last_answer_is_in_the_list(visitor: TestClient, facts: MadeUpFacts):
    """The list says of a silent node since when there is no news."""
    facts.silence("node-000", "away", time.time() - 60)

    assert re.search(r"not known, no news since <b>[\d:]{8} \S+</b>: away", visitor.get("/gpus?node=node-000").text)


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
    visitor = browser(MadeUpFacts(nodes=0))

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

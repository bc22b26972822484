"""The first page: alerts, sums, what waits and why, and the heat map."""

import html
import re
import time

import msgspec
import pytest
from kit.browsing import browser
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient

from aliquot.status import NamespacedView, Share, Workload
from aliquot.status.source import totals
from aliquot.web.pages.overview import MAX_CELLS
from aliquot.web.render import gpus, size

UNHEALTHY = "GPU-00000001-0002"


def cells(text: str) -> list[tuple[str, str, str]]:
    """Shade, address and text of each cell of a page's map."""
    return re.findall(r'<a class="(h\w[^"]*)" href="([^"]+)"[^>]*>([^<]*)</a>', text)


def pending(milli: int, message: str = "") -> Workload:
    return Workload("lab/w", "SharePod", "Pending", milli, milli, [], 9.0, message=message)


@pytest.mark.parametrize(
    ("show", "of"),
    [
        ("", lambda gpu: gpu.busy_milli // 10),
        ("promised", lambda gpu: (1000 - gpu.free_milli) // 10),
        ("memory", lambda gpu: gpu.memory_used_mib * 100 // gpu.memory_mib),
    ],
)
def test_every_gpu_has_a_cell(visitor: TestClient, facts: MadeUpFacts, show: str, of):
    """The map has a cell for each GPU in the list's order, with the percentage chosen by a link."""
    page = visitor.get("/", params={"show": show}).text

    assert [str(of(gpu)) for gpu in facts.gpus()] == [text for _, _, text in cells(page)]
    assert ["use", "promised", "memory"] == re.findall(r">(\w+)</a>", page[page.index('class="choice"') :])[:3]


def test_a_cell_leads_to_its_gpu_and_a_name_to_its_node(visitor: TestClient, facts: MadeUpFacts):
    """A cell's address shows that GPU, and a row's name the GPUs of that node and no others."""
    page = visitor.get("/").text
    for gpu, (_, href, _) in zip(facts.gpus(), cells(page), strict=True):
        assert gpu.uuid in visitor.get(href).text
    listed = visitor.get("/gpus?node=node-001").text

    assert 'href="/gpus?node=node-001"' in page
    assert "node-001" in listed and "node-002" not in listed


def test_an_abbreviated_uuid_names_one_gpu(visitor: TestClient):
    """A beginning of a UUID finds the GPU if no other begins so; one that several have finds none."""
    assert 200 == visitor.get("/gpus/GPU-00000001-0002").status_code
    assert [404, 404] == [visitor.get(f"/gpus/{part}").status_code for part in ("GPU-00000001", "GPU-")]


def test_what_is_wrong_is_at_the_top(visitor: TestClient, facts: MadeUpFacts):
    """A silent node with the time of its last answer and an unhealthy GPU come before the sums."""
    unhealthy = next(gpu for gpu in facts.gpus() if gpu.uuid.startswith(UNHEALTHY))
    facts.fail(unhealthy.uuid)
    facts.silence("node-000", "it cannot be reached", time.time() - 60)
    text = visitor.get("/").text
    above = text[: text.index('id="summary"')]

    assert re.search(r"node-000</a> no news since [\d:]{8} \S+: it cannot be reached", above)
    assert "GPU 2 of node-001</a> is unhealthy" in above
    assert [(unhealthy.uuid[:17], "!")] == [
        (href[6:], word) for shade, href, word in cells(text) if "unhealthy" in shade
    ]
    assert ["–"] * 8 == [word for shade, _, word in cells(text) if shade == "hx"]


def test_where_all_is_well_nothing_is_an_alert():
    """Without anything wrong there is no list of alerts."""
    facts = MadeUpFacts(nodes=1, gpus=0)

    assert 'class="alerts"' not in browser(facts).get("/").text


def test_many_of_a_kind_are_counted():
    """Of thirty silent nodes three are named and the rest is a number that leads to all."""
    facts = MadeUpFacts(nodes=30, gpus=1)
    for number in range(30):
        facts.silence(f"node-{number:03d}", "away")
    text = browser(facts).get("/").text

    assert 3 == text.count("no news so far")
    assert re.search(r'href="/gpus\?state=unmeasured">27</a> more nodes do not answer', text)


def test_what_waits_comes_before_the_map_with_its_command(visitor: TestClient, facts: MadeUpFacts):
    """The longest waiting are named with what they lack and the command that explains it, quoted for a shell."""
    facts.add(Workload("lab/$(reboot)", "Pod", "Pending", 8000, 8000, [], 1e6, message="0/9 nodes are available"))
    text = html.unescape(visitor.get("/").text)
    waits = text[text.index('id="waiting"') : text.index('id="map"')]

    assert "0/9 nodes are available" in waits
    assert "<code>aliquot explain 'lab/$(reboot)'</code>" in waits


def test_a_clusters_commands_are_kubectls():
    """In a cluster a waiting pod is explained by its own name and namespace."""
    facts = MadeUpFacts(nodes=2)
    facts.program = "kubectl aliquot"

    assert "<code>kubectl aliquot explain pod wait-0 -n batch</code>" in browser(facts).get("/").text


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "0/4 nodes are available: 4 does not have a GPU with 0.50 free. preemption: 0/4 nodes are available: "
            "4 Preemption is not helpful for scheduling.",
            "0/4 nodes are available: 4 does not have a GPU with 0.50 free.",
        ),
        ("GPU 0 has 0.40 free, 0.50 were asked", "GPU 0 has 0.40 free, 0.50 were asked"),
        ("", "is not scheduled yet"),
    ],
)
def test_what_waits_has_its_schedulers_reason(message: str, said: str):
    """A waiting workload comes with what its scheduler says, but for what kube-scheduler says of evictions."""
    facts = MadeUpFacts(nodes=1)
    facts.add(msgspec.structs.replace(pending(500, message), age_s=1e6))
    text = html.unescape(browser(facts).get("/").text)

    assert f'lab/w</a><span class="why">{said}</span>' in text


def test_what_is_lent_is_use_above_the_own_request(facts: MadeUpFacts):
    """The sum of what is lent counts only the part of each tenant's use that is above its request."""
    for gpu in facts.gpus():
        assert all(share.usage_milli <= share.limit_milli for share in gpu.shares)
    before = totals(facts).lent_milli
    facts.put(facts.gpus()[0].uuid, Share("lab/x", 200, 1000, 450, 1, 1))

    assert 250 == totals(facts).lent_milli - before


def test_sums_are_in_units_that_are_read():
    """From 1 TiB on memory is in TiB, and thousands are separated."""
    assert ("17.8", "512.0", "1,953.1") == (size(18_680_627), size(524_288), size(2_048_000_000))
    assert ("0.30", "812.5", "1,234") == (gpus(300), gpus(812_450), gpus(1_234_499))
    facts = MadeUpFacts(nodes=125, gpus=8)
    text = browser(facts).get("/").text

    assert "<dt>GPUs</dt><dd><b>1,000</b>" in text and "TiB used" in text


@pytest.mark.parametrize(("nodes", "max_bytes", "unit"), [(125, 80_000, "GPU"), (1250, 150_000, "node")])
def test_the_first_page_stays_small(nodes: int, max_bytes: int, unit: str):
    """The uncompressed HTML is below 80 kB for 1,000 GPUs, and below 150 kB for 10,000, where cells are nodes."""
    facts = MadeUpFacts(nodes=nodes, gpus=8)
    for number in range(0, nodes, 10):
        facts.silence(f"node-{number:03d}", "it cannot be reached")
    answer = browser(facts).get("/", headers={"accept-encoding": "identity"})

    assert len(answer.content) < max_bytes
    assert f"a cell is a {unit}" in answer.text
    assert (8 * nodes if unit == "GPU" else nodes) == len(cells(answer.text))


def test_a_cell_of_many_nodes_opens_to_these():
    """Where a cell is a run of nodes it leads to a map of these nodes alone, and the cells have all nodes."""
    facts = MadeUpFacts(nodes=2 * MAX_CELLS + 1, gpus=1)
    visitor = browser(facts)
    found = cells(visitor.get("/?show=promised").text)
    opened = visitor.get(html.unescape(found[0][1])).text

    assert len(found) <= MAX_CELLS + 3
    assert "a cell is a GPU" in opened and "Percent promised" in opened and 2 <= len(cells(opened)) <= 12


def test_a_viewer_of_a_namespace_learns_nothing_of_others(facts: MadeUpFacts):
    """Alerts, waiting work and sums name and count only the viewer's own workloads; the map shows only room."""
    facts.add(Workload("secret/waits", "Pod", "Pending", 9000, 9000, [], 1e6, message="secret-reason"))
    facts.add(Workload("web/waits", "Pod", "Pending", 9000, 9000, [], 1e5))
    low = Share("secret/low", 100, 100, 0, 1, 1, "secret/low", kept_percent=10.0, windows=300)
    facts.put(facts.gpus()[0].uuid, low)
    running = Workload("secret/low", "Pod", "Running", 100, 100, [], 1.0, kept_percent=10.0, windows=300)
    facts.add(running)
    everything = browser(facts).get("/").text
    text = browser(NamespacedView(facts, frozenset({"web"}))).get("/").text
    own = sum(share.tenant.startswith("web/") for gpu in facts.gpus() for share in gpu.shares)

    assert "secret/waits" in everything and "secret/low" in everything
    assert "secret" not in text and "research" not in text and "batch" not in text
    windows = sum(s.windows for gpu in facts.gpus() for s in gpu.shares if s.tenant.startswith("web/"))
    assert "web/waits" in text and f"of {windows:,} sliding windows" in text
    assert re.search(rf"<dt>Workloads</dt><dd><b>{own}</b> <span>running · <a [^>]*>1 waiting", text)
    assert cells(everything) == cells(text)


def test_a_machine_has_its_bars_on_the_first_page():
    """With 16 GPUs or fewer the page has the map and each GPU's bar."""
    text = browser(MadeUpFacts(nodes=1, gpus=8)).get("/").text

    assert 8 == len(cells(text)) == text.count('<li class="gpu ')

"""Every page in a real browser: free of faults, readable, usable by keyboard, and with the numbers of the API."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_facts import MadeUpFacts

from aliquot.status import Share
from aliquot.web.app import WebServer, everyone
from aliquot.web.feeds import Feeds

from .conftest import Visit

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser").expect
CHECKS = Path(__file__).parent / "checks.js"
Open = Callable[..., Visit]


def gpu_with_tenants(facts: MadeUpFacts):
    """A GPU that several share."""
    return next(gpu for gpu in facts.gpus() if len(gpu.shares) > 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible(visit: Open, server: WebServer, facts: MadeUpFacts, scheme: str, width: int):
    """Contrast, labels, names, headings, landmarks and width hold on every page, light and dark, wide and narrow."""
    gpu, checks = gpu_with_tenants(facts), CHECKS.read_text()
    paths = [
        "/",
        "/?show=promised",
        "/gpus",
        "/gpus?state=idle",
        f"/gpus/{gpu.uuid}",
        "/workloads",
        "/workloads/batch/wait-0",
        "/topology",
        "/pool",
    ]
    paths += ["/try", "/try?request=0.3", "/try?request=x", "/nowhere"]
    seen = visit(server.url, color_scheme=scheme)
    seen.page.set_viewport_size({"width": width, "height": 800})
    faults = {path: found for path in paths if (found := seen.go(path).evaluate(checks))}
    seen.faults = [fault for fault in seen.faults if "404" not in fault]  # /nowhere is meant to be

    assert {} == faults


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_what_is_not_known_is_accessible_too(
    visit: Open, server: WebServer, facts: MadeUpFacts, scheme: str, width: int
):
    """The same holds where a node tells nothing, and there the page says so."""
    facts.silence("node-000", "it cannot be reached")
    gpu = next(gpu for gpu in facts.gpus() if not gpu.measured and gpu.shares)
    seen = visit(server.url, color_scheme=scheme)
    seen.page.set_viewport_size({"width": width, "height": 800})
    checks = CHECKS.read_text()
    paths = ["/", "/gpus?q=node-000", f"/gpus/{gpu.uuid}", "/workloads", f"/workloads/{gpu.shares[0].tenant}"]
    faults = {path: found for path in paths if (found := seen.go(path).evaluate(checks))}

    assert {} == faults
    expect(seen.go("/gpus?q=node-000").locator(".group .note")).to_contain_text("it cannot be reached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_signing_in_is_accessible_and_ends_where_it_ends(visit: Open, facts: MadeUpFacts, scheme: str):
    """The form is usable by keyboard and readable; a wrong token is told; an open page asks again when it must."""
    access = pytest.importorskip("aliquot.web.access", reason="the parts for a cluster are not installed")
    from aliquot.kube.api import TokenRefused
    from aliquot.web.access import Sessions, SignIn

    class Asks:
        def may_list(self, token: str, what: object) -> bool:
            if token != "good":
                raise TokenRefused("the API server does not accept this token")
            return True

    sessions = Sessions()
    door = access.TokenDoor(facts, Asks(), sessions)
    with WebServer(door, signing_in=SignIn(door, sessions)) as server:
        seen = visit(server.url, color_scheme=scheme)
        seen.page.set_viewport_size({"width": 390, "height": 800})
        page = seen.go("/")
        assert [] == page.evaluate(CHECKS.read_text())
        page.get_by_label("Token").fill("bad")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("does not accept this token")
        page.get_by_label("Token").fill("good")
        page.keyboard.press("Enter")
        seen.live()
        assert [] == page.evaluate(CHECKS.read_text())
        assert "good" not in page.url and page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.goto("about:blank")
        seen.faults = [fault for fault in seen.faults if "401" not in fault]  # the answers that ask for a token


def test_numbers_are_those_of_the_api(visit: Open, server: WebServer, facts: MadeUpFacts):
    """What a row shows is what /api/v1/gpus says."""
    page = visit(server.url).go("/gpus")
    items = page.evaluate("fetch('/api/v1/gpus').then((answer) => answer.json())")["items"]
    for gpu in items:
        row = page.locator(f'li.gpu:has(a[href="/gpus/{gpu["uuid"]}"])')
        text = " ".join(row.inner_text().split())
        assert gpu["state"] in text
        assert f"{gpu['busy_milli'] / 1000:.2f} used" in text
        assert f"{gpu['memory_used_mib'] / 1024:.1f} of {gpu['memory_mib'] / 1024:.1f} GiB" in text
        assert all(share["tenant"] in text for share in gpu["shares"])


def test_news_arrive(visit: Open, server: WebServer, facts: MadeUpFacts):
    """A tenant that comes is on the page, without a reload and without losing the focus."""
    seen = visit(server.url)
    page = seen.go("/gpus")
    seen.live()
    page.evaluate("window.notReloaded = true")
    link = page.locator("li.gpu a").first
    link.focus()
    gpu = facts.gpus()[0]
    facts.put(gpu.uuid, Share("new/tenant", 100, 1000, 50, 100, 50))
    expect(page.locator("li.gpu").first).to_contain_text("new/tenant", timeout=30_000)

    assert page.evaluate("window.notReloaded")
    assert link.evaluate("(el) => el === document.activeElement")


@pytest.mark.parametrize("late", ["htmx", "hx-sse", "aliquot"])
def test_a_page_gets_live_however_its_files_arrive(visit: Open, server: WebServer, late: str):
    """Whichever script is the last to come, the page connects and says so."""
    seen = visit(server.url)
    seen.page.route(re.compile(rf"/{late}(\.min)?\.js"), lambda route: (time.sleep(0.4), route.continue_()))
    seen.go("/")
    seen.live()


def test_a_server_that_is_full_is_told(visit: Open, facts: MadeUpFacts, monkeypatch: pytest.MonkeyPatch):
    """Where no more live pages can be served the page is shown all the same and says that it is not live."""
    monkeypatch.setattr("aliquot.web.app.Feeds", lambda: Feeds(max_streams=0))
    with WebServer(everyone(facts)) as server:
        seen = visit(server.url)
        page = seen.go("/gpus")
        expect(page.locator("#live-state")).to_have_text("not live", timeout=10_000)
        expect(page.locator("li.gpu")).to_have_count(32)
        seen.faults = [fault for fault in seen.faults if "503" not in fault]
        page.goto("about:blank")


def test_a_lost_server_is_told_and_found_again(visit: Open, facts: MadeUpFacts):
    """When the server goes away the page says so; when it is back the page is live again."""
    first = WebServer(everyone(facts))
    seen = visit(first.url)
    page = seen.go("/")
    seen.live()
    first.close()
    expect(page.locator("#live-state")).to_contain_text("lost", timeout=10_000)
    with WebServer(everyone(facts), port=first.port):
        expect(page.locator("#live-state")).to_have_text("live", timeout=20_000)
    seen.faults = [fault for fault in seen.faults if "ERR_" not in fault and "Failed to fetch" not in fault]


def test_searching_needs_no_reload(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Typing narrows the list, keeps the focus where it is, and the address can be shared and gone back from."""
    tenant = gpu_with_tenants(facts).shares[0].tenant
    page = visit(server.url).go("/gpus")
    page.evaluate("window.notReloaded = true")
    page.get_by_label("Find").type(tenant, delay=5)
    expect(page.locator("li.gpu")).to_have_count(1)

    assert page.evaluate("window.notReloaded && document.activeElement.name") == "q"
    assert re.search(r"\?q=[^&]+$", page.url)
    page.go_back()
    expect(page.locator("li.gpu")).to_have_count(32)


def test_a_filtered_page_is_live_too(visit: Open, server: WebServer, facts: MadeUpFacts):
    """After a filter the live feed is that of the filtered page."""
    seen = visit(server.url)
    page = seen.go("/gpus")
    seen.live()
    page.get_by_label("State").select_option("idle")
    expect(page.locator("li.gpu")).to_have_count(sum(gpu.state == "idle" for gpu in facts.gpus()))
    idle = next(gpu for gpu in facts.gpus() if gpu.state == "idle")
    facts.put(idle.uuid, Share("new/tenant", 100, 1000, 50, 100, 50))

    expect(page.locator(f'a[href="/gpus/{idle.uuid}"]')).to_have_count(0, timeout=5000)


def test_everything_is_reached_by_keyboard(visit: Open, server: WebServer):
    """Tab goes through the page in reading order with a visible focus; Enter opens a GPU."""
    page = visit(server.url).go("/gpus")
    order = []
    for _ in range(16):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate(
                "(() => { const el = document.activeElement; const style = getComputedStyle(el);"
                "return [el.textContent.trim().slice(0, 20) || el.name, style.outlineStyle !== 'none',"
                "[...document.querySelectorAll('*')].indexOf(el)]; })()"
            )
        )
    places = [place for _, _, place in order]

    assert "Skip to content" == order[0][0]
    assert all(visible for _, visible, _ in order)
    assert sorted(places) == places and len(set(places)) == len(places)
    page.locator("li.gpu a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/gpus/**")


def test_pages_are_read_without_javascript(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Without scripts the lists, the filters, a GPU's hour and What if still work."""
    gpu = gpu_with_tenants(facts)
    page = visit(server.url, java_script_enabled=False).go("/gpus")
    page.get_by_label("Find").fill(gpu.uuid)
    page.get_by_role("button", name="Show").click()
    expect(page.locator("li.gpu")).to_have_count(1)
    page.locator("li.gpu a").first.click()
    page.get_by_text("As a table").click()
    expect(page.get_by_role("cell", name="Wait for a grant, median (ms)")).to_have_count(len(gpu.shares))
    page.goto(server.url + "try")
    page.get_by_label("GPUs").fill("0.3")
    page.get_by_role("button", name="Try").first.click()
    expect(page.locator("#trial")).to_contain_text("It fits")


def test_the_hour_is_drawn_and_told(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Every quantity of a GPU has a chart with its tenants, and the table under it has the same means."""
    gpu = gpu_with_tenants(facts)
    page = visit(server.url).go(f"/gpus/{gpu.uuid}")
    expect(page.locator("figure canvas")).to_have_count(5)
    assert gpu.shares[0].tenant in page.locator("figure .u-legend").first.inner_text()
    page.get_by_text("As a table").click()
    history = page.evaluate(f"fetch('/api/v1/gpus/{gpu.uuid}/history').then((answer) => answer.json())")
    usage = history["series"][0]["usage_milli"]
    row = page.locator("table.plain tbody tr").first.inner_text().split()

    assert f"{sum(usage) / len(usage) / 1000:.2f}" == row[-2]


def test_a_table_that_was_opened_stays_open(visit: Open, server: WebServer, facts: MadeUpFacts):
    """News that changes a table does not fold it away from its reader."""
    seen = visit(server.url)
    page = seen.go(f"/gpus/{gpu_with_tenants(facts).uuid}")
    seen.live()
    page.get_by_text("As a table").click()
    before = page.locator("table.plain").inner_text()
    facts.pass_time(60)

    expect(page.locator("table.plain")).not_to_have_text(before, use_inner_text=True)
    expect(page.locator("details.hour")).to_have_attribute("open", "")


ROWS = """(levels) => {
  const canvas = document.querySelector("figure canvas"), over = document.querySelector("figure .u-over");
  const box = canvas.getBoundingClientRect(), plot = over.getBoundingClientRect(), by = canvas.width / box.width;
  const [left, width] = [Math.round((plot.left - box.left) * by), Math.round(plot.width * by)];
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const drawn = (x, y) => pixels[(y * canvas.width + x) * 4 + 3] > 100;
  const inked = (y) => [...Array(width).keys()].filter((x) => drawn(left + x, y)).length / width;
  const row = (level) => Math.round((plot.top - box.top + plot.height * (1 - level)) * by);
  return levels.map((level) => Math.max(...[-1, 0, 1].map((dy) => inked(row(level) + dy))));
}"""
"""How much of the first chart's width is drawn on at each of some heights."""


def test_charts_show_what_was_promised(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Request and limit are lines in the chart of usage; its legend has the table's order and each line's dashes."""
    idle = next(gpu for gpu in facts.gpus() if not gpu.shares)
    facts.put(idle.uuid, Share("lab/b/c", 330, 770, 200, 2048, 1024))
    facts.pass_time()
    facts.put(idle.uuid, Share("lab/a/c", 110, 530, 100, 3072, 1024))
    facts.pass_time(points=3)
    page = visit(server.url).go(f"/gpus/{idle.uuid}")
    legend = page.locator("figure").first.locator(".u-legend .u-series")
    expect(legend).to_have_count(3)
    named = [text.partition(",")[0].split()[-1] for text in legend.all_inner_texts()[1:]]
    samples = legend.locator(".u-marker").evaluate_all("(all) => all.slice(-2).map((one) => one.style.backgroundImage)")
    levels = [0.33, 0.77, 0.11, 0.53, 0.45, 0.65]
    drawn = dict(zip(levels, page.evaluate(ROWS, levels), strict=True))

    assert [row.split()[0] for row in page.locator("#tenants tbody th").all_inner_texts()] == named
    assert "request 0.33, limit 0.77" in legend.nth(1).inner_text()
    assert "transparent" not in samples[0] and "transparent 8px" in samples[1]
    assert {0.33, 0.11} == {level for level, part in drawn.items() if part > 0.9}
    assert {0.77, 0.53} == {level for level, part in drawn.items() if 0.3 < part <= 0.9}


@pytest.mark.real_time
def test_a_thousand_gpus_load_at_once(visit: Open):
    """With 1,000 GPUs the first page comes with all its files under 150 kB, and is there within 300 ms."""
    facts = MadeUpFacts(nodes=125, gpus=8)
    with WebServer(everyone(facts)) as server:
        seen = visit(server.url)
        took_ms = []
        for _ in range(5):
            page = seen.go("/")
            timing = "JSON.parse(JSON.stringify(performance.getEntriesByType('navigation')[0]))"
            took_ms.append(page.evaluate(timing)["responseEnd"])
        entries = "[...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]"
        size = page.evaluate(
            f"{entries}.filter((e) => !e.name.includes('/live')).reduce((sum, e) => sum + e.encodedBodySize, 0)"
        )
        elements = page.evaluate("document.querySelectorAll('*').length")
        page.goto("about:blank")

    assert size < 150_000
    assert elements < 3000
    assert min(took_ms) < 300

"""The first page and old facts in a real browser: banner and dimming, copied commands, a telephone's screen."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_facts import MadeUpFacts

from aliquot.driver.emulation import parse_spec, profile_topology
from aliquot.status import Workload
from aliquot.web.app import WebServer, everyone

from .conftest import Visit

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser").expect
CHECKS = Path(__file__).parent / "checks.js"
Open = Callable[..., Visit]
DIMMED = "(el) => Number(getComputedStyle(el).opacity) < 1"
PHONE = {"width": 390, "height": 844}


def away(seen: Visit) -> None:
    """Forget the faults that a server which is gone makes in the console."""
    seen.faults = [fault for fault in seen.faults if "ERR_" not in fault and "Failed to fetch" not in fault]


@pytest.mark.parametrize("path", ["/", "/workloads"])
def test_a_stopped_engine_is_seen_and_its_return_too(visit: Open, facts: MadeUpFacts, path: str):
    """When the server goes away the page says since when there is no news and dims; when it is back both end."""
    first = WebServer(everyone(facts))
    seen = visit(first.url)
    page = seen.go(path)
    seen.live()
    values = page.locator("#blocks > :not(#news)").last
    assert not values.evaluate(DIMMED)
    first.close()
    expect(page.locator("#lost")).to_contain_text("No news since", timeout=20_000)
    assert values.evaluate(DIMMED)
    with WebServer(everyone(facts), port=first.port):
        expect(page.locator("#lost")).to_be_hidden(timeout=30_000)
        assert not values.evaluate(DIMMED)
        page.goto("about:blank")
    away(seen)


def test_facts_that_are_old_are_dimmed_by_the_server(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Where the server answers but its facts are old, an open page gets the banner and dims until they are new."""
    seen = visit(server.url)
    page = seen.go("/")
    seen.live()
    facts.hold(time.time() - 60)
    expect(page.locator("#news.banner")).to_contain_text("No news since", timeout=20_000)
    assert page.locator("#summary").evaluate(DIMMED)
    facts.hold(None)
    expect(page.locator("#news.banner")).to_have_count(0, timeout=20_000)
    assert not page.locator("#summary").evaluate(DIMMED)


def test_old_facts_are_dimmed_without_scripts_too(visit: Open, server: WebServer, facts: MadeUpFacts):
    """A browser without scripts shows the banner, the dimming and the time of the facts."""
    facts.hold(time.time() - 60)
    page = visit(server.url, java_script_enabled=False).go("/")

    expect(page.locator("#news.banner")).to_contain_text("No news since")
    assert page.locator("#summary").evaluate(DIMMED)
    assert "as of" in page.locator(".where").inner_text()


def test_a_silent_connection_is_a_lost_one(visit: Open, server: WebServer):
    """A page that hears nothing for 40 s says so, though its connection is open."""
    seen = visit(server.url)
    seen.page.clock.install()
    page = seen.go("/")
    seen.live()
    page.route("**/live/**", lambda route: None)
    page.clock.fast_forward(60_000)

    expect(page.locator("body.stale")).to_have_count(1, timeout=10_000)
    page.unroute_all(behavior="ignoreErrors")
    away(seen)


def test_one_silent_node_is_dimmed_alone(visit: Open, server: WebServer, facts: MadeUpFacts):
    """The cells of a node that does not answer are dimmed, those of the others are not."""
    facts.silence("node-000", "away", time.time() - 60)
    page = visit(server.url).go("/")

    assert [True, False] == [page.locator(".heat li > span").nth(n).evaluate(DIMMED) for n in (0, 1)]
    expect(page.locator(".alerts")).to_contain_text("node-000 no news since")


def test_a_command_is_copied(visit: Open, server: WebServer, facts: MadeUpFacts):
    """The button beside a command puts exactly that command on the clipboard."""
    facts.add(Workload("lab/it's", "Pod", "Pending", 8000, 8000, [], 1e6))
    seen = visit(server.url)
    seen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = seen.go("/")
    row = page.locator(".waits li").first
    row.get_by_role("button").click()
    expect(row.get_by_role("button")).to_have_text("Copied")

    assert """aliquot explain 'lab/it'"'"'s'""" == page.evaluate("navigator.clipboard.readText()")


def test_without_scripts_the_map_is_complete(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Without scripts the quantity is chosen by a link, a cell opens its GPU and a node its list."""
    page = visit(server.url, java_script_enabled=False).go("/")
    assert 0 == page.locator("button.copy:visible").count()
    page.get_by_role("link", name="promised", exact=True).click()
    expect(page.locator("#map-title")).to_contain_text("Percent promised")
    page.get_by_role("link", name="node-002").click()
    expect(page.locator("li.gpu")).to_have_count(8)
    page.go_back()
    page.locator(".heat span a").nth(3).click()
    expect(page.locator("h1")).to_have_text("GPU 3 of node-000")


SIDEWAYS = """[...document.querySelectorAll(".scroll")]
    .filter((one) => !one.closest("details:not([open])"))
    .every((one) => one.scrollWidth <= one.clientWidth)"""
"""Whether no part of the page is wider than the place that shows it."""


def bottom(page, selector: str) -> float:
    """Where the first of these ends, in pixels from the top of the screen as it was opened."""
    box = page.locator(selector).first.bounding_box()
    return box["y"] + box["height"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_telephone_shows_the_root_and_a_gpu_at_once(visit: Open, scheme: str):
    """A telephone shows the root and a GPU of Topology without scrolling, and a GPU of the list and the overview."""
    facts = MadeUpFacts(nodes=1, gpus=8, links=profile_topology(*parse_spec("v100x8")))
    with WebServer(everyone(facts)) as server:
        seen = visit(server.url, color_scheme=scheme)
        seen.page.set_viewport_size(PHONE)
        page = seen.go("/topology")
        assert bottom(page, ".branches b") < bottom(page, ".branches a") < 844
        assert 8 == page.locator(".branches a").count()
        assert [] == page.evaluate(CHECKS.read_text())
        assert page.evaluate(SIDEWAYS)
        assert bottom(seen.go("/gpus"), "li.gpu") < 844
        assert bottom(seen.go("/"), ".heat span a") < 844
        page.goto("about:blank")


def test_debt_and_quota_are_folded_away(visit: Open, server: WebServer, facts: MadeUpFacts):
    """A GPU's page opens with use, memory and waits; the charts of turns are drawn when they are opened."""
    gpu = next(gpu for gpu in facts.gpus() if len(gpu.shares) > 1)
    page = visit(server.url).go(f"/gpus/{gpu.uuid}")
    expect(page.locator("figure:visible")).to_have_count(3)
    page.locator("details.folded summary").click()
    expect(page.locator("figure:visible canvas")).to_have_count(5)

    assert page.locator("details.folded canvas").first.evaluate("(el) => el.getBoundingClientRect().width") > 200

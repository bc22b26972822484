"""The pages of the past in a real browser: live, by keyboard, without JavaScript, and readable for all."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_facts import MadeUpFacts

from aliquot.status.history import RANGES
from aliquot.web.app import WebServer

from .conftest import Visit

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser").expect
CHECKS = Path(__file__).parent / "checks.js"
Open = Callable[..., Visit]


@pytest.fixture
def facts() -> MadeUpFacts:
    """Two nodes with four GPUs each, and half an hour of them."""
    made_up = MadeUpFacts(nodes=2, gpus=4)
    made_up.remember(minutes=30)
    return made_up


def shared(facts: MadeUpFacts):
    """A GPU with several tenants."""
    return max(facts.gpus(), key=lambda gpu: len(gpu.shares))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_past_is_accessible(visit: Open, server: WebServer, facts: MadeUpFacts, scheme: str, width: int):
    """Contrast, labels, names, headings, landmarks and width hold on the pages of the past, empty ones too."""
    gpu = shared(facts)
    paths = [f"/timeline?gpu={gpu.uuid}&range={word}" for word in ("1m", *RANGES)]
    paths += ["/timeline", f"/timeline?tenant={gpu.shares[0].tenant}", "/hours", "/hours?by=namespace,controller,model"]
    seen = visit(server.url, color_scheme=scheme)
    seen.page.set_viewport_size({"width": width, "height": 800})
    checks = CHECKS.read_text()
    faults = {path: found for path in paths if (found := seen.go(path).evaluate(checks))}

    assert {} == faults


def test_the_past_is_used_by_keyboard(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Ranges, columns to sort by and the GPU are reached with Tab and chosen with Enter, and the focus is seen."""
    seen = visit(server.url)
    page = seen.go("/hours?range=24h")
    _tab_to(page, "Idle")
    page.keyboard.press("Enter")
    page.wait_for_url("**sort=idle**")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Idle")
    _tab_to(page, "1 hour")
    page.keyboard.press("Enter")
    page.wait_for_url("**range=1h**")
    assert "sort=idle" in page.url

    page = seen.go("/timeline")
    _tab_to(page, "15 minutes")
    assert "none" != page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Enter")
    page.wait_for_url("**range=15m**")
    expect(page.locator("nav.choices [aria-current]")).to_have_text("15 minutes")


def _tab_to(page, text: str) -> None:
    """Press Tab until the focus is on the link with that text."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"{text} is not reached by Tab")


def test_the_past_needs_no_javascript(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Without JavaScript charts, numbers, links and the choice of a GPU work."""
    gpu = shared(facts)
    seen = visit(server.url, java_script_enabled=False)
    page = seen.go("/timeline")
    page.select_option("select[name=gpu]", gpu.uuid)
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(f"**gpu={gpu.uuid}**")
    expect(page.locator("svg.chart path").first).to_be_attached()
    expect(page.locator("tbody tr")).to_have_count(len(gpu.shares))
    page.get_by_role("link", name="1 minute", exact=True).click()
    page.wait_for_url("**range=1m**")
    expect(page.locator("svg.chart path")).to_have_count(len(gpu.shares))
    page = seen.go("/hours?range=24h")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    assert "gpu-hours.csv" == download.value.suggested_filename


def test_the_past_is_live(visit: Open, server: WebServer, facts: MadeUpFacts):
    """With JavaScript the turns of the last minute move on by themselves, and the axis with them."""
    seen = visit(server.url)
    page = seen.go(f"/timeline?gpu={shared(facts).uuid}&range=1m")
    seen.live()
    before = page.locator(".axis").inner_text()

    expect(page.locator(".axis")).not_to_have_text(before, timeout=15_000)


def test_the_drawing_has_the_height_of_the_numbers(visit: Open, server: WebServer, facts: MadeUpFacts):
    """Of each tenant the area in the chart is what it used, as the API says."""
    gpu = shared(facts)
    page = visit(server.url).go(f"/timeline?gpu={gpu.uuid}&range=15m")
    lanes = page.evaluate(f"fetch('/api/v1/gpus/{gpu.uuid}/timeline?range=15m').then((answer) => answer.json())")[
        "lanes"
    ]
    order = [share.tenant for share in gpu.shares]
    last = [next(lane for lane in lanes if lane["tenant"] == tenant)["used"][-2] for tenant in order]
    heights = page.evaluate(
        """() => [...document.querySelector('svg.chart').querySelectorAll('path')].map((path) => {
          const at = (y) => path.isPointInFill(new DOMPoint(1000 * 13.5 / 15, y));
          let height = 0;
          for (let y = 0.5; y < 1000; y++) height += at(y) ? 1 : 0;
          return height / 1000;
        })"""
    )

    assert last == pytest.approx(heights, abs=0.003)

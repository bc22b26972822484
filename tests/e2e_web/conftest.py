"""A real Chromium in front of the dashboard.

Playwright is driven by fixtures of this folder and not by those of its pytest plugin: the plugin's live as long as the
session, and while they do no other test of the same process may run an event loop of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_up_facts import MadeUpFacts

from aliquot.web.app import WebServer, everyone

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOOL = Path(__file__).resolve().parents[2] / "tools" / "chromium.py"


class Visit:
    """One page in a browser context of its own, with everything that went wrong in it."""

    def __init__(self, browser: Browser, base: str, **context: object) -> None:
        self.base = base.rstrip("/")
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **context)  # type: ignore[arg-type]
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.foreign: list[str] = []
        self.bytes = 0
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda asked: asked.url.startswith(base) or self.foreign.append(asked.url))

    def go(self, path: str) -> Page:
        """Open a path and wait until its files are there."""
        self.page.goto(self.base + path, wait_until="load")
        return self.page

    def live(self) -> None:
        """Wait until the page says that it is live."""
        from playwright.sync_api import expect

        expect(self.page.locator("#live-state")).to_have_text("live", timeout=10_000)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetches a browser before the first test, where no time limit of a test counts."""
    if not session.config.option.collectonly and any(
        "visit" in getattr(item, "fixturenames", ()) for item in session.items
    ):
        subprocess.run([sys.executable, TOOL], capture_output=True)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """The browser; without one every test here is skipped and says so."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no test in a browser")
    found = subprocess.run([sys.executable, TOOL, "--no-fetch"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"no test in a browser: {found.stderr.strip()}")
    where = json.loads(found.stdout)
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=where["executable"], args=["--no-sandbox"], env=os.environ | where["env"]
        )
        yield browser
        browser.close()


@pytest.fixture
def facts() -> MadeUpFacts:
    """A small made-up cluster with some history."""
    made_up = MadeUpFacts(nodes=4, gpus=8)
    made_up.pass_time(points=12)
    return made_up


@pytest.fixture
def server(facts: MadeUpFacts) -> Iterator[WebServer]:
    """The dashboard of that cluster, on a real socket."""
    with WebServer(everyone(facts)) as serving:
        yield serving


@pytest.fixture
def visit(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Visit]]:
    """Opens visits; afterwards each must have been free of faults and foreign requests."""
    if "server" in request.fixturenames:
        request.getfixturevalue("server")  # so that it is closed after the pages that look at it
    visits: list[Visit] = []

    def opened(base: str, **context: object) -> Visit:
        visits.append(Visit(chromium, base, **context))
        return visits[-1]

    yield opened
    for each in visits:
        each.context.close()
    assert [] == [fault for each in visits for fault in each.faults]
    assert [] == [url for each in visits for url in each.foreign]

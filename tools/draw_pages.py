#!/usr/bin/env python3
"""The dashboard's pages of a made-up cluster, for its documentation: `python tools/draw_pages.py`.

A browser opens each page, wide or as on a telephone, and then one page on which all of these pictures are. Writes
docs/figures/dashboard-pages-light.png and -dark.png.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aliquot.web.access import TokenDoor
from aliquot.web.serve import WebServer
from aliquot.web.sessions import Sessions
from aliquot.web.signin import SignIn
from aliquot.web.testing import MadeUpFacts

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT: Final = Path(__file__).resolve().parents[1]
FIGURES: Final = ROOT / "docs" / "figures"
WIDE: Final = ("/", "/gpus/{gpu}", "/workloads", "/pool", "/try?request=0.3", "/?group=model&sort=free")
NARROW: Final = ("/", "/gpus/{gpu}", "/workloads", "/workloads/{tenant}", "/signin", "/try?request=0.3")
GROUND: Final = {"light": "#c9cbc6", "dark": "#3a403c"}


class Everybody:
    """Every token may list everything."""

    def may_list(self, token: str, what: object) -> bool:
        """As the API server says it."""
        return True


def picture(browser: Browser, base: str, path: str, scheme: Any, size: tuple[int, int]) -> str:
    """A page as the content of an image's address."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    if path != "/signin":
        page.goto(f"{base}signin")
        page.get_by_label("Token").fill("any")
        page.get_by_role("button").first.click()
    page.goto(base.rstrip("/") + path)
    if path != "/signin":
        page.locator("#live-state", has_text="live").wait_for()
    if path.startswith("/gpus/"):
        page.locator("#charts canvas").first.wait_for()
    shot = base64.b64encode(page.screenshot()).decode()
    context.close()
    return f"data:image/png;base64,{shot}"


def draw(browser: Browser, base: str, scheme: str, names: dict[str, str]) -> None:
    """All pages in one picture."""
    wide = [picture(browser, base, path.format(**names), scheme, (1280, 800)) for path in WIDE]
    narrow = [picture(browser, base, path.format(**names), scheme, (390, 844)) for path in NARROW]
    rows = [f'<img width="560" src="{each}">' for each in wide] + [f'<img width="180" src="{each}">' for each in narrow]
    page = browser.new_page(viewport={"width": 1150, "height": 600}, device_scale_factor=1)
    style = "margin:0;padding:10px;display:flex;flex-wrap:wrap;gap:10px;align-items:start;box-sizing:border-box"
    page.set_content(f'<body style="{style};background:{GROUND[scheme]}">{"".join(rows)}</body>')
    page.screenshot(path=FIGURES / f"dashboard-pages-{scheme}.png", full_page=True)
    page.close()


def main() -> None:
    """Draw both."""
    from playwright.sync_api import sync_playwright

    found = subprocess.run([sys.executable, ROOT / "tools" / "chromium.py"], capture_output=True, text=True, check=True)
    where = json.loads(found.stdout)
    facts = MadeUpFacts(nodes=4, gpus=4)
    facts.pass_time(points=720)
    facts.silence("node-001", "it cannot be reached (connection refused)")
    gpu = next(gpu for gpu in facts.gpus() if gpu.measured and len(gpu.shares) == 3)
    names = {"gpu": gpu.uuid, "tenant": gpu.shares[0].tenant}
    sessions = Sessions()
    door = TokenDoor(facts, Everybody(), sessions)
    with WebServer(door, signing_in=SignIn(door, sessions)) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=where["executable"], args=["--no-sandbox"], env=os.environ | where["env"]
        )
        for scheme in GROUND:
            draw(browser, server.url, scheme, names)
        browser.close()
    door.close()


if __name__ == "__main__":
    main()

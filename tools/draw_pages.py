#!/usr/bin/env python3
"""Pictures of every page of the dashboard: `tools/draw_pages.py FOLDER`; without a folder those of the documentation.

A browser opens the pages of made-up clusters: of 8 GPUs and of 1,000, empty, with facts that are old and with a server
that is gone; at 1440x900 and 390x844, light and dark, and a part of them in grey and for three kinds of colour
blindness, which the browser simulates. `--only TEXT` draws the pictures whose name contains it. Without a folder it
writes docs/figures/dashboard-*.png.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aliquot.driver.emulation import parse_spec, profile_topology
from aliquot.status.sensors import Sensors
from aliquot.status.workloads import Workload
from aliquot.web.app import WebServer, everyone

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from made_up_facts import MadeUpFacts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT: Final = Path(__file__).resolve().parents[1]
FIGURES: Final = ROOT / "docs" / "figures"
SIZES: Final = {"wide": (1440, 900), "narrow": (390, 844)}
SCHEMES: Final[tuple[Any, ...]] = ("light", "dark")
VISIONS: Final = ("achromatopsia", "protanopia", "deuteranopia", "tritanopia")
GROUND: Final = {"light": "#c9cbc6", "dark": "#3a403c"}
WIDE: Final = ("overview", "gpus", "gpu", "workloads")
NARROW: Final = ("overview", "gpus", "gpu", "topology", "workload", "try")


@dataclass
class Scene:
    """A made-up cluster behind a server, and its pages by name."""

    name: str
    facts: MadeUpFacts
    server: WebServer
    paths: dict[str, str]

    @staticmethod
    def of(name: str, nodes: int, gpus: int) -> Scene:
        """A cluster with an hour of history, of which one node does not answer where there are several."""
        links = profile_topology(*parse_spec("v100x8")) if gpus == 8 else None
        facts = MadeUpFacts(nodes=nodes, gpus=gpus, title=name, links=links)
        facts.remember(minutes=90 if nodes < 10 else 6)
        facts.pass_time(points=720 if nodes < 10 else 12)
        for gpu in facts.gpus():
            facts.sense(gpu.uuid, Sensors(61, 212.4, 300.0, 1530, 877))
        for number, (waits, milli) in enumerate((("llm-pretrain", 8000), ("eval-sweep", 6000), ("notebook", 5500))):
            waited_s = 9000.0 - 1800 * number
            facts.add(Workload(f"research/{waits}", "SharePod", "Pending", milli, milli, [], waited_s))
        if nodes > 1:
            facts.silence("node-001", "it cannot be reached (connection refused)", time.time() - 95)
            facts.fail(facts.gpus()[-1].uuid)
        return Scene(name, facts, WebServer(everyone(facts)), dict(_paths(facts)))


def _paths(facts: MadeUpFacts) -> Iterator[tuple[str, str]]:
    yield from {
        "overview": "/", "promised": "/?show=promised", "gpus": "/gpus", "workloads": "/workloads",
        "topology": "/topology", "timeline": "/timeline", "turns": "/timeline?range=1m", "hours": "/hours",
        "pool": "/pool", "try": "/try?request=0.3", "refused": "/try?request=0.3&limit=0.2", "nowhere": "/nowhere",
    }.items()  # fmt: skip
    shared = [gpu for gpu in facts.gpus() if gpu.measured and len(gpu.shares) >= 3]
    if shared:
        yield "gpu", f"/gpus/{shared[0].uuid}"
        yield "workload", f"/workloads/{shared[0].shares[0].tenant}"
        yield "tenant", f"/timeline?tenant={shared[0].shares[0].tenant}"
    waiting = [workload for workload in facts.workloads() if workload.phase == "Pending"]
    if waiting:
        yield "waiting", f"/workloads/{waiting[0].name}"


def context_of(browser: Browser, scheme: Any, size: tuple[int, int]) -> BrowserContext:
    """A browser window."""
    return browser.new_context(color_scheme=scheme, viewport={"width": size[0], "height": size[1]})


@contextmanager
def opened(context: BrowserContext, scene: Scene, name: str) -> Iterator[Page]:
    """A page that has come to rest."""
    page = context.new_page()
    page.goto(scene.server.url.rstrip("/") + scene.paths[name])
    if name != "nowhere":
        page.locator("#live-state", has_text="live").wait_for()
    if name == "gpu":
        page.locator("#charts canvas").first.wait_for()
    yield page
    page.close()


def shot(context: BrowserContext, scene: Scene, name: str, file: Path) -> None:
    """A picture of a page."""
    with opened(context, scene, name) as page:
        page.screenshot(path=file)


def draw_all(browser: Browser, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Every scene, page, size and scheme; the large and the small scene's main pages in each vision too."""
    folder.mkdir(parents=True, exist_ok=True)
    for scene in (Scene.of("8", 1, 8), Scene.of("1000", 125, 8), Scene.of("empty", 0, 0)):
        for scheme in SCHEMES:
            for size_name, size in SIZES.items():
                context = context_of(browser, scheme, size)
                for name in scene.paths:
                    if wanted(picture := f"{scene.name}-{name}-{size_name}-{scheme}"):
                        shot(context, scene, name, folder / f"{picture}.png")
                context.close()
        _draw_visions(browser, scene, folder, wanted)
        _draw_stopped(browser, scene, folder, wanted)
        scene.server.close()


def _draw_visions(browser: Browser, scene: Scene, folder: Path, wanted: Callable[[str], bool]) -> None:
    for scheme in SCHEMES:
        context = context_of(browser, scheme, SIZES["wide"])
        for name in ("overview", "gpu") if "gpu" in scene.paths else ():
            for vision in VISIONS:
                if wanted(picture := f"{scene.name}-{name}-{vision}-{scheme}"):
                    with opened(context, scene, name) as page:
                        context.new_cdp_session(page).send("Emulation.setEmulatedVisionDeficiency", {"type": vision})
                        page.screenshot(path=folder / f"{picture}.png")
        context.close()


def _draw_stopped(browser: Browser, scene: Scene, folder: Path, wanted: Callable[[str], bool]) -> None:
    """The same pages with facts that are a minute old, and after the server has ended."""
    for size_name, size in SIZES.items():
        context = context_of(browser, "light", size)
        scene.facts.hold(time.time() - 60)
        if wanted(picture := f"{scene.name}-old-{size_name}"):
            shot(context, scene, "overview", folder / f"{picture}.png")
        scene.facts.hold(None)
        if wanted(picture := f"{scene.name}-stopped-{size_name}"):
            with opened(context, scene, "overview") as page:
                scene.server.close()
                page.locator("#lost").wait_for()
                page.screenshot(path=folder / f"{picture}.png")
            scene.server = WebServer(everyone(scene.facts))
        context.close()


def draw_figures(browser: Browser) -> None:
    """The pictures of the documentation."""
    small, large = Scene.of("gpu-box", 1, 8), Scene.of("cluster", 20, 8)
    single = (("overview", small, "dashboard-machine", "light"), ("overview", large, "dashboard-overview", "light"),
              ("gpu", small, "dashboard-gpu", "dark"), ("topology", small, "dashboard-topology", "light"))  # fmt: skip
    for name, scene, file, scheme in single:
        context = context_of(browser, scheme, SIZES["wide"])
        shot(context, scene, name, FIGURES / f"{file}.png")
        context.close()
    for scheme in SCHEMES:
        _draw_together(browser, large, scheme)
    for scene in (small, large):
        scene.server.close()


def _draw_together(browser: Browser, scene: Scene, scheme: str) -> None:
    shots = {}
    for size_name, names in (("wide", WIDE), ("narrow", NARROW)):
        context = context_of(browser, scheme, SIZES[size_name])
        for name in names:
            with opened(context, scene, name) as page:
                shots[size_name, name] = base64.b64encode(page.screenshot()).decode()
        context.close()
    widths = {"wide": 560, "narrow": 180}
    rows = [f'<img width="{widths[size]}" src="data:image/png;base64,{data}">' for (size, _), data in shots.items()]
    sheet = browser.new_page(viewport={"width": 1150, "height": 600}, device_scale_factor=1)
    style = "margin:0;padding:10px;display:flex;flex-wrap:wrap;gap:10px;align-items:start;box-sizing:border-box"
    sheet.set_content(f'<body style="{style};background:{GROUND[scheme]}">{"".join(rows)}</body>')
    sheet.screenshot(path=FIGURES / f"dashboard-pages-{scheme}.png", full_page=True)
    sheet.close()


def main() -> None:
    """Draw all pages into a folder, or the documentation's pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    found = subprocess.run([sys.executable, ROOT / "tools" / "chromium.py"], capture_output=True, text=True, check=True)
    where = json.loads(found.stdout)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=where["executable"], args=["--no-sandbox"], env=os.environ | where["env"]
        )
        if given.folder is None:
            draw_figures(browser)
        else:
            draw_all(browser, given.folder, lambda picture: given.only in picture)
        browser.close()


if __name__ == "__main__":
    main()

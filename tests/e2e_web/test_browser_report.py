"""The simulator's report in a real browser, from a file and without a network: as summary.json says, and readable."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aliquot_lab.sim import parallel, runs, study
from aliquot_lab.sim.report.page import COLUMNS, page

from .conftest import Visit

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser")
Open = Callable[..., Visit]
TABLE = 'section:has(h2:text-is("The policies side by side"))'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two policies with two seeds, whose jobs have users."""
    out = tmp_path_factory.mktemp("study")
    trace = out / "jobs.csv"
    rows = [
        f"job-{number},{number * 20},{60 + number},{number % 3 / 2 + 0.5},user-of-team-{number % 4}"
        for number in range(120)
    ]
    trace.write_text("\n".join(("name,arrival_s,duration_s,gpu,user", *rows, "")))
    todo = runs.tasks(runs.Scenario("v100x4*2", str(trace)), ("bestfit", "aliquot"), (1, 2))
    done = parallel.run_all(runs.run, todo, workers=1)
    study.write_study(out, study.Study.of(todo, done), page)
    return out


def cells_of(facts: dict[str, Any]) -> list[list[str]]:
    """What the table of the policies has to say."""
    rows = facts["policies"]
    shown = [(name, tell) for name, _, tell in COLUMNS if any(row["mean"].get(name) for row in rows)]
    return [
        [row["policy"], *(f"{tell(row['mean'][name])} ±{tell(row['sd'][name])}" for name, tell in shown)]
        for row in rows
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_says_in_a_browser_what_the_summary_says(visit: Open, folder: Path, scheme: str):
    """Every figure of the table is the one of summary.json; nothing is asked of a network, and nothing goes wrong."""
    seen = visit(folder.as_uri(), color_scheme=scheme, offline=True)
    page = seen.go("/report.html")
    rows = page.locator(f"{TABLE} tbody tr")
    told = [[" ".join(cell.split()) for cell in row.locator("th, td").all_inner_texts()] for row in rows.all()]

    assert cells_of(json.loads((folder / "summary.json").read_text())) == told
    assert page.locator("svg").count() >= 4


@pytest.mark.parametrize(("media", "width"), [("screen", 1280), ("screen", 390), ("print", 794)])
def test_the_report_fits_a_screen_a_phone_and_a_sheet(visit: Open, folder: Path, media: str, width: int):
    """At 1280 px, on a phone of 390 px and on paper nothing sticks out at the side."""
    page = visit(folder.as_uri(), offline=True).go("/report.html")
    page.emulate_media(media=media)
    page.set_viewport_size({"width": width, "height": 1000})

    assert [] == page.evaluate(
        """() => [...document.querySelectorAll("section, header, svg, table")]
            .filter((part) => !part.closest(".wide") && part.getBoundingClientRect().right > innerWidth + 1)
            .map((part) => part.tagName + " " + part.textContent.slice(0, 60))"""
    )


def test_a_phone_shows_every_figure_and_charts_that_can_be_read(visit: Open, folder: Path):
    """Each policy is a card, no table is cut off at the side, and no text of a picture is below 11 px."""
    page = visit(folder.as_uri(), offline=True).go("/report.html")
    page.set_viewport_size({"width": 390, "height": 844})
    cells = page.locator(f"{TABLE} td").all()

    assert all(cell.is_visible() for cell in cells)
    assert 390 >= max(box["x"] + box["width"] for cell in cells if (box := cell.bounding_box()))
    assert 390 >= page.evaluate("document.documentElement.scrollWidth")
    assert [] == page.evaluate(
        """() => [...document.querySelectorAll(".wide")].filter((part) => part.scrollWidth > part.clientWidth)
            .map((part) => part.parentNode.textContent.slice(0, 60))"""
    )
    assert 11 <= page.evaluate(
        """() => Math.min(...[...document.querySelectorAll("svg.phone")].map((picture) =>
            12 * picture.getBoundingClientRect().width / picture.viewBox.baseVal.width))"""
    )


def test_the_verdict_is_the_first_thing_read(visit: Open, folder: Path):
    """Under the title stand the offered load and which policy waits least."""
    page = visit(folder.as_uri(), offline=True).go("/report.html")
    said = page.locator("header .verdict").all_inner_texts()

    assert page.title() == page.locator("h1").inner_text() == "jobs.csv on 8 GPUs (v100x4*2)"
    assert said[0].startswith("Offered load ")
    assert " wait" in said[1]

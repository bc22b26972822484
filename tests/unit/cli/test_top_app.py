"""`aliquot top` as an application, driven by its pilot on made-up clusters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("textual", reason="textual is not installed: no application to drive")

from made_up_facts import MadeUpFacts
from textual.pilot import Pilot
from textual.widgets import Input, Static

from aliquot.cli.top_app import TopApp
from aliquot.cli.top_views import Look
from aliquot.model.errors import AliquotError
from aliquot.status import Share

Scene = Callable[[TopApp, Pilot[int]], Awaitable[None]]


def look_of(facts: MadeUpFacts) -> Look:
    """What the application sees of a made-up cluster."""
    return Look("made up", facts.window_s, facts.gpus(), facts.workloads())


def play(facts: MadeUpFacts, scene: Scene, *, size: tuple[int, int] = (140, 40)) -> TopApp:
    """Run a scene in the application; it looks again every 200 ms."""
    app = TopApp(lambda: look_of(facts), interval_s=0.2)

    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: bool(app.shown))
            await pilot.press("g")
            await scene(app, pilot)

    asyncio.run(main())
    return app


async def until(pilot: Pilot[int], true: Callable[[], bool]) -> None:
    """Wait for something for five seconds at most."""
    async with asyncio.timeout(5):
        while not true():
            await pilot.pause(0.02)


def text_of(app: TopApp, part: str) -> str:
    """What a part of the screen says."""
    return str(app.query_one(part, Static).render())


def cells(app: TopApp, key: str) -> str:
    """A row as text."""
    return " ".join(str(cell) for cell in app.table.get_row(key))


@pytest.fixture
def facts() -> MadeUpFacts:
    """Two nodes with four GPUs each."""
    return MadeUpFacts(nodes=2, gpus=4)


def test_it_opens_on_gpus(facts: MadeUpFacts):
    """Every GPU is a row, with the sums on top and the tenants of the chosen GPU below."""
    first = facts.gpus()[0]

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        assert [gpu.uuid for gpu in facts.gpus()] == app.shown
        assert f"{first.busy_milli / 1000:.2f}" in cells(app, first.uuid) and first.state in cells(app, first.uuid)
        assert "8 GPUs" in text_of(app, "#head")
        await until(pilot, lambda: all(share.tenant in text_of(app, "#detail") for share in first.shares))

    play(facts, scene)


def test_enter_goes_to_the_tenants_and_escape_back(facts: MadeUpFacts):
    """Enter on a GPU lists its tenants with their history, Escape returns to the same GPU."""
    place = next(n for n, gpu in enumerate(facts.gpus()) if len(gpu.shares) > 1)
    gpu = facts.gpus()[place]

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press(*["down"] * place, "enter")
        assert [share.tenant for share in gpu.shares] == app.shown
        assert text_of(app, "#detail").startswith("used")
        await pilot.press("escape")
        assert len(facts.gpus()) == len(app.shown) and place == app.table.cursor_row

    play(facts, scene)


def test_the_filter_narrows_as_it_is_typed(facts: MadeUpFacts):
    """`/` and a tenant's name leave its GPU, Enter keeps the filter, Escape drops it."""
    gpu = next(gpu for gpu in facts.gpus() if gpu.shares)

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("slash")
        app.query_one("#filter", Input).value = gpu.shares[0].tenant
        await until(pilot, lambda: app.shown == [gpu.uuid])
        await pilot.press("enter")
        assert app.focused is app.table and app.shown == [gpu.uuid]
        await pilot.press("escape")
        assert len(facts.gpus()) == len(app.shown)

    play(facts, scene)


def test_gpus_are_sorted_by_use(facts: MadeUpFacts):
    """`s` puts the most used GPU first, and the row that was chosen stays chosen."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        chosen = app.shown[0]
        await pilot.press("s")
        used = {gpu.uuid: gpu.busy_milli for gpu in facts.gpus()}
        assert sorted(used.values(), reverse=True) == [used[uuid] for uuid in app.shown]
        assert chosen == app.shown[app.table.cursor_row]

    play(facts, scene)


def test_workloads_say_why_they_wait():
    """`w` lists workloads, waiting ones first, with the reason below."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("w")
        assert "batch/wait-0" == app.shown[0]
        await until(pilot, lambda: "no node has two idle GPUs" in text_of(app, "#detail"))

    play(MadeUpFacts(nodes=6, gpus=4), scene)


def test_rows_follow_the_facts(facts: MadeUpFacts):
    """What changes is shown at the next look, in place."""
    gpu = facts.gpus()[0]

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        facts.put(gpu.uuid, Share("new/tenant", 100, 1000, 50, 100, 50))
        await until(pilot, lambda: "new/tenant" in text_of(app, "#detail"))
        assert app.shown[0] == gpu.uuid

    play(facts, scene)


def test_two_hundred_tenants_on_a_gpu():
    """A GPU with 200 tenants is listed whole, stays quick and keeps the cursor while it refreshes."""
    facts = MadeUpFacts(nodes=1, gpus=1)
    uuid = facts.gpus()[0].uuid
    for number in range(200):
        facts.put(uuid, Share(f"many/t-{number:03d}", 5, 1000, 5, 16, 8))

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        assert len(app.shown) >= 200
        await pilot.press("ctrl+end")
        for _ in range(2):
            facts.pass_time()
            await pilot.pause(0.25)
        assert len(app.shown) - 1 == app.table.cursor_row

    play(facts, scene)


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (100, 30), (220, 60)])
def test_any_size_of_terminal(facts: MadeUpFacts, size: tuple[int, int]):
    """Narrow terminals get fewer columns; a change of size while it runs is followed."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        columns = len(app.table.ordered_columns)
        assert (10 if size[0] >= 100 else 6) == columns
        await pilot.resize_terminal(60, 20)
        await until(pilot, lambda: len(app.table.ordered_columns) == 6)
        await pilot.resize_terminal(160, 50)
        await until(pilot, lambda: len(app.table.ordered_columns) == 10)

    play(facts, scene, size=size)


def test_without_colour(facts: MadeUpFacts, monkeypatch: pytest.MonkeyPatch):
    """With NO_COLOR nothing on the screen has a colour other than grey."""
    monkeypatch.setenv("NO_COLOR", "1")

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        assert app.no_color
        await pilot.pause()
        colours = [
            colour.get_truecolor()
            for strip in app.screen._compositor.render_strips()
            for segment in strip.apply_filter(app._filters[0], app.screen.background_colors[0])
            if segment.style is not None
            for colour in (segment.style.color, segment.style.bgcolor)
            if colour is not None and not colour.is_default
        ]
        assert colours and all(max(colour) - min(colour) <= 1 for colour in colours)

    play(facts, scene)


def test_an_engine_that_goes_away_is_told(facts: MadeUpFacts):
    """When a look fails the screen says why and since when, and dims what it showed; when looks work it goes on."""
    fails = [False]

    def source() -> Look:
        if fails[0]:
            raise AliquotError("no engine is up")
        return look_of(facts)

    app = TopApp(source, interval_s=0.02)

    async def main() -> None:
        async with app.run_test(size=(120, 30)) as pilot:
            await until(pilot, lambda: bool(app.shown))
            fails[0] = True
            await until(pilot, lambda: "no engine is up" in text_of(app, "#head"))
            assert re.match(r"no news since \d\d:\d\d:\d\d: no engine is up", text_of(app, "#head"))
            assert app.shown and app.table.has_class("stale")
            fails[0] = False
            await until(pilot, lambda: "8 GPUs" in text_of(app, "#head"))
            assert not app.table.has_class("stale")

    asyncio.run(main())


@pytest.mark.parametrize(("key", "status"), [("q", None), ("ctrl+c", 130)])
def test_it_ends(facts: MadeUpFacts, key: str, status: int | None):
    """`q` ends it; Ctrl-C ends it with the status of an interrupted command."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press(key)

    assert status == play(facts, scene).return_value


def test_names_are_text(facts: MadeUpFacts):
    """A name that looks like markup is shown as it is."""
    facts.put(facts.gpus()[0].uuid, Share("[red]x[/red]", 100, 1000, 50, 100, 50))

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "[red]x[/red]" in text_of(app, "#detail"))
        await pilot.press("enter")
        assert "[red]x[/red]" in cells(app, "[red]x[/red]")

    play(facts, scene)


def test_what_is_not_measured_is_a_dash(facts: MadeUpFacts):
    """A GPU whose node tells nothing shows its promises, dashes for its use, and why."""
    facts.silence("node-000", "it cannot be reached")
    gpu = next(gpu for gpu in facts.gpus() if not gpu.measured and gpu.shares)
    silent = {node.name: node.silent for node in facts.nodes() if node.silent}
    app = TopApp(lambda: look_of(facts)._replace(silent=silent), interval_s=0.2)

    async def main() -> None:
        async with app.run_test(size=(140, 40)) as pilot:
            await until(pilot, lambda: bool(app.shown))
            await pilot.press("g")
            assert f"{gpu.busy_milli / 1000:.2f}" not in cells(app, gpu.uuid)
            assert " -  " in cells(app, gpu.uuid) and gpu.state in cells(app, gpu.uuid)
            assert "on 4" in text_of(app, "#head")
            await until(pilot, lambda: "it cannot be reached" in text_of(app, "#detail"))
            app.table.move_cursor(row=app.shown.index(gpu.uuid))
            await pilot.press("enter")
            await until(pilot, lambda: "not known" in text_of(app, "#detail"))
            assert gpu.shares[0].tenant == app.shown[0]

    asyncio.run(main())

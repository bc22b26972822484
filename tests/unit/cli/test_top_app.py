"""`aliquot top` as an application, driven by its pilot on made-up clusters, at the sizes that terminals have."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

pytest.importorskip("textual", reason="textual is not installed: no application to drive")

import msgspec
from made_up_facts import MadeUpFacts
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input, Static

from aliquot.cli.top_app import Help, Sure, TopApp
from aliquot.cli.top_views import WAITS, DetailBox, Look, UsageHistory, overview, tenant_key
from aliquot.model.errors import AliquotError
from aliquot.standalone.wire import RunProcess
from aliquot.status import Share

SIZES = ((80, 24), (200, 50))


class Source:
    """A made-up cluster whose workloads can be ended; with a `fault` it cannot be read."""

    def __init__(self, facts: MadeUpFacts | None = None) -> None:
        self.facts = facts or MadeUpFacts(nodes=6, gpus=4)
        self.ended: list[str] = []
        self.fault = ""

    def __call__(self) -> Look:
        """Everything now, each tenant with two processes and each GPU with its temperature."""
        if self.fault:
            raise AliquotError(self.fault)
        gpus = self.facts.gpus()
        commands = ("python3 -m train --config configs/a-rather-long-name.yaml --resume", "python3 -c worker")
        tenants = [share.tenant for gpu in gpus for share in gpu.shares]
        processes = {name: [RunProcess(4000 + n, text) for n, text in enumerate(commands)] for name in tenants}
        sensors = {gpu.uuid: "43 C  120 W" for gpu in gpus}
        silent = {node.name: node.silent for node in self.facts.nodes() if node.silent}
        return Look("made up", 10.0, gpus, self.facts.workloads(), silent, processes, sensors)

    def end(self, name: str) -> str:
        self.ended.append(name)
        return f"{name} ended"


@asynccontextmanager
async def playing(
    *, size: tuple[int, int] = (80, 24), source: Source | None = None, view: str = ""
) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
    """The application, which reads again every 200 ms; it begins with a key for another view."""
    app = TopApp(source or Source(), interval_s=0.2)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: bool(app.shown))
        await pilot.press(*view)
        yield app, pilot


def gpus_of(
    facts: MadeUpFacts, size: tuple[int, int] = (140, 40)
) -> AbstractAsyncContextManager[tuple[TopApp, Pilot[int]]]:
    """The list of a cluster's GPUs."""
    return playing(size=size, source=Source(facts), view="g")


async def until(pilot: Pilot[int], true: Callable[[], bool]) -> None:
    """Wait for something for ten seconds at most."""
    async with asyncio.timeout(10):
        while not true():
            await pilot.pause(0.02)


def screen(app: TopApp) -> list[str]:
    """The lines of the screen as they are seen."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


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


async def test_it_opens_on_gpus(facts: MadeUpFacts):
    """Every GPU is a row, with the sums on top and the tenants of the chosen GPU below."""
    first = facts.gpus()[0]

    async with gpus_of(facts) as (app, pilot):
        assert [gpu.uuid for gpu in facts.gpus()] == app.shown
        assert f"{first.busy_milli / 1000:.2f}" in cells(app, first.uuid) and first.state in cells(app, first.uuid)
        assert "8 GPUs" in text_of(app, "#head")
        await until(pilot, lambda: all(share.tenant in text_of(app, "#detail") for share in first.shares))


async def test_enter_goes_to_the_tenants_and_escape_back(facts: MadeUpFacts):
    """Enter on a GPU lists its tenants with their history, Escape returns to the same GPU."""
    place = next(n for n, gpu in enumerate(facts.gpus()) if len(gpu.shares) > 1)
    gpu = facts.gpus()[place]

    async with gpus_of(facts) as (app, pilot):
        await pilot.press(*["down"] * place, "enter")
        assert [share.tenant for share in gpu.shares] == app.shown
        assert text_of(app, "#detail").startswith("used")
        await pilot.press("escape")
        assert len(facts.gpus()) == len(app.shown) and place == app.table.cursor_row


async def test_the_filter_narrows_as_it_is_typed(facts: MadeUpFacts):
    """`/` and a tenant's name leave its GPU, Enter keeps the filter, Escape drops it."""
    gpu = next(gpu for gpu in facts.gpus() if gpu.shares)

    async with gpus_of(facts) as (app, pilot):
        await pilot.press("slash")
        app.query_one("#filter", Input).value = gpu.shares[0].tenant
        await until(pilot, lambda: app.shown == [gpu.uuid])
        await pilot.press("enter")
        assert app.focused is app.table and app.shown == [gpu.uuid]
        await pilot.press("escape")
        assert len(facts.gpus()) == len(app.shown)


async def test_gpus_are_sorted_by_use(facts: MadeUpFacts):
    """`s` puts the most used GPU first, and the row that was chosen stays chosen."""
    async with gpus_of(facts) as (app, pilot):
        chosen = app.shown[0]
        await pilot.press("s")
        used = {gpu.uuid: gpu.busy_milli for gpu in facts.gpus()}
        assert sorted(used.values(), reverse=True) == [used[uuid] for uuid in app.shown]
        assert chosen == app.shown[app.table.cursor_row]


async def test_workloads_say_why_they_wait():
    """`w` lists workloads, waiting ones first, with the reason below."""
    async with gpus_of(MadeUpFacts(nodes=6, gpus=4)) as (app, pilot):
        await pilot.press("w")
        assert "batch/wait-0" == app.shown[0]
        await until(pilot, lambda: "no node has two idle GPUs" in text_of(app, "#detail"))


async def test_rows_follow_the_facts(facts: MadeUpFacts):
    """What changes is shown at the next look, in place."""
    gpu = facts.gpus()[0]

    async with gpus_of(facts) as (app, pilot):
        facts.put(gpu.uuid, Share("new/tenant", 100, 1000, 50, 100, 50))
        await until(pilot, lambda: "new/tenant" in text_of(app, "#detail"))
        assert app.shown[0] == gpu.uuid


async def test_two_hundred_tenants_on_a_gpu():
    """A GPU with 200 tenants is listed whole, stays quick and keeps the cursor while it refreshes."""
    facts = MadeUpFacts(nodes=1, gpus=1)
    uuid = facts.gpus()[0].uuid
    for number in range(200):
        facts.put(uuid, Share(f"many/t-{number:03d}", 5, 1000, 5, 16, 8))

    async with gpus_of(facts) as (app, pilot):
        await pilot.press("enter")
        assert len(app.shown) >= 200
        await pilot.press("ctrl+end")
        for _ in range(2):
            facts.pass_time()
            await pilot.pause(0.25)
        assert len(app.shown) - 1 == app.table.cursor_row


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (100, 30), (220, 60)])
async def test_any_size_of_terminal(facts: MadeUpFacts, size: tuple[int, int]):
    """Narrow terminals get fewer columns; a change of size while it runs is followed."""
    async with gpus_of(facts, size) as (app, pilot):
        columns = len(app.table.ordered_columns)
        assert (10 if size[0] >= 100 else 6) == columns
        await pilot.resize_terminal(60, 20)
        await until(pilot, lambda: len(app.table.ordered_columns) == 6)
        await pilot.resize_terminal(160, 50)
        await until(pilot, lambda: len(app.table.ordered_columns) == 10)


async def test_without_colour(facts: MadeUpFacts, monkeypatch: pytest.MonkeyPatch):
    """With NO_COLOR nothing on the screen has a colour other than grey."""
    monkeypatch.setenv("NO_COLOR", "1")

    async with gpus_of(facts) as (app, pilot):
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


async def test_an_engine_that_goes_away_is_told(facts: MadeUpFacts):
    """When a look fails the screen says why and since when, and dims what it showed; when looks work it goes on."""
    source = Source(facts)

    async with playing(size=(120, 30), source=source) as (app, pilot):
        source.fault = "no engine is up"
        await until(pilot, lambda: "no engine is up" in text_of(app, "#head"))
        assert re.match(r"no news since \d\d:\d\d:\d\d: no engine is up", text_of(app, "#head"))
        assert app.shown and app.table.has_class("stale")
        source.fault = ""
        await until(pilot, lambda: "8 GPUs" in text_of(app, "#head"))
        assert not app.table.has_class("stale")


@pytest.mark.parametrize(("key", "status"), [("q", None), ("ctrl+c", 130)])
async def test_it_ends(facts: MadeUpFacts, key: str, status: int | None):
    """`q` ends it; Ctrl-C ends it with the status of an interrupted command."""
    async with gpus_of(facts) as (app, pilot):
        await pilot.press(key)

    assert status == app.return_value


async def test_names_are_text(facts: MadeUpFacts):
    """A name that looks like markup is shown as it is."""
    facts.put(facts.gpus()[0].uuid, Share("[red]x[/red]", 100, 1000, 50, 100, 50))

    async with gpus_of(facts) as (app, pilot):
        await until(pilot, lambda: "[red]x[/red]" in text_of(app, "#detail"))
        await pilot.press("enter")
        assert "[red]x[/red]" in cells(app, "[red]x[/red]")


async def test_what_is_not_measured_is_a_dash(facts: MadeUpFacts):
    """A GPU whose node tells nothing shows its promises, dashes for its use, and why."""
    facts.silence("node-000", "it cannot be reached")
    gpu = next(gpu for gpu in facts.gpus() if not gpu.measured and gpu.shares)

    async with gpus_of(facts) as (app, pilot):
        assert f"{gpu.busy_milli / 1000:.2f}" not in cells(app, gpu.uuid)
        assert " -  " in cells(app, gpu.uuid) and gpu.state in cells(app, gpu.uuid)
        assert "on 4" in text_of(app, "#head")
        await until(pilot, lambda: "it cannot be reached" in text_of(app, "#detail"))
        app.table.move_cursor(row=app.shown.index(gpu.uuid))
        await pilot.press("enter")
        await until(pilot, lambda: "not known" in text_of(app, "#detail"))
        assert gpu.shares[0].tenant == app.shown[0]


@pytest.mark.parametrize("size", SIZES)
async def test_waiting_comes_first(size):
    """How many wait is the first word of the head, and those that wait are the first rows."""
    async with playing(size=size) as (app, pilot):
        await until(pilot, lambda: "waiting" in screen(app)[0])
        waiting = [each.name for each in app._source().workloads if each.state == "Pending"]
        assert screen(app)[0].strip().startswith(f"{len(waiting)} waiting")
        assert [f"{WAITS}{name}" for name in waiting] == app.shown[: len(waiting)]


@pytest.mark.parametrize("size", SIZES)
async def test_tenants_stand_under_their_gpu(size):
    """Every GPU is followed by its tenants, each with its own row."""
    async with playing(size=size) as (app, _):
        rows = [key for key in app.shown if not key.startswith(WAITS)]
        expected = [key for gpu in app._source().gpus for key in (gpu.uuid, *(tenant_key(gpu, s) for s in gpu.shares))]
        assert expected == rows


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("name", ["default/a", "default/notebook-of-a-team-with-a-long-name"])
def test_the_table_of_a_gpus_tenants_has_heads_and_fits(width: int, name: str):
    """The box under a GPU names its columns, and no line of it is wider than the terminal."""
    share = Share(name, 300, 600, 250, 4096, 2048, processes=1, waiting=True)
    gpu = msgspec.structs.replace(MadeUpFacts(nodes=1, gpus=1).gpus()[0], shares=[share], measured=True)
    head, row = DetailBox(Look("here", 10.0, [gpu], []), UsageHistory(), width, high=False).gpu(gpu.uuid)

    assert ["TENANT", "REQUEST", "LIMIT", "USAGE"] == head.split()[:4]
    assert max(len(head), len(row)) <= width - 2 and "0.25" in row and "waits" in row
    assert row.startswith(f"a {name[:8]}")


async def test_the_title_names_the_host_and_what_is_shown():
    """The line over the table has the host whole, and speaks of waiting only where something waits."""
    async with playing(source=Source(MadeUpFacts(nodes=1, gpus=4))) as (app, pilot):
        await until(pilot, lambda: "sorted" in screen(app)[1])
        assert "made up   GPUs and their tenants   sorted by name" == screen(app)[1].strip()


@pytest.mark.parametrize("width", [80, 100, 119, 120, 160, 200])
def test_no_row_is_wider_than_the_terminal(width):
    """Names, reasons and command lines are cut, so that no row wraps and no column is out of sight."""
    columns, rows = overview(Source()(), width, sort="name", text="")
    widest = [
        max(cell_len(title), *(cell_len(str(row[n])) for row in rows.values())) for n, title in enumerate(columns)
    ]

    assert sum(widest) + 2 * len(columns) + 2 <= width


@pytest.mark.parametrize("size", SIZES)
async def test_the_screen_is_full_and_no_line_wraps(size):
    """At both sizes nearly every line of the screen says something, and no line has a second half below it."""
    async with playing(size=size) as (app, pilot):
        await until(pilot, lambda: any("busy" in line for line in screen(app)))
        app.table.move_cursor(row=next(n for n, key in enumerate(app.shown) if not key.startswith(WAITS)))
        await until(pilot, lambda: "busy" in text_of(app, "#detail"))
        await pilot.pause(0.3)
        lines = screen(app)
        assert size[1] == len(lines) and all(cell_len(line) <= size[0] for line in lines)
        assert sum(bool(line.strip()) for line in lines) >= size[1] * 0.9
        detail = text_of(app, "#detail").splitlines()
        assert app.query_one("#detail", Static).virtual_size.height >= len(detail) or size[1] == 24


async def test_a_wide_terminal_has_pids_commands_and_temperatures():
    """From 120 columns on a tenant has its pid and command line, a GPU its model, temperature and power."""
    async with playing(size=(200, 50)) as (app, _):
        text = "\n".join(screen(app))
        assert "4000 +1" in text and "python3 -m train --config" in text and "43 C  120 W" in text


async def test_processes_are_in_the_detail_of_a_tenant():
    """At any size the box under the table has the pids and command lines of the chosen tenant."""
    async with playing() as (app, pilot):
        app.table.move_cursor(
            row=next(n for n, key in enumerate(app.shown) if not key.startswith(WAITS) and "|" in key)
        )
        await until(pilot, lambda: "python3 -c worker" in text_of(app, "#detail"))


async def test_the_cursor_moves_with_j_and_k():
    """j and k are the arrows."""
    async with playing() as (app, pilot):
        await pilot.press("j", "j", "k", "down")
        assert 2 == app.table.cursor_row


async def test_help_explains_keys_and_columns():
    """`?` lays the keys over the table, with what busy and used mean; any key closes it."""
    async with playing() as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help))
        assert "BUSY" in (text := "\n".join(screen(app))) and "USED" in text and "end a workload" in text
        await pilot.press("a")
        await until(pilot, lambda: not isinstance(app.screen, Help))


@pytest.mark.parametrize(("answer", "ended"), [("y", 1), ("n", 0), ("escape", 0), ("enter", 0)])
async def test_a_workload_is_ended_only_after_a_yes(answer, ended):
    """`x` asks with the workload's name; only `y` ends it."""
    source = Source()

    async with playing(source=source) as (app, pilot):
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, Sure))
        assert "batch/wait-0" in "\n".join(screen(app))
        await pilot.press(answer)
        await until(pilot, lambda: not isinstance(app.screen, Sure))
        await until(pilot, lambda: len(source.ended) == ended)
    assert ["batch/wait-0"][:ended] == source.ended


async def test_enter_on_a_tenant_opens_its_gpu():
    """Enter on a tenant shows the tenants of its GPU with the cursor on it, Escape returns to the page."""
    async with playing() as (app, pilot):
        row = next(n for n, key in enumerate(app.shown) if not key.startswith(WAITS) and "|" in key)
        tenant = app.shown[row].partition("|")[2]
        app.table.move_cursor(row=row)
        await pilot.press("enter")
        assert tenant == app.shown[app.table.cursor_row]
        await pilot.press("escape")
        assert app.shown[0].startswith(WAITS)

"""The first page of `aliquot top`: what waits, GPUs and tenants, at the sizes that terminals have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("textual", reason="textual is not installed: no application to drive")

import msgspec
from made_up_facts import MadeUpFacts
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Static

from aliquot.cli.top_app import Help, Sure, TopApp
from aliquot.cli.top_views import WAITS, DetailBox, Look, UsageHistory, overview, tenant_key
from aliquot.standalone.wire import RunProcess
from aliquot.status import Share

Scene = Callable[[TopApp, Pilot[int]], Awaitable[None]]
SIZES = ((80, 24), (200, 50))


class Source:
    """A made-up cluster whose workloads can be ended."""

    def __init__(self, nodes: int = 6) -> None:
        self.facts = MadeUpFacts(nodes=nodes, gpus=4)
        self.ended: list[str] = []

    def __call__(self) -> Look:
        """Everything now, each tenant with two processes and each GPU with its temperature."""
        gpus = self.facts.gpus()
        commands = ("python3 -m train --config configs/a-rather-long-name.yaml --resume", "python3 -c worker")
        tenants = [share.tenant for gpu in gpus for share in gpu.shares]
        processes = {name: [RunProcess(4000 + n, text) for n, text in enumerate(commands)] for name in tenants}
        sensors = {gpu.uuid: "43 C  120 W" for gpu in gpus}
        return Look("made up", 10.0, gpus, self.facts.workloads(), {}, processes, sensors)

    def end(self, name: str) -> str:
        """End a workload."""
        self.ended.append(name)
        return f"{name} ended"


def play(scene: Scene, *, size: tuple[int, int] = (80, 24), source: Source | None = None) -> None:
    """Run a scene."""
    app = TopApp(source or Source(), interval_s=0.2)

    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: bool(app.shown))
            await scene(app, pilot)

    asyncio.run(main())


async def until(pilot: Pilot[int], true: Callable[[], bool]) -> None:
    """Wait for something for ten seconds at most."""
    async with asyncio.timeout(10):
        while not true():
            await pilot.pause(0.02)


def screen(app: TopApp) -> list[str]:
    """The lines of the screen as they are seen."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


@pytest.mark.parametrize("size", SIZES)
def test_waiting_comes_first(size):
    """How many wait is the first word of the head, and those that wait are the first rows."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "waiting" in screen(app)[0])
        waiting = [each.name for each in app._source().workloads if each.state == "Pending"]
        assert screen(app)[0].strip().startswith(f"{len(waiting)} waiting")
        assert [f"{WAITS}{name}" for name in waiting] == app.shown[: len(waiting)]

    play(scene, size=size)


@pytest.mark.parametrize("size", SIZES)
def test_tenants_stand_under_their_gpu(size):
    """Every GPU is followed by its tenants, each with its own row."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        rows = [key for key in app.shown if not key.startswith(WAITS)]
        expected = [key for gpu in app._source().gpus for key in (gpu.uuid, *(tenant_key(gpu, s) for s in gpu.shares))]
        assert expected == rows

    play(scene, size=size)


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


def test_the_title_names_the_host_and_what_is_shown():
    """The line over the table has the host whole, and speaks of waiting only where something waits."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "sorted" in screen(app)[1])
        assert "made up   GPUs and their tenants   sorted by name" == screen(app)[1].strip()

    play(scene, source=Source(nodes=1))


@pytest.mark.parametrize("width", [80, 100, 119, 120, 160, 200])
def test_no_row_is_wider_than_the_terminal(width):
    """Names, reasons and command lines are cut, so that no row wraps and no column is out of sight."""
    columns, rows = overview(Source()(), width, sort="name", text="")
    widest = [
        max(cell_len(title), *(cell_len(str(row[n])) for row in rows.values())) for n, title in enumerate(columns)
    ]

    assert sum(widest) + 2 * len(columns) + 2 <= width


@pytest.mark.parametrize("size", SIZES)
def test_the_screen_is_full_and_no_line_wraps(size):
    """At both sizes nearly every line of the screen says something, and no line has a second half below it."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: any("busy" in line for line in screen(app)))
        app.table.move_cursor(row=next(n for n, key in enumerate(app.shown) if not key.startswith(WAITS)))
        await until(pilot, lambda: "busy" in str(app.query_one("#detail", Static).render()))
        await pilot.pause(0.3)
        lines = screen(app)
        assert size[1] == len(lines) and all(cell_len(line) <= size[0] for line in lines)
        assert sum(bool(line.strip()) for line in lines) >= size[1] * 0.9
        detail = str(app.query_one("#detail", Static).render()).splitlines()
        assert app.query_one("#detail", Static).virtual_size.height >= len(detail) or size[1] == 24

    play(scene, size=size)


def test_a_wide_terminal_has_pids_commands_and_temperatures():
    """From 120 columns on a tenant has its pid and command line, a GPU its model, temperature and power."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        text = "\n".join(screen(app))
        assert "4000 +1" in text and "python3 -m train --config" in text and "43 C  120 W" in text

    play(scene, size=(200, 50))


def test_processes_are_in_the_detail_of_a_tenant():
    """At any size the box under the table has the pids and command lines of the chosen tenant."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        app.table.move_cursor(
            row=next(n for n, key in enumerate(app.shown) if not key.startswith(WAITS) and "|" in key)
        )
        await until(pilot, lambda: "python3 -c worker" in str(app.query_one("#detail", Static).render()))

    play(scene)


def test_the_cursor_moves_with_j_and_k():
    """j and k are the arrows."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("j", "j", "k", "down")
        assert 2 == app.table.cursor_row

    play(scene)


def test_help_explains_keys_and_columns():
    """`?` lays the keys over the table, with what busy and used mean; any key closes it."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help))
        assert "BUSY" in (text := "\n".join(screen(app))) and "USED" in text and "end a workload" in text
        await pilot.press("a")
        await until(pilot, lambda: not isinstance(app.screen, Help))

    play(scene)


@pytest.mark.parametrize(("answer", "ended"), [("y", 1), ("n", 0), ("escape", 0), ("enter", 0)])
def test_a_workload_is_ended_only_after_a_yes(answer, ended):
    """`x` asks with the workload's name; only `y` ends it."""
    source = Source()

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, Sure))
        assert "batch/wait-0" in "\n".join(screen(app))
        await pilot.press(answer)
        await until(pilot, lambda: not isinstance(app.screen, Sure))
        await until(pilot, lambda: len(source.ended) == ended)

    play(scene, source=source)
    assert ["batch/wait-0"][:ended] == source.ended


def test_enter_on_a_tenant_opens_its_gpu():
    """Enter on a tenant shows the tenants of its GPU with the cursor on it, Escape returns to the page."""

    async def scene(app: TopApp, pilot: Pilot[int]) -> None:
        row = next(n for n, key in enumerate(app.shown) if not key.startswith(WAITS) and "|" in key)
        tenant = app.shown[row].partition("|")[2]
        app.table.move_cursor(row=row)
        await pilot.press("enter")
        assert tenant == app.shown[app.table.cursor_row]
        await pilot.press("escape")
        assert app.shown[0].startswith(WAITS)

    play(scene)

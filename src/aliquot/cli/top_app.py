"""`aliquot top` on a terminal: what waits, GPUs and tenants; Enter opens a GPU with its history, Escape returns.

Every view is one table and one box under it, so that keys mean the same everywhere. Data is fetched in a
thread; the screen never waits for the engine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import ClassVar, Final

from rich.cells import cell_len
from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Static

from aliquot.cli.top_cells import SLIM, TENANTS, WIDE, WORKLOADS, Row, share_row, workload_row
from aliquot.cli.top_detail import DetailBox, UsageHistory
from aliquot.cli.top_dialogs import Help, Sure
from aliquot.cli.top_overview import WAITS, overview
from aliquot.cli.top_rows import SORTS, Look, found, head, memory_text, ordered, shares_bar, spark, usage_text
from aliquot.model.errors import AliquotError
from aliquot.model.quantities import format_milli
from aliquot.status import Gpu, Workload

NARROW: Final = 100
HIGH: Final = 40
OVERVIEW: Final = "overview"
Source = Callable[[], Look]


class Rows(DataTable[str | Text]):
    """The table, with Enter among the key hints."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open"),
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
    ]


class Looked(Message):
    """A snapshot; without one, the error."""

    def __init__(self, look: Look | None, why: str = "") -> None:
        super().__init__()
        self.look = look
        self.why = why


class TopApp(App[int]):
    """The application; it reads `source` every `interval_s`, in a thread, and `source` may raise AliquotError."""

    CSS = """
    Screen { layout: vertical; }
    #head { height: 1; padding: 0 1; text-style: bold; }
    #note { height: 1; padding: 0 1; color: $text-muted; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    Rows { height: 1fr; }
    Rows.stale, #detail.stale { opacity: 50%; }
    #detail { height: auto; max-height: 45%; padding: 0 1; border-top: solid $panel; overflow: auto auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("escape", "leave", "Back"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("o", "overview", "All", show=False),
        Binding("w", "workloads", "Workloads"),
        Binding("g", "gpus", "GPUs"),
        Binding("x", "end", "End"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, source: Source, *, interval_s: float = 1.0) -> None:
        super().__init__()
        self._source = source
        self._interval_s = interval_s
        self._look: Look | None = None
        self._view = OVERVIEW  # overview, gpus, workloads, or the UUID of a GPU
        self._news = ""  # when the last look was
        self._columns: tuple[str, ...] = ()
        self._keys: list[str] = []
        self._drawn: dict[str, Row] = {}
        self._widths: dict[str, int] = {}
        self._text = ""
        self._sort = SORTS[0]
        self._home = OVERVIEW
        self._past = UsageHistory()

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield Static("", id="head", markup=False)
        yield Static("", id="note", markup=False)
        yield Input(placeholder="node, model, tenant", id="filter")
        yield Rows(cursor_type="row", zebra_stripes=False)
        yield Static("", id="detail", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Start looking."""
        self.table.focus()
        self._fetch()
        self.set_interval(self._interval_s, self._fetch)

    @property
    def table(self) -> Rows:
        """The one table."""
        return self.query_one(Rows)

    @property
    def shown(self) -> list[str]:
        """The keys of the rows, in order: UUIDs, tenants or workloads."""
        return list(self._keys)

    # Keys

    def open_row(self) -> None:
        """From a GPU to its tenants, from a workload to its first GPU."""
        key = self._current()
        if key is None:
            return
        if self._view == OVERVIEW:
            uuid, _, tenant = key.partition("|")
            self._go("workloads" if key.startswith(WAITS) else uuid)
            if tenant in self._keys:
                self.table.move_cursor(row=self._keys.index(tenant))
        elif self._view == "gpus":
            self._go(key)
        elif self._view == "workloads":
            workload = self._workload(key)
            if workload and workload.pieces:
                self._go(workload.pieces[0].uuid)

    def action_leave(self) -> None:
        """Close the filter, else clear it, else back to all GPUs."""
        entry = self.query_one("#filter", Input)
        if entry.has_class("shown") or self._text:
            entry.value = self._text = ""
            entry.remove_class("shown")
            self.set_focus(self.table)
            self._draw()
        elif self._view != self._home:
            uuid = self._view
            self._go(self._home)
            if uuid in self._keys:
                self.table.move_cursor(row=self._keys.index(uuid))

    def action_filter(self) -> None:
        """Open the filter field."""
        entry = self.query_one("#filter", Input)
        entry.add_class("shown")
        self.set_focus(entry)  # at once: with `focus`, keys typed meanwhile would reach the rows

    def action_sort(self) -> None:
        """The next order of GPUs."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._draw()

    def action_help(self) -> None:
        """The keys and the columns."""
        self.push_screen(Help())

    def action_overview(self) -> None:
        """Everything on one page."""
        self._home = OVERVIEW
        self._go(OVERVIEW)

    def action_end(self) -> None:
        """End the workload of the row, if the answer is yes."""
        name, end = self._chosen_workload(), getattr(self._source, "end", None)
        if not name or end is None:
            self.notify("Choose a tenant or a workload; x ends it." if end else "Workloads cannot be ended from here.")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._end(name)

        self.push_screen(Sure(f"End {name}? Its programs get SIGTERM, and it is not started again."), answered)

    @work(thread=True, group="end")
    def _end(self, name: str) -> None:
        try:
            text = str(self._source.end(name))  # type: ignore[attr-defined]
        except (AliquotError, OSError) as error:
            text = str(error)
        with contextlib.suppress(RuntimeError):  # the application has ended
            self.call_from_thread(self.notify, text)

    def action_workloads(self) -> None:
        """Everything that runs or waits."""
        self._go("workloads")

    def action_gpus(self) -> None:
        """All GPUs."""
        self._home = "gpus"
        self._go("gpus")

    def action_interrupt(self) -> None:
        """End as an interrupted command does."""
        self.exit(130)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter the rows as the user types."""
        self._text = event.value
        self._draw()

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Keep the filter and return to the rows."""
        self.query_one("#filter", Input).remove_class("shown")
        self.set_focus(self.table)

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Enter on a row."""
        self.open_row()

    def on_data_table_row_highlighted(self, _event: DataTable.RowHighlighted) -> None:
        """The box under the table follows the cursor."""
        self._draw_detail()

    def on_resize(self, _event: events.Resize) -> None:
        """Show fewer columns on a narrow terminal, and more of the detail on a high one."""
        self._columns, self._widths = (), {}
        for part in self.query("#detail").results(Static):
            part.styles.max_height = "60%" if self.size.height >= HIGH else "45%"
        self._draw()

    # Looking

    @work(thread=True, exclusive=True, group="look")
    def _fetch(self) -> None:
        """Post the result without waiting: an application that is ending would never answer."""
        try:
            found_now = Looked(self._source())
        except (AliquotError, OSError, RuntimeError) as error:
            found_now = Looked(None, str(error))
        with contextlib.suppress(RuntimeError):  # it has ended
            self.post_message(found_now)

    def on_looked(self, looked: Looked) -> None:
        """Show what was found, or why nothing was."""
        if looked.look is None:
            self._lost(looked.why)
        else:
            self._take(looked.look)

    def _lost(self, why: str) -> None:
        since = f"no news since {self._news}: " if self._news else ""
        for part in self.query("#head").results(Static):
            part.update(_line(f"{since}{why}"))
        self.query("Rows, #detail").add_class("stale")

    def _take(self, look: Look) -> None:
        self._look = look
        self._news = time.strftime("%H:%M:%S")
        self.query("Rows, #detail").remove_class("stale")
        self._past.take(look)
        self._draw()

    # Drawing

    def _go(self, view: str) -> None:
        self._view = view
        self._draw()
        self.table.move_cursor(row=0)
        self._draw_detail()

    def _draw(self) -> None:
        if self._look is None or not self.query("#head"):
            return  # before the first look, or ending
        self.query_one("#head", Static).update(_line(head(self._look)))
        columns, rows = self._rows(self._look)
        self._fill(columns, rows)
        self.query_one("#note", Static).update(_line(self._note(self._look)))
        self._draw_detail()

    def _note(self, look: Look) -> str:
        waits = "waiting, " if any(key.startswith(WAITS) for key in self._keys) else ""
        parts = {OVERVIEW: f"{waits}GPUs and their tenants", "gpus": "GPUs", "workloads": "workloads"}
        gpu = self._gpu(self._view)
        what = f"GPU {gpu.index} of {gpu.node}, {gpu.model}" if gpu else parts.get(self._view, "this GPU is gone")
        sort = f"   sorted by {self._sort}" if self._view in (OVERVIEW, "gpus") else ""
        text = f'   only with "{self._text}"' if self._text else ""
        return f"{look.title}   {what}{sort}{text}"

    def _rows(self, look: Look) -> tuple[tuple[str, ...], dict[str, Row]]:
        wide = self.size.width >= NARROW
        if self._view == OVERVIEW:
            return overview(look, self.size.width, sort=self._sort, text=self._text)
        if self._view == "workloads":
            workloads = [each for each in look.workloads if self._text.lower() in f"{each.name} {each.state}".lower()]
            return WORKLOADS, {each.name: workload_row(each) for each in workloads}
        if self._view == "gpus":
            gpus = ordered(found(look.gpus, self._text), self._sort)
            return (WIDE if wide else SLIM), {gpu.uuid: self._gpu_row(gpu, wide=wide) for gpu in gpus}
        gpu = self._gpu(self._view)
        shares = [share for share in gpu.shares if self._text.lower() in share.tenant.lower()] if gpu else []
        assert gpu is not None or not shares
        return (TENANTS if wide else TENANTS[:6]), {s.tenant: share_row(gpu, s, wide=wide) for s in shares if gpu}

    def _gpu_row(self, gpu: Gpu, *, wide: bool) -> Row:
        used = Text(usage_text(gpu.busy_milli, 10, measured=gpu.measured), style="green")
        memory = Text(memory_text(gpu.memory_used_mib, gpu.memory_mib, measured=gpu.measured), style="blue")
        start: Row = (gpu.node, f"GPU {gpu.index}", gpu.state, used, f"{format_milli(gpu.free_milli):>5}", memory)
        if not wide:
            return start
        trend = Text(spark(self._past.busy[gpu.uuid], 1000, 16), style="green")
        return (*start, trend, shares_bar(gpu, 16), f"{len(gpu.shares):>3}", gpu.model)

    def _fill(self, columns: tuple[str, ...], rows: dict[str, Row]) -> None:
        """Change cells in place where rows are the same, else make the table anew with the cursor on its row.

        Widths are ours: the table measures only when it has nothing else to do, which on a busy machine may be never.
        """
        table = self.table
        keys = list(rows)
        widths = self._fitting(columns, rows)
        if columns == self._columns and keys == self._keys and widths == self._widths:
            for key, row in rows.items():
                for column, cell, before in zip(columns, row, self._drawn[key], strict=True):
                    if cell != before:
                        table.update_cell(key, column, cell)
            self._drawn = rows
            return
        current, scroll = self._current(), table.scroll_y
        table.clear(columns=widths != self._widths)
        if widths != self._widths:
            for column, width in widths.items():
                table.add_column(column, key=column, width=width)
        for key, row in rows.items():
            table.add_row(*row, key=key)
        self._columns, self._keys, self._drawn, self._widths = columns, keys, rows, widths
        if current in rows:
            table.move_cursor(row=keys.index(current), animate=False)
            table.scroll_to(y=scroll, animate=False)

    def _fitting(self, columns: tuple[str, ...], rows: dict[str, Row]) -> dict[str, int]:
        """Columns in cells; never narrower than they were in this view, so that nothing jumps."""
        least = [
            max(cell_len(column), self._widths.get(column, 0) if columns == self._columns else 0) for column in columns
        ]
        for row in rows.values():
            least = [max(width, cell_len(str(cell))) for width, cell in zip(least, row, strict=True)]
        return dict(zip(columns, least, strict=True))

    def _draw_detail(self) -> None:
        if self._look is None or not self.query("#detail"):
            return
        key = self._current()
        box = DetailBox(self._look, self._past, self.size.width, high=self.size.height >= HIGH)
        lines = [] if key is None else self._detail_lines(box, key)
        self.query_one("#detail", Static).update(_line("\n".join(lines) or "no tenants"))

    def _detail_lines(self, box: DetailBox, key: str) -> list[str]:
        if self._view == OVERVIEW:
            return box.overview(key)
        if self._view == "gpus":
            return box.gpu(key)
        return box.workload(key) if self._view == "workloads" else box.share(self._view, key)

    def _chosen_workload(self) -> str:
        """The workload of the chosen row; empty for a GPU."""
        key = self._current() or ""
        if self._view == OVERVIEW:
            return key.removeprefix(WAITS) if key.startswith(WAITS) else key.partition("|")[2]
        return "" if self._view == "gpus" else key

    def _current(self) -> str | None:
        row = self.table.cursor_row
        return self._keys[row] if 0 <= row < len(self._keys) else None

    def _gpu(self, uuid: str) -> Gpu | None:
        return self._look.gpu(uuid) if self._look else None

    def _workload(self, name: str) -> Workload | None:
        return self._look.workload(name) if self._look else None


def _line(text: str) -> Text:
    """Text whose lines are cut at the edge of the terminal instead of wrapped."""
    return Text(text, no_wrap=True, overflow="ellipsis")

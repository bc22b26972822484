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
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

import aliquot.cli.top_views as views
from aliquot.model.errors import AliquotError
from aliquot.status import Gpu

NARROW: Final = 100
HIGH: Final = 40
OVERVIEW: Final = "overview"
Source = Callable[[], views.Look]
HELP: Final = """\
 arrows, j k    move            Enter   open a GPU, its tenants
 Escape         back            /       filter by node, model, tenant
 o              all on one page g       GPUs only
 w              workloads       s       sort by busy, free, memory
 x              end a workload (asks first)
 ?              this help       q       quit

 BUSY   of a GPU: the part of the whole window that was charged to its
        tenants, also to those that have ended a task in it.
 USED   of a tenant: the part charged to it of the window, or of the time
        since it came; so the sum may be more than BUSY. A stroke in its
        bar is its limit.
 PROMISED  of a GPU: requests of its tenants. Of a tenant: from its
        request, which it has whenever it wants, to its limit.
 WAIT   the median time from wanting the GPU to having it."""


class Help(ModalScreen[None]):
    """The keys and the columns; any key closes it."""

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(HELP, markup=False)

    def on_key(self) -> None:
        """Close."""
        self.dismiss(None)


class Sure(ModalScreen[bool]):
    """A question that only `y` answers with yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q,enter", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question."""
        yield Static(f"{self._question}\n\ny  yes     n, Escape  no", markup=False)

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class Rows(DataTable[str | Text]):
    """The table, with Enter among the key hints."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open"),
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
    ]


class Looked(Message):
    """A snapshot; without one, the error."""

    def __init__(self, look: views.Look | None, why: str = "") -> None:
        super().__init__()
        self.look = look
        self.why = why


class TopApp(App[int]):
    """The application; it reads `source` every `interval_s`, in a thread, and `source` may raise AliquotError."""

    CSS_PATH = "top.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("escape", "leave", "Back"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("o", f"go('{OVERVIEW}')", "All", show=False),
        Binding("w", "go('workloads')", "Workloads"),
        Binding("g", "go('gpus')", "GPUs"),
        Binding("x", "end", "End"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, source: Source, *, interval_s: float = 1.0) -> None:
        super().__init__()
        self._source = source
        self._interval_s = interval_s
        self._look: views.Look | None = None
        self._view = OVERVIEW  # overview, gpus, workloads, or the UUID of a GPU
        self._news = ""  # when the last look was
        self._columns: tuple[str, ...] = ()
        self._keys: list[str] = []
        self._drawn: dict[str, views.Row] = {}
        self._widths: dict[str, int] = {}
        self._text = ""
        self._sort = views.SORTS[0]
        self._home = OVERVIEW
        self._past = views.UsageHistory()

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
            self._go("workloads" if key.startswith(views.WAITS) else uuid)
            if tenant in self._keys:
                self.table.move_cursor(row=self._keys.index(tenant))
        elif self._view == "gpus":
            self._go(key)
        elif self._view == "workloads":
            workload = self._look.workload(key) if self._look else None
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
        self._sort = views.SORTS[(views.SORTS.index(self._sort) + 1) % len(views.SORTS)]
        self._draw()

    def action_help(self) -> None:
        """The keys and the columns."""
        self.push_screen(Help())

    def action_go(self, view: str) -> None:
        """Everything on one page, or all GPUs, to which Escape returns from now on; or what runs or waits."""
        if view != "workloads":
            self._home = view
        self._go(view)

    def action_end(self) -> None:
        """End the workload of the row, if the answer is yes."""
        name, end = self._current() or "", getattr(self._source, "end", None)
        if self._view == OVERVIEW:
            name = name.removeprefix(views.WAITS) if name.startswith(views.WAITS) else name.partition("|")[2]
        elif self._view == "gpus":
            name = ""
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
            looked = Looked(self._source())
        except (AliquotError, OSError, RuntimeError) as error:
            looked = Looked(None, str(error))
        with contextlib.suppress(RuntimeError):  # it has ended
            self.post_message(looked)

    def on_looked(self, looked: Looked) -> None:
        """Show what was found, or why nothing was."""
        if looked.look is None:
            since = f"no news since {self._news}: " if self._news else ""
            for part in self.query("#head").results(Static):
                part.update(_line(f"{since}{looked.why}"))
            self.query("Rows, #detail").add_class("stale")
            return
        self._look = looked.look
        self._news = time.strftime("%H:%M:%S")
        self.query("Rows, #detail").remove_class("stale")
        self._past.take(looked.look)
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
        look, gpu = self._look, self._gpu(self._view)
        self.query_one("#head", Static).update(_line(views.head(look)))
        self._fill(*self._rows(look))
        waits = "waiting, " if any(key.startswith(views.WAITS) for key in self._keys) else ""
        parts = {OVERVIEW: f"{waits}GPUs and their tenants", "gpus": "GPUs", "workloads": "workloads"}
        what = f"GPU {gpu.index} of {gpu.node}, {gpu.model}" if gpu else parts.get(self._view, "this GPU is gone")
        sort = f"   sorted by {self._sort}" if self._view in (OVERVIEW, "gpus") else ""
        text = f'   only with "{self._text}"' if self._text else ""
        self.query_one("#note", Static).update(_line(f"{look.title}   {what}{sort}{text}"))
        self._draw_detail()

    def _rows(self, look: views.Look) -> tuple[tuple[str, ...], dict[str, views.Row]]:
        """The columns and rows of the view."""
        wide = self.size.width >= NARROW
        if self._view == OVERVIEW:
            return views.overview(look, self.size.width, sort=self._sort, text=self._text)
        if self._view == "workloads":
            workloads = [each for each in look.workloads if self._text.lower() in f"{each.name} {each.state}".lower()]
            return views.WORKLOADS, {each.name: views.workload_row(each) for each in workloads}
        if self._view == "gpus":
            gpus = views.ordered(views.matching(look.gpus, self._text), self._sort)
            rows = {gpu.uuid: views.gpu_row(gpu, self._past.busy[gpu.uuid], wide=wide) for gpu in gpus}
            return (views.GPUS_WIDE if wide else views.GPUS), rows
        gpu = self._gpu(self._view)
        shares = [share for share in gpu.shares if self._text.lower() in share.tenant.lower()] if gpu else []
        assert gpu is not None or not shares
        rows = {share.tenant: views.share_row(gpu, share, wide=wide) for share in shares if gpu}
        return (views.TENANTS if wide else views.TENANTS[:6]), rows

    def _fill(self, columns: tuple[str, ...], rows: dict[str, views.Row]) -> None:
        """Change cells in place where rows are the same, else make the table anew with the cursor on its row.

        Widths are ours: the table measures only when it has nothing else to do, which on a busy machine may be never.
        """
        table = self.table
        keys = list(rows)
        # Never narrower than they were in this view, so that nothing jumps.
        before = self._widths if columns == self._columns else {}
        widths = {
            title: max([cell_len(title), before.get(title, 0), *(cell_len(str(row[n])) for row in rows.values())])
            for n, title in enumerate(columns)
        }
        if columns == self._columns and keys == self._keys and widths == self._widths:
            for key, row in rows.items():
                for column, cell, drawn in zip(columns, row, self._drawn[key], strict=True):
                    if cell != drawn:
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

    def _draw_detail(self) -> None:
        if self._look is None or not self.query("#detail"):
            return
        key, lines = self._current(), []
        box = views.DetailBox(self._look, self._past, self.size.width, high=self.size.height >= HIGH)
        if key is not None:
            boxes = {OVERVIEW: box.overview, "gpus": box.gpu, "workloads": box.workload}
            lines = boxes[self._view](key) if self._view in boxes else box.share(self._view, key)
        self.query_one("#detail", Static).update(_line("\n".join(lines) or "no tenants"))

    def _current(self) -> str | None:
        row = self.table.cursor_row
        return self._keys[row] if 0 <= row < len(self._keys) else None

    def _gpu(self, uuid: str) -> Gpu | None:
        return self._look.gpu(uuid) if self._look else None


def _line(text: str) -> Text:
    """Text whose lines are cut at the edge of the terminal instead of wrapped."""
    return Text(text, no_wrap=True, overflow="ellipsis")

"""What `aliquot top` lays over its table: the help, and the question before a workload is ended."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

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

    CSS = """
    Help { align: center middle; }
    Help > Static { width: 74; height: auto; max-height: 100%; border: solid $primary; background: $panel; }
    """

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(HELP, markup=False)

    def on_key(self) -> None:
        """Close."""
        self.dismiss(None)


class Sure(ModalScreen[bool]):
    """A question that only `y` answers with yes."""

    CSS = """
    Sure { align: center middle; }
    Sure > Static { width: auto; max-width: 100%; height: auto; border: solid $error; background: $panel; }
    """
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

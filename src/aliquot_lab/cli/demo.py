"""`aliquot demo`: demonstrate on this machine that shares are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.lazy import WholeSentences
from aliquot.cli.options import out_option, output_option

if TYPE_CHECKING:
    from aliquot_lab.bench.fig6 import Fig6Timeline, Phase, Report
    from aliquot_lab.bench.fig6_run import Watch


@click.group(cls=WholeSentences)
def demo() -> None:
    """Show what Aliquot does, with real CUDA programs.

    Example, a figure of KubeShare in under five minutes:
      aliquot demo fig6 --fast --out demo-out
    """


_emulate = click.option(
    "--emulate", metavar="PROFILE", help="Use an emulated GPU; v100 where there is no NVIDIA driver."
)
_out = out_option("Folder for the pictures.", default=Path("demo-out"))


@demo.command()
@click.option("--fast", is_flag=True, help="Under a minute: shorter phases and a window of 2 s, by the same clock.")
@_emulate
@output_option
@_out
def fig6(fast: bool, emulate: str | None, output: str, out: Path) -> None:
    """Fig. 6 of KubeShare: three tenants share one GPU and each gets its share.

    The exit status is 0 when every share is within 0.02, else 1.
    """
    from aliquot_lab.bench import fig6 as figure

    _play(figure.FAST if fast else figure.PAPER, "fig6", emulate, output, out)


@demo.command()
@_emulate
@output_option
@_out
def resize(emulate: str | None, output: str, out: Path) -> None:
    """A program's share goes from 0.3 to 0.6 and back while it runs, beside another whose share stays.

    The exit status is 0 when every share is within 0.02, else 1.
    """
    from aliquot_lab.bench.fig6 import RESIZE

    _play(RESIZE, "resize", emulate, output, out)


def _play(timeline: Fig6Timeline, name: str, emulate: str | None, output: str, out: Path) -> None:
    """Play, draw and print a timeline, and exit."""
    from aliquot_lab.bench.fig6_run import play

    with watching(silent=output == "json") as watch:
        report = play(timeline, emulate=emulate, watch=watch)
    sys.exit(tell(report, out, output, name))


@demo.command()
@click.option("--emulate", metavar="PROFILE", default="a100", show_default=True, help="The emulated GPU; of 40 GiB.")
@output_option
def notebooks(emulate: str, output: str) -> None:
    """Eight notebooks of 12 GiB on one GPU of 40 GiB, used in turn: idle ones make room.

    The exit status is 0 when each computed whenever it was used and found its memory as it was, else 1.
    """
    from aliquot_lab.bench import notebooks as demonstration

    _demonstrate(demonstration, emulate, output)


@demo.command()
@click.option("--emulate", metavar="PROFILE", default="h100", show_default=True, help="The emulated GPU; of 80 GiB.")
@output_option
def phases(emulate: str, output: str) -> None:
    """A trainer and an inference engine of 60 GiB take turns in a GPU of 80 GiB, for a minute.

    The exit status is 0 when both do 1.4 times the work of one after the other or more, else 1.
    """
    from aliquot_lab.bench import phases as demonstration

    _demonstrate(demonstration, emulate, output)


def _demonstrate(demonstration: Any, emulate: str, output: str) -> None:
    """Play and print the demonstration of a module, and exit."""
    with screen(silent=output == "json") as update:
        report = demonstration.play(emulate, lambda seen: update(demonstration.live(seen), demonstration.plain(seen)))
    facts = report.as_json()
    click.echo(json.dumps(facts, indent=2) if output == "json" else demonstration.verdict(report))
    sys.exit(0 if facts["kept"] else 1)


def tell(report: Report, out: Path, output: str, name: str = "fig6") -> int:
    """Draw and print a run, as text or json; the exit status."""
    from aliquot_lab.bench.chart import table
    from aliquot_lab.bench.plots import draw_fig6

    pictures = draw_fig6(report, out, name)
    if output == "json":
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        click.echo(table(report))
        click.echo(f"Pictures: {', '.join(map(str, pictures))}")
    return 0 if report.kept else 1


@contextmanager
def watching(*, silent: bool) -> Iterator[Watch]:
    """The display of a run: none, a refreshing chart on a terminal, otherwise a line for every four samples."""
    from aliquot_lab.bench import chart

    with screen(silent=silent) as update:

        def watch(report: Report, phase: Phase, end_s: float) -> None:
            is_due = len(report.usage) % 4 == 0
            update(chart.live(report, phase, end_s), chart.plain(report, phase, end_s) if is_due else "")

        yield watch


@contextmanager
def screen(*, silent: bool) -> Iterator[Callable[[str, str], None]]:
    """Shows the present picture on a terminal, in place of the one before; elsewhere the line, if there is one."""
    if silent:
        yield lambda _picture, _line: None
        return
    if not sys.stdout.isatty():
        yield lambda _picture, line: click.echo(line) if line else None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as shown:
        yield lambda picture, _line: shown.update(Text(picture, no_wrap=True), refresh=True)

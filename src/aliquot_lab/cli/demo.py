"""`aliquot demo`: demonstrate on this machine that shares are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aliquot.cli.lazy import WholeSentences
from aliquot.cli.options import out_option, output_option

if TYPE_CHECKING:
    from aliquot_lab.bench.fig6 import Phase, Report
    from aliquot_lab.bench.fig6_run import Watch


@click.group(cls=WholeSentences)
def demo() -> None:
    """Show what Aliquot does, with real CUDA programs."""


@demo.command()
@click.option("--fast", is_flag=True, help="Under a minute: shorter phases and a window of 2 s, by the same clock.")
@click.option("--emulate", metavar="PROFILE", help="Use an emulated GPU; v100 where there is no NVIDIA driver.")
@output_option
@out_option("Folder for the pictures.", default=Path("demo-out"))
def fig6(fast: bool, emulate: str | None, output: str, out: Path) -> None:
    """Fig. 6 of KubeShare: three tenants share one GPU and each gets its share.

    The exit status is 0 when every share is within 0.02, else 1.
    """
    from aliquot_lab.bench import fig6 as figure
    from aliquot_lab.bench.fig6_run import play

    timeline = figure.FAST if fast else figure.PAPER
    with watching(silent=output == "json") as watch:
        report = play(timeline, emulate=emulate, watch=watch)
    sys.exit(tell(report, out, output))


def tell(report: Report, out: Path, output: str) -> int:
    """Draw and print a run, as text or json; the exit status."""
    from aliquot_lab.bench.chart import table
    from aliquot_lab.bench.plots import draw_fig6

    pictures = draw_fig6(report, out)
    if output == "json":
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        click.echo(table(report))
        click.echo(f"Pictures: {', '.join(map(str, pictures))}")
    return 0 if report.kept else 1


@contextmanager
def watching(*, silent: bool) -> Iterator[Watch]:
    """The display of the run: none, a refreshing chart on a terminal, otherwise a line every few seconds."""
    from aliquot_lab.bench import chart

    if silent:
        yield lambda _report, _phase, _end_s: None
        return
    if not sys.stdout.isatty():
        yield _line_now_and_then
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as screen:
        yield lambda report, phase, end_s: screen.update(
            Text(chart.live(report, phase, end_s), no_wrap=True), refresh=True
        )


def _line_now_and_then(report: Report, phase: Phase, end_s: float) -> None:
    """One line for every four samples."""
    from aliquot_lab.bench.chart import plain

    if len(report.usage) % 4 == 0:
        click.echo(plain(report, phase, end_s))

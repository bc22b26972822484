"""GPU-hours on a terminal: the same sums as on the dashboard's page, for `aliquot get` and `kubectl aliquot get`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from aliquot.cli.forms import Form, text_of
from aliquot.cli.options import together
from aliquot.cli.tables import UNBOUNDED, Table, aligned, columns
from aliquot.model.errors import UserError

if TYPE_CHECKING:
    from aliquot.status import HourLine, Hours

HOURS: Final = "hours"
CSV: Final = "csv"
_FIELDS: Final = {"promised": "PROMISED", "used": "USED", "lent": "LENT", "idle": "IDLE"}
_WIDE: Final = {**_FIELDS, "borrowed": "BORROWED", "waited": "WAITED"}
_EVERY: Final = "namespace,controller,model"


hours_options = together(
    click.option("--since", default="", metavar="TIME",
                 help="Of hours: how far to look back, 15m to 30d. [default: 7d]"),
    click.option("--by", default="", metavar="NAMES",
                 help="Of hours: what they are summed by, some of namespace, controller and model with commas "
                 "between. [default: namespace,controller]"),
)  # fmt: skip


def refuse_hours_options(since: str, by: str, form: Form, kinds: Sequence[str]) -> None:
    """For other kinds.

    Raises:
        UserError: an option was given that is for hours only.
    """
    given = "--since" if since else "--by" if by else f"-o {CSV}" if form.word == CSV else ""
    if given:
        raise UserError(f"{given} is for hours; {', '.join(kinds)} are shown as they are now")


class HoursView:
    """What is shown of GPU-hours: `since` and `by` as the options have them, and one namespace or all."""

    def __init__(self, since: str, by: str, form: Form, namespace: str = "") -> None:
        """Check the options before anything is asked.

        Raises:
            UserError: one of them is unknown.
        """
        from aliquot.status.history import dimensions, hours_range

        hours_range(since, "--since")
        self.since = since
        self._by = dimensions(by or (_EVERY if form.word == "wide" else ""), "--by")
        self._form = form
        self._namespace = namespace

    def print(self, found: Hours) -> None:
        """Print them; what is missing, and from where they are, goes to stderr."""
        import msgspec

        from aliquot.status.history import as_csv, summed_by

        if self._namespace:
            mine = [line for line in found.lines if line.namespace == self._namespace]
            found = msgspec.structs.replace(found, lines=mine)
        found = summed_by(found, self._by)
        for text in filter(None, (found.note, found.source)):
            click.echo(f"aliquot: {text}", err=True)
        word, plain = self._form.word, msgspec.to_builtins(found)
        picked = self._form.picked(plain["lines"], plain)
        if picked is not None:
            click.echo(picked, nl=False)
        elif word == CSV:
            click.echo(as_csv(found, self._by), nl=False)
        elif word in ("json", "yaml"):
            click.echo(text_of(word, plain), nl=word == "json")
        elif not found.lines:
            where = f" in namespace {self._namespace}" if self._namespace else ""
            click.echo(f"no hours are recorded for this time{where}", err=True)
        else:
            table = hours_table(found, self._by, wide=word == "wide")
            width = UNBOUNDED if word == "wide" else columns()
            for line in aligned(table, right=range(len(self._by), len(table[0])), width=width):
                click.echo(line)
            since, until = (time.strftime("%Y-%m-%d %H:%M", time.gmtime(s)) for s in (found.since_s, found.until_s))
            click.echo(f"aliquot: GPU-hours from {since} to {until} UTC, in whole quarter hours", err=True)


def hours_table(found: Hours, by: Sequence[str], *, wide: bool = False) -> Table:
    """A row for each line, and the total."""
    from aliquot.status.history import format_hours, names_of

    fields = _WIDE if wide else _FIELDS

    def row(names: Sequence[str], line: HourLine) -> list[str]:
        return [*names, *(format_hours(getattr(line, field)) for field in fields)]

    head = [*(name.upper() for name in by), *fields.values()]
    total = row(["TOTAL", *[""] * (len(by) - 1)], found.total)
    return [head, *(row([name or "-" for name in names_of(line, by)], line) for line in found.lines), total]

"""Templates and how quantities read in them. Everything from outside is escaped; no template marks anything as safe
but blocks that were rendered here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aliquot.model.ages import format_age
from aliquot.model.quantities import format_mib, format_milli
from aliquot.status.history import format_hours

_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("aliquot.web"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


class Block(NamedTuple):
    """A part of a page that is updated by itself; its html is one element that carries `id`."""

    id: str
    html: Markup


def render(template: str, /, **values: Any) -> Markup:
    """A template filled in."""
    return Markup(_ENVIRONMENT.get_template(template).render(**values))


def block(block_id: str, template: str, /, **values: Any) -> Block:
    """A block from a template that puts `id` on its one element."""
    return Block(block_id, render(template, id=block_id, **values).strip())


def slug(text: str) -> str:
    """An element's id for any text: letters, digits and dashes stay, the rest becomes its code point."""
    return re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):x}_", text)


@cache
def asset(path: str) -> str:
    """The address of a static file, new whenever its content is."""
    content = (files("aliquot.web") / "static" / path).read_bytes()
    return f"/static/{path}?v={hashlib.sha256(content).hexdigest()[:12]}"


def gib(mib: float) -> str:
    """`6144` -> `6.0`: GiB without the unit."""
    return f"{mib / 1024:.1f}"


def size_unit(mib: float) -> str:
    """The unit in which an amount of memory is read: GiB, from 1 TiB on TiB."""
    return "TiB" if mib >= 1 << 20 else "GiB"


def size(mib: float, whole_mib: float | None = None) -> str:
    """`18680627` -> `17.8`: an amount in the unit of the whole that it belongs to."""
    by = 1 << 20 if size_unit(mib if whole_mib is None else whole_mib) == "TiB" else 1 << 10
    return f"{mib / by:,.1f}"


def count(number: int) -> str:
    """`18242` -> `18,242`."""
    return f"{number:,}"


def gpus(milli: float) -> str:
    """`812450` -> `812.5`: a sum of fractions; its decimals mean less the larger it is."""
    digits = 2 if milli < 10_000 else 1 if milli < 1_000_000 else 0
    return f"{milli / 1000:,.{digits}f}"


def clock_time(at_s: float) -> str:
    """A moment by this machine's clock, with its zone and, if it was another day, its date."""
    at = datetime.fromtimestamp(at_s, tz=UTC).astimezone()
    today = at.date() == datetime.now(tz=UTC).astimezone().date()
    return at.strftime("%H:%M:%S %Z" if today else "%Y-%m-%d %H:%M:%S %Z")


def used(milli: float) -> str:
    """`506` -> `0.51`: a measured fraction, to the two decimals that mean something."""
    return f"{milli / 1000:.2f}"


def percent(value: float | None) -> str:
    """`99.87` -> `99.8 %`; never rounded up to a promise that was not kept."""
    if value is None:
        return "–"
    return "100 %" if value >= 100 else f"{int(value * 10) / 10:.1f} %"


def moment(at_s: float) -> str:
    """`2026-03-01 14:05 UTC`."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def pairs(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Each text as its own label, for choices."""
    return [(text, text) for text in texts]


def address(path: str, /, **query: Any) -> str:
    """A path with the non-empty parts of a query."""
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


_ENVIRONMENT.filters |= {
    "milli": format_milli, "used": used, "mib": format_mib, "gib": gib, "percent": percent, "age": format_age,
    "hours": format_hours, "moment": moment, "part": quote, "slug": slug, "pairs": pairs,
    "count": count, "gpus": gpus, "size": size, "size_unit": size_unit,
    "clock_time": clock_time,
}  # fmt: skip
_ENVIRONMENT.globals |= {"asset": asset, "address": address}

"""The dashboard's options of `aliquot scheduler`, and the pages beside the program."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from aliquot.scheduler.program import Beside, Scheduler


@dataclass(frozen=True)
class Pages:
    """Where the dashboard is, by which names it may be addressed, and whose names it shows (None: everybody's)."""

    host: str
    port: int
    hosts: frozenset[str]
    namespaces: frozenset[str] | None


def pages_options(address: Callable[[str, str], tuple[str, int]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--web` and its company, handed to the command as `pages`; `address` reads HOST:PORT."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--web", default="", metavar="HOST:PORT", help="Serve the dashboard here. [default: nowhere]")
        @click.option("--web-host", multiple=True, metavar="NAME", help="Another name of the dashboard's server.")
        @click.option("--web-namespace", multiple=True, metavar="NAME", help="Show this namespace's names, no others.")
        @functools.wraps(command)
        def wrapped(
            *args: Any, web: str, web_host: tuple[str, ...], web_namespace: tuple[str, ...], **rest: Any
        ) -> Any:
            pages = None
            if web:
                host, port = address(web, "--web")
                pages = Pages(host, port, frozenset({host, *web_host}), frozenset(web_namespace) or None)
            return command(*args, pages=pages, **rest)

        return wrapped

    return decorate


def beside(pages: Pages | None) -> Beside:
    """What runs beside the scheduler program: the dashboard, or nothing."""

    @contextlib.asynccontextmanager
    async def with_pages(program: Scheduler) -> AsyncIterator[None]:
        if pages is None:
            yield
            return
        from aliquot.web.scheduler import dashboard_beside

        title = program.settings.context or "cluster"
        async with dashboard_beside(
            program, host=pages.host, port=pages.port, title=title, hosts=pages.hosts, namespaces=pages.namespaces
        ) as url:
            click.echo(f"dashboard at {url}", err=True)
            yield

    return with_pages

"""The dashboard's options of `aliquot scheduler`, and the pages beside the program."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aliquot.model.errors import UserError

if TYPE_CHECKING:
    from aliquot.scheduler.program import Beside, Scheduler

LOCAL: Final = ("127.0.0.1", "::1", "localhost")
ADDRESSES: Final = ("0.0.0.0", "::")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Pages:
    """The dashboard's address, the names it answers to, who sees what, and where agents are queried."""

    host: str
    port: int
    hosts: frozenset[str]
    namespaces: frozenset[str] | None
    tokens: bool
    tls: tuple[str, str] | None
    agent_port: int
    history: Path | None
    history_bytes: int
    prometheus: str


def pages_options(address: Callable[[str, str], tuple[str, int]]) -> Decorator:
    """`--web` and its company, handed to the command as `pages`; `address` reads HOST:PORT."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(*args: Any, **given: Any) -> Any:
            own = {name: given.pop(name) for name in list(given) if name == "web" or name.startswith("web_")}
            return command(*args, pages=_pages(address, **own), **given)

        made: Any = wrapped
        for option in reversed(_OPTIONS):
            made = option(made)
        return made  # type: ignore[no-any-return]

    return decorate


_OPTIONS: Final[tuple[Decorator, ...]] = (
    click.option("--web", default="", metavar="HOST:PORT", help="Serve the dashboard here. [default: nowhere]"),
    click.option("--web-host", multiple=True, metavar="NAME", help="Another name of the dashboard's server."),
    click.option(
        "--web-access",
        type=click.Choice(["open", "token"]),
        default=None,
        help="Access to the dashboard: open to every client, or by a token of the cluster, which shows what Kubernetes "
        "lets its owner list. [default: open on a loopback address, token elsewhere]",
    ),
    click.option("--web-namespace", multiple=True, metavar="NAME", help="Show this namespace's names only (open)."),
    click.option("--web-tls-cert", default="", type=click.Path(), help="Serve the dashboard over https with this."),
    click.option("--web-tls-key", default="", type=click.Path(), help="Key of that certificate."),
    click.option(
        "--web-agent-port",
        type=click.IntRange(0, 65535),
        default=5678,
        show_default=True,
        help="Port of the nodes' agents, which report the use; 0 queries none.",
    ),
    click.option(
        "--web-history",
        default="",
        type=click.Path(dir_okay=False),
        help="File of the dashboard's history of 30 days. [default: none; two hours in memory]",
    ),
    click.option(
        "--web-history-mib",
        type=click.IntRange(16, 1 << 20),
        default=2048,
        show_default=True,
        help="The largest size of that file; the oldest is deleted first.",
    ),
    click.option(
        "--web-prometheus",
        default="",
        metavar="URL",
        help="Read GPU-hours from this Prometheus, which evaluates deploy/grafana/aliquot-recording.yaml.",
    ),
)


def _pages(
    address: Callable[[str, str], tuple[str, int]],
    *,
    web: str,
    web_host: tuple[str, ...],
    web_access: str | None,
    web_namespace: tuple[str, ...],
    web_tls_cert: str,
    web_tls_key: str,
    web_agent_port: int,
    web_history: str,
    web_history_mib: int,
    web_prometheus: str,
) -> Pages | None:
    if not web:
        return None
    host, port = address(web, "--web")
    tokens = web_access == "token" or (web_access is None and host not in LOCAL)
    if tokens and web_namespace:
        raise UserError(
            "--web-namespace is for --web-access open; with token each viewer sees what Kubernetes lets them list"
        )
    hosts = frozenset(web_host) | (frozenset() if host in ADDRESSES else frozenset({host}))
    tls = tls_files("--web-tls", web_tls_cert, web_tls_key)
    history = Path(web_history) if web_history else None
    prometheus = _checked_prometheus(web_prometheus)
    return Pages(
        host, port, hosts, frozenset(web_namespace) or None, tokens, tls, web_agent_port,
        history, web_history_mib << 20, prometheus,
    )  # fmt: skip


def _checked_prometheus(url: str) -> str:
    if not url:
        return ""
    from aliquot.web.history_prometheus import checked_url

    return checked_url(url, "--web-prometheus")


def tls_files(option: str, cert: str, key: str) -> tuple[str, str] | None:
    """The two files of `option`-cert and `option`-key; None without them.

    Raises:
        UserError: one of the two is missing.
    """
    if bool(cert) != bool(key):
        raise UserError(f"{option}-cert and {option}-key come together; give both or none")
    return (cert, key) if cert else None


def _how(pages: Pages) -> str:
    """What else a viewer must know to sign in."""
    if pages.tokens and not pages.tls and pages.host not in LOCAL:
        return " (a token is taken over https and at localhost only)"
    return ""


def beside(pages: Pages | None) -> Beside:
    """The programs that run beside the scheduler: the dashboard, or none."""

    @contextlib.asynccontextmanager
    async def with_pages(program: Scheduler) -> AsyncIterator[None]:
        if pages is None:
            yield
            return
        from aliquot.web.scheduler import WebSettings, dashboard_beside

        settings = WebSettings(
            host=pages.host,
            port=pages.port,
            title=program.settings.context or "cluster",
            hosts=pages.hosts,
            namespaces=pages.namespaces,
            tokens=pages.tokens,
            tls=pages.tls,
            namespace=program.settings.operator.namespace,
            agent_port=pages.agent_port,
            history=pages.history,
            history_bytes=pages.history_bytes,
            prometheus=pages.prometheus,
        )
        async with dashboard_beside(program, settings) as url:
            click.echo(f"dashboard at {url}{_how(pages)}", err=True)
            yield

    return with_pages

"""`aliquot scheduler`: the extender beside the stock kube-scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from aliquot.cli.options import otlp_option
from aliquot.cli.settings import settings_options
from aliquot.scheduler.settings import LOOPBACK, SchedulerSettings, address

if TYPE_CHECKING:
    from aliquot.scheduler.program import Scheduler
    from aliquot.web.scheduler import WebSettings

ANY_ADDRESS: Final = ("0.0.0.0", "::")


@click.command()
@settings_options(SchedulerSettings, "a scheduler", otlp_endpoint=otlp_option)
@click.option("--print-kube-scheduler-config", is_flag=True, help="Print kube-scheduler's configuration, and end.")
@click.option("--url", default="", help="For --print-kube-scheduler-config: how kube-scheduler reaches the extender.")
@click.option("--ca-file", default="", help="For --print-kube-scheduler-config: CA of the extender's certificate.")
def scheduler(settings: SchedulerSettings, print_kube_scheduler_config: bool, url: str, ca_file: str) -> None:
    """Answer the stock kube-scheduler: which nodes fit, which is best, which pods to evict; and bind with the plan."""
    if print_kube_scheduler_config:
        import yaml

        from aliquot.scheduler.config import kube_scheduler_config

        where = url or f"{'https' if settings.tls_cert else 'http'}://{settings.bind}"
        click.echo(yaml.safe_dump(kube_scheduler_config(where, ca_file=ca_file), sort_keys=False), nl=False)
        return
    import asyncio

    from aliquot.driver.policies import maker
    from aliquot.lib.log import set_up_log
    from aliquot.placement.pool_policy import pool_policy
    from aliquot.scheduler.program import serve

    maker(settings.policy)()
    pool_policy(settings.pool)
    if settings.web:
        web_settings(settings)
    set_up_log(settings.log_format)
    tell = partial(click.echo, err=True)
    asyncio.run(serve(settings, lambda where: tell(f"aliquot scheduler listens on {where}"), dashboard))


@contextlib.asynccontextmanager
async def dashboard(program: Scheduler) -> AsyncIterator[None]:
    """The pages beside the scheduler, if there are to be any."""
    if not program.settings.web:
        yield
        return
    from aliquot.web.scheduler import dashboard_beside

    settings = web_settings(program.settings)
    async with dashboard_beside(program, settings) as url:
        insecure = settings.tokens and not settings.tls and settings.host not in LOOPBACK
        click.echo(
            f"dashboard at {url}{' (a token is taken over https and at localhost only)' if insecure else ''}", err=True
        )
        yield


def web_settings(settings: SchedulerSettings) -> WebSettings:
    """What of the scheduler's settings the dashboard is given."""
    from aliquot.web.scheduler import WebSettings

    host, port = address(settings.web, "--web")
    return WebSettings(
        host=host,
        port=port,
        title=settings.context or "cluster",
        hosts=frozenset(settings.web_host) | (frozenset() if host in ANY_ADDRESS else frozenset({host})),
        namespaces=frozenset(settings.web_namespace) or None,
        tokens=settings.web_tokens,
        tls=(settings.web_tls_cert, settings.web_tls_key) if settings.web_tls_cert else None,
        namespace=settings.namespace,
        agent_port=settings.web_agent_port,
        history=Path(settings.web_history) if settings.web_history else None,
        history_bytes=settings.web_history_mib << 20,
        prometheus=settings.web_prometheus.rstrip("/"),
    )

"""`aliquot scheduler`: the extender beside the stock kube-scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

import click

from aliquot.cli.options import otlp_option
from aliquot.cli.settings import settings_options
from aliquot.scheduler.settings import LOOPBACK, SchedulerSettings, address

if TYPE_CHECKING:
    from aliquot.scheduler.program import Scheduler


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
    set_up_log(settings.log_format)
    tell = partial(click.echo, err=True)
    asyncio.run(serve(settings, lambda where: tell(f"aliquot scheduler listens on {where}"), dashboard))


@contextlib.asynccontextmanager
async def dashboard(program: Scheduler) -> AsyncIterator[None]:
    """The pages beside the scheduler, if there are to be any."""
    settings = program.settings
    if not settings.web:
        yield
        return
    from aliquot.cli.scheduler_dashboard import dashboard_beside

    async with dashboard_beside(program) as url:
        host, _ = address(settings.web, "--web")
        insecure = settings.web_tokens and not settings.web_tls_cert and host not in LOOPBACK
        click.echo(
            f"dashboard at {url}{' (a token is taken over https and at localhost only)' if insecure else ''}", err=True
        )
        yield

"""`aliquot scheduler`: the extender beside the stock kube-scheduler."""

from __future__ import annotations

from functools import partial

import click

from aliquot.cli.options import otlp_option
from aliquot.cli.scheduler_lead import Lead, lead_options
from aliquot.cli.scheduler_pages import Pages, beside, pages_options, tls_files
from aliquot.cli.scheduler_webhook import WebhookOptions, webhook_options
from aliquot.model.errors import UserError


class BadAddress(UserError):
    """An address to listen on that is none."""


@click.command()
@click.option("--bind", default="127.0.0.1:8770", show_default=True, help="Where to listen; port 0 chooses a free one.")
@click.option("--kubeconfig", default="", type=click.Path(), help="Instead of the pod's account and KUBECONFIG.")
@click.option("--context", default="", help="Context of the kubeconfig.")
@click.option("--policy", default="aliquot", show_default=True, help="Placement policy by name.")
@click.option("--seed", default=0, show_default=True, help="For policies that roll dice.")
@click.option("--tls-cert", default="", type=click.Path(), help="Serve https with this certificate.")
@click.option("--tls-key", default="", type=click.Path(), help="Key of the certificate.")
@click.option("--client-ca", default="", type=click.Path(), help="Answer only clients with a certificate of this CA.")
@lead_options
@click.option(
    "--aliyun-unit", type=click.Choice(["GiB", "MiB"]), default="GiB", show_default=True, help="Of aliyun.com/gpu-mem."
)
@click.option(
    "--gpus",
    "mode",
    type=click.Choice(["own", "coexist"]),
    default="own",
    show_default=True,
    help="Owner of the GPUs: Aliquot's device plugin, or the stock one, from which holder pods take them.",
)
@click.option(
    "--pool", default="on-demand", show_default=True, help="Idle vGPUs: on-demand, reservation:N, hybrid:SECONDS."
)
@click.option(
    "--namespace",
    default="kube-system",
    show_default=True,
    help="Where holder pods and certificates are.",
)
@click.option("--holder-image", default="", help="Image of holder pods, which must sleep (coexist).")
@webhook_options(lambda text, option: _address(text, option))
@pages_options(lambda text, option: _address(text, option))
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="How to log, on stderr.",
)  # fmt: skip
@otlp_option
@click.option("--print-kube-scheduler-config", is_flag=True, help="Print kube-scheduler's configuration, and end.")
@click.option("--url", default="", help="For --print-kube-scheduler-config: how kube-scheduler reaches the extender.")
@click.option("--ca-file", default="", help="For --print-kube-scheduler-config: CA of the extender's certificate.")
def scheduler(
    bind: str,
    kubeconfig: str,
    context: str,
    policy: str,
    seed: int,
    tls_cert: str,
    tls_key: str,
    client_ca: str,
    lead: Lead,
    aliyun_unit: str,
    mode: str,
    pool: str,
    namespace: str,
    holder_image: str,
    hook: WebhookOptions,
    pages: Pages | None,
    log_format: str,
    otlp_endpoint: str | None,
    print_kube_scheduler_config: bool,
    url: str,
    ca_file: str,
) -> None:
    """Answer the stock kube-scheduler: which nodes fit, which is best, which pods to evict; and bind with the plan."""
    host, port = _address(bind)
    if print_kube_scheduler_config:
        _print_config(url or f"{'https' if tls_cert else 'http'}://{host}:{port}", ca_file)
        return
    import asyncio

    from aliquot.driver.policies import maker
    from aliquot.lib.log import set_up_log
    from aliquot.lib.package import version
    from aliquot.placement.pool_policy import pool_policy
    from aliquot.scheduler.operator.program import OperatorSettings
    from aliquot.scheduler.pool.owners import PAUSE
    from aliquot.scheduler.program import SchedulerSettings, serve

    if not tls_files("--tls", tls_cert, tls_key) and client_ca:
        raise UserError("--client-ca is for https; give --tls-cert and --tls-key too")
    maker(policy)()
    pool_policy(pool)
    lead.check(port)
    set_up_log(log_format)
    settings = SchedulerSettings(
        kubeconfig=kubeconfig,
        context=context,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        policy=policy,
        seed=seed,
        lead=lead.elect,
        identity=lead.identity,
        lease_namespace=lead.namespace,
        leader_service=lead.service,
        leader_address=lead.address,
        aliyun_unit="MiB" if aliyun_unit == "MiB" else "GiB",
        version=version(),
        otlp_endpoint=otlp_endpoint or "",
        operator=OperatorSettings(mode, pool, namespace, holder_image or PAUSE),
        webhook=hook.settings(namespace),
    )
    tell = partial(click.echo, err=True)
    asyncio.run(serve(settings, lambda where: tell(f"aliquot scheduler listens on {where}"), beside(pages)))


def _address(text: str, option: str = "--bind") -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise BadAddress(f'{option} "{text}" is not an address; write HOST:PORT as in 0.0.0.0:8770')
    return host.strip("[]"), int(port)


def _print_config(url: str, ca_file: str) -> None:
    import yaml

    from aliquot.scheduler.config import kube_scheduler_config

    click.echo(yaml.safe_dump(kube_scheduler_config(url, ca_file=ca_file), sort_keys=False), nl=False)

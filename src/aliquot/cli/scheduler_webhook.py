"""The options of `aliquot scheduler` about its admission webhook."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from aliquot.scheduler.webhook.server import WebhookSettings

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Address = Callable[[str, str], tuple[str, int]]


@dataclass(frozen=True)
class WebhookOptions:
    """Where the webhook listens, its name, and the defaults that it writes into pods."""

    host: str
    port: int
    service: str
    names: tuple[str, ...]
    default_limit_milli: int | None
    pod_scheduler: str
    gpushare_inspect: bool

    def settings(self, namespace: str) -> WebhookSettings:
        """Options for a webhook whose certificate is kept in `namespace`."""
        from aliquot.scheduler.webhook.server import WebhookSettings

        return WebhookSettings(
            self.host,
            self.port,
            namespace,
            self.service,
            self.names,
            self.default_limit_milli,
            self.pod_scheduler,
            self.gpushare_inspect,
        )


def webhook_options(address: Address) -> Decorator:
    """The options, handed to the command as `hook`; `address` reads HOST:PORT of an option."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(
            *args: Any,
            webhook: str,
            webhook_service: str,
            webhook_name: tuple[str, ...],
            default_gpu_limit: str,
            pod_scheduler: str,
            gpushare_inspect: bool,
            **given: Any,
        ) -> Any:
            from aliquot.model.quantities import parse_milli

            host, port = address(webhook, "--webhook") if webhook else ("", -1)
            limit = parse_milli(default_gpu_limit) if default_gpu_limit else None
            hook = WebhookOptions(host, port, webhook_service, webhook_name, limit, pod_scheduler, gpushare_inspect)
            return command(*args, hook=hook, **given)

        made: Any = wrapped
        for option in reversed(_OPTIONS):
            made = option(made)
        return made  # type: ignore[no-any-return]

    return decorate


_OPTIONS: Final[tuple[Decorator, ...]] = (
    click.option("--webhook", default="", help="HOST:PORT of the admission webhook; without it there is none."),
    click.option("--webhook-service", default="aliquot-webhook", show_default=True, help="The Service in front of it."),
    click.option("--webhook-name", multiple=True, help="Further names or addresses that its certificate is for."),
    click.option("--default-gpu-limit", default="", help="gpu-limit of pods that specify none, as 0.5; 1 without it."),
    click.option(
        "--pod-scheduler",
        default="",
        help="schedulerName of pods that request a GPU and name no scheduler; without it they keep the default one.",
    ),
    click.option(
        "--gpushare-inspect",
        is_flag=True,
        help="Keep aliyun.com/gpu-mem on pods for kubectl inspect gpushare; nodes must offer it (aliquot node).",
    ),
)

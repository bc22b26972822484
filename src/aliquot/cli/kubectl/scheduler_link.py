"""Access to the scheduler's own pages through the API server's service proxy, so that no port has to be opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from aliquot.kube.api import Api
from aliquot.kube.errors import BadAnswer
from aliquot.model.errors import UserError

SERVICE: Final = "aliquot-system/aliquot-scheduler:8770"


@dataclass(frozen=True)
class Link:
    """The scheduler's service, as the API server's proxy names it."""

    namespace: str
    service: str
    port: str
    secure: bool

    @classmethod
    def of(cls, text: str) -> Link:
        """From `namespace/service:port`, with `https:` before the service where it speaks TLS.

        Raises:
            UserError: it is not in that form.
        """
        namespace, slash, rest = text.partition("/")
        secure = rest.startswith("https:")
        service, colon, port = rest.removeprefix("https:").partition(":")
        if not (slash and colon and namespace and service and port):
            raise UserError(f'--scheduler "{text}" names no service; write NAMESPACE/SERVICE:PORT as in {SERVICE}')
        return cls(namespace, service, port, secure)

    def path(self, page: str) -> str:
        """Where the API server has the page."""
        name = f"{'https:' if self.secure else ''}{self.service}:{self.port}"
        return f"/api/v1/namespaces/{self.namespace}/services/{name}/proxy{page}"

    async def text(self, api: Api, page: str) -> str:
        """A page of the scheduler.

        Raises:
            KubeError: the API server has no such service, refuses the proxy request, or gets no answer.
        """
        return (await api.request("GET", self.path(page), timeout_s=5.0)).decode("utf-8", "replace")

    async def json(self, api: Api, page: str) -> Any:
        """The same, decoded."""
        try:
            return msgspec.json.decode(await self.text(api, page))
        except msgspec.DecodeError as error:
            raise BadAnswer(f"{self.path(page)} is not JSON: {error}") from None


scheduler_option = click.option(
    "--scheduler",
    default=SERVICE,
    show_default=True,
    metavar="NAMESPACE/SERVICE:PORT",
    help="The scheduler's service; https: before SERVICE where it speaks TLS.",
)

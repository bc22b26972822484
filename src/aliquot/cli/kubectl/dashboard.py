"""What the cluster's dashboard knows and nothing else does, read with the rights of its caller.

The dashboard is reached through `kubectl port-forward`, or at an address. It wants a token of the cluster, as a viewer
with a browser gives it: that of the kubeconfig, or another where the kubeconfig has a certificate instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import click
import httpx2
import msgspec

from aliquot.cli.kubectl.scene import NoAnswer, Target
from aliquot.cli.options import together
from aliquot.model.errors import UserError
from aliquot.status import Hours

SERVICE: Final = "aliquot-system/aliquot-dashboard:80"
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
FORWARD_S: Final = 15.0
ANSWER_S: Final = 30.0
_FORWARDING: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")


dashboard_options = together(
    click.option("--dashboard", default=SERVICE, show_default=True, metavar="SERVICE|URL",
                 envvar="ALIQUOT_DASHBOARD", show_envvar=True,
                 help="Of hours: the dashboard's NAMESPACE/SERVICE:PORT, or its address."),
    click.option("--token", default="", metavar="TOKEN", envvar="ALIQUOT_DASHBOARD_TOKEN", show_envvar=True,
                 help="Of hours: a token of the cluster. [default: the kubeconfig's]"),
)  # fmt: skip


async def read_hours(target: Target, since: str, dashboard: str, token: str) -> Hours:
    """GPU-hours as the caller may see them.

    Raises:
        NoAnswer: the dashboard cannot be reached, or wants a token that the caller does not have.
        UserError: `dashboard` names none.
    """
    async with target.connect() as api:
        auth: Any = _bearer(token) if token else api.http.auth
    async with _reached(target, dashboard) as url:
        if auth is not None:
            _require_private(url, dashboard)
        params = {"range": since} if since else {}
        try:
            async with httpx2.AsyncClient(auth=auth, timeout=ANSWER_S, trust_env=False) as client:
                answer = await client.get(f"{url}/api/v1/hours", params=params)
        except httpx2.HTTPError as error:
            raise NoAnswer(f"the dashboard does not answer at {url}: {str(error) or type(error).__name__}") from None
    return _hours(answer, auth is not None)


def _bearer(token: str) -> Callable[[httpx2.Request], httpx2.Request]:
    """What puts a token into requests."""

    def signed(request: httpx2.Request) -> httpx2.Request:
        request.headers["authorization"] = f"Bearer {token}"
        return request

    return signed


def _hours(answer: httpx2.Response, with_token: bool) -> Hours:
    if answer.status_code == 200:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(answer.content, type=Hours)
        raise NoAnswer("the dashboard's answer cannot be read; it may be of another version")
    try:
        why = str(msgspec.json.decode(answer.content)["error"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        why = f"status {answer.status_code}"
    if answer.status_code == 401 and not with_token:
        raise NoAnswer(
            "the dashboard wants a token and the kubeconfig has none; give one: "
            'ALIQUOT_DASHBOARD_TOKEN="$(kubectl create token ACCOUNT)" kubectl aliquot get hours'
        )
    raise NoAnswer(f"the dashboard refuses: {why}")


def _require_private(url: str, dashboard: str) -> None:
    """Refuse to send a token where others could read it.

    Raises:
        UserError: the address is neither https nor on this machine.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise UserError(f'--dashboard "{dashboard:.80}" is http, where others could read your token; use https')


@contextlib.asynccontextmanager
async def _reached(target: Target, dashboard: str) -> AsyncIterator[str]:
    """The dashboard's address without a slash at its end, for as long as it can be used."""
    if dashboard.startswith(("http://", "https://")):
        yield dashboard.rstrip("/")
        return
    namespace, slash, rest = dashboard.partition("/")
    service, colon, port = rest.partition(":")
    if not (slash and colon and namespace and service and port):
        raise UserError(f'--dashboard "{dashboard:.80}" is no service; write NAMESPACE/SERVICE:PORT or https://HOST')
    which = [*(["--kubeconfig", target.kubeconfig] if target.kubeconfig else []),
             *(["--context", target.context] if target.context else [])]  # fmt: skip
    words = [*which, "-n", namespace, "port-forward", "--address", "127.0.0.1", f"service/{service}", f":{port}"]
    try:
        pipe = asyncio.subprocess.PIPE
        forward = await asyncio.create_subprocess_exec("kubectl", *words, stdin=None, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise NoAnswer(
            "kubectl is not on the PATH; install it, or name the dashboard's address with --dashboard"
        ) from None
    try:
        yield f"http://127.0.0.1:{await _forwarded(forward, dashboard)}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            forward.terminate()
        await forward.wait()


async def _forwarded(forward: asyncio.subprocess.Process, dashboard: str) -> int:
    assert forward.stdout is not None and forward.stderr is not None
    try:
        async with asyncio.timeout(FORWARD_S):
            if found := _FORWARDING.match(await forward.stdout.readline()):
                return int(found[1])
            why = (await forward.stderr.read()).decode("utf-8", "replace").strip().splitlines()
    except TimeoutError:
        why = [f"it took longer than {FORWARD_S:g} s"]
    reason = why[-1].removeprefix("error: ").removeprefix("Error from server (NotFound): ") if why else "it ended"
    serve = "; the chart serves it with web.enabled=true, elsewhere name it with --dashboard"
    served = "" if "not found" not in reason else serve
    raise NoAnswer(f"the dashboard {dashboard} cannot be reached by kubectl port-forward: {reason}{served}")

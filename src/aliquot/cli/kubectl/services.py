"""Our own programs in a cluster: the scheduler and the agents through the API server's proxy, and the dashboard.

The proxy needs no open port. The dashboard is reached through `kubectl port-forward`, or at an address, and read with
the rights of its caller. It wants a token of the cluster, as a viewer with a browser gives it: that of the kubeconfig,
or another where the kubeconfig has a certificate instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click
import httpx2
import msgspec

from aliquot.cli.kubectl.scene import ClusterScene, NoAnswer, Target
from aliquot.cli.options import together
from aliquot.kube.api import Api
from aliquot.kube.claims import ResourceClaim
from aliquot.kube.errors import BadAnswer, KubeError
from aliquot.kube.objects import Pod
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import UserError
from aliquot.scheduler.agents import PAGE, NodeMeasure, UnreadableReport, is_agent, measure_of, read_report, tenant_key
from aliquot.scheduler.cluster_source import NO_AGENT
from aliquot.status.tenants import TenantStatus

T = TypeVar("T")
SCHEDULER: Final = "aliquot-system/aliquot-scheduler:8770"
DASHBOARD: Final = "aliquot-system/aliquot-dashboard:80"
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
FORWARD_S: Final = 15.0
ANSWER_S: Final = 30.0
MAX_NAMES: Final = 3
_FORWARDING: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")

scheduler_option = click.option(
    "--scheduler",
    default=SCHEDULER,
    show_default=True,
    metavar="NAMESPACE/SERVICE:PORT",
    help="The scheduler's service; https: before SERVICE where it speaks TLS.",
)
dashboard_options = together(
    click.option("--dashboard", default=DASHBOARD, show_default=True, metavar="SERVICE|URL",
                 envvar="ALIQUOT_DASHBOARD", show_envvar=True,
                 help="The dashboard's NAMESPACE/SERVICE:PORT, or its address."),
    click.option("--token", default="", metavar="TOKEN", envvar="ALIQUOT_DASHBOARD_TOKEN", show_envvar=True,
                 help="For the dashboard: a token of the cluster. [default: the kubeconfig's]"),
)  # fmt: skip


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
        namespace, _, rest = text.partition("/")
        secure = rest.startswith("https:")
        service, _, port = rest.removeprefix("https:").partition(":")
        if not (namespace and service and port):
            raise UserError(f'--scheduler "{text}" names no service; write NAMESPACE/SERVICE:PORT as in {SCHEDULER}')
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


@dataclass
class Usage:
    """The measurements of each node's agent, and why nodes did not answer, by their name."""

    nodes: dict[str, NodeMeasure] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)

    def of(self, node: str, uuid: str, tenant: str, claim: ResourceClaim | None = None) -> TenantStatus | None:
        """A tenant's use by its name in the ledger, and its claim; None where its node does not know it."""
        measure = self.nodes.get(node)
        gpu = measure.gpus.get(uuid) if measure else None
        return gpu.of(tenant_key(tenant, claim)) if gpu else None

    def unknown(self) -> Iterator[str]:
        """Where the use is not known and why, a sentence for each reason."""
        nodes = defaultdict(list)
        for node, why in sorted(self.silent.items()):
            nodes[why].append(node)
        for why, names in nodes.items():
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            yield f"use is not known on {', '.join(names[:MAX_NAMES])}{more}: {why}"


async def read_usage(target: Target, scene: ClusterScene, port: int, only: Collection[str] = ()) -> Usage:
    """Query the agent of every node with GPUs, or of `only` these, at once; one that does not answer is named and does
    no harm.
    """
    usage = Usage(silent=dict.fromkeys(only or scene.ledger.cluster.index, NO_AGENT))
    async with target.connect() as api:

        async def query(pod: Pod) -> None:
            node = pod.spec.node_name
            try:
                usage.nodes[node] = measure_of(read_report(await api.request("GET", proxied(pod, port), timeout_s=5.0)))
                usage.silent.pop(node, None)
            except (KubeError, UnreadableReport) as error:
                usage.silent[node] = str(error)

        agents = [pod for pod in scene.pods if is_agent(pod) and (not only or pod.spec.node_name in only)]
        await asyncio.gather(*map(query, agents))
    return usage


def proxied(pod: Pod, port: int) -> str:
    """Where the API server has the page of an agent."""
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}:{port}/proxy{PAGE}"


async def read_past(target: Target, page: str, answer: type[T], since: str, dashboard: str, token: str) -> T:
    """A page of the dashboard's API about the past, as the caller may see it.

    Raises:
        NoAnswer: the dashboard cannot be reached, or wants a token that the caller does not have.
        UserError: `dashboard` names none, or is an address where others could read the token.
    """

    def signed(request: httpx2.Request) -> httpx2.Request:
        request.headers["authorization"] = f"Bearer {token}"
        return request

    async with target.connect() as api:
        auth: Any = signed if token else api.http.auth
    async with _forwarded(target, dashboard) as url:
        parts = urlsplit(url)
        if auth is not None and parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise UserError(f'--dashboard "{dashboard:.80}" is http, where others could read your token; use https')
        try:
            async with httpx2.AsyncClient(auth=auth, timeout=ANSWER_S, trust_env=False) as client:
                got = await client.get(f"{url}/api/v1/{page}", params={"range": since} if since else {})
        except httpx2.HTTPError as error:
            raise NoAnswer(f"the dashboard does not answer at {url}: {str(error) or type(error).__name__}") from None
    if got.status_code == 200:
        with contextlib.suppress(msgspec.MsgspecError):
            return decode_json(got.content, answer)
        raise NoAnswer("the dashboard's answer cannot be read; it may be of another version")
    if got.status_code == 401 and auth is None:
        raise NoAnswer(
            "the dashboard wants a token and the kubeconfig has none; give one: "
            'ALIQUOT_DASHBOARD_TOKEN="$(kubectl create token ACCOUNT)" kubectl aliquot get hours'
        )
    try:
        why = str(msgspec.json.decode(got.content)["error"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        why = f"status {got.status_code}"
    raise NoAnswer(f"the dashboard refuses: {why}")


@contextlib.asynccontextmanager
async def _forwarded(target: Target, dashboard: str) -> AsyncIterator[str]:
    """The dashboard's address without a slash at its end, for as long as it can be used."""
    if dashboard.startswith(("http://", "https://")):
        yield dashboard.rstrip("/")
        return
    namespace, _, rest = dashboard.partition("/")
    service, _, port = rest.partition(":")
    if not (namespace and service and port):
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
    assert forward.stdout is not None and forward.stderr is not None
    listening, why = None, f"it took longer than {FORWARD_S:g} s"
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FORWARD_S):
                if (listening := _FORWARDING.match(await forward.stdout.readline())) is None:
                    said = (await forward.stderr.read()).decode("utf-8", "replace").strip() or "it ended"
                    why = said.splitlines()[-1]
        if listening is None:
            reason = why.removeprefix("error: ").removeprefix("Error from server (NotFound): ")
            serve = "; the chart serves it with web.enabled=true, elsewhere name it with --dashboard"
            hint = serve if "not found" in reason else ""
            raise NoAnswer(f"the dashboard {dashboard} cannot be reached by kubectl port-forward: {reason}{hint}")
        yield f"http://127.0.0.1:{int(listening[1])}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            forward.terminate()
        await forward.wait()

"""The cluster read from its API server: nodes, pods and our own objects, and the ledger made from them.

The options that every command has say which cluster and which namespace of it (`Target`).

Our own programs are not queried, so these commands work while the scheduler is down; a pod's plan is in its annotation,
a node's inventory in the node's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Final, TypeVar

import click
import msgspec

from aliquot.cli.options import together
from aliquot.driver.policies import maker
from aliquot.kube.api import Api, ClientLimits
from aliquot.kube.claims import RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from aliquot.kube.custom import GPUQUOTAS, SHAREPODS, VGPU, VGPUS, GPUQuota, SharePod
from aliquot.kube.errors import BadAnswer, Forbidden, Gone, KubeError, NotFound
from aliquot.kube.objects import NODES, PODS, HasMeta, Meta, Node, Pod, Resource
from aliquot.kube.quotas import quotas_of
from aliquot.kube.reflector import Change
from aliquot.model.ages import format_age
from aliquot.model.errors import AliquotError
from aliquot.placement.quota import Quotas
from aliquot.placement.read_model import ledger_facts, ledger_gpus
from aliquot.scheduler.ledger import Ledger

T = TypeVar("T", bound=HasMeta)
R = TypeVar("R")
Command = TypeVar("Command", bound=Callable[..., Any])
PAGE: Final = 500
LIMITS: Final = ClientLimits(tries=2, wait_first_s=0.1, wait_max_s=1.0)
"""A person waits: two tries, not a minute of them."""


class NoAnswer(AliquotError):
    """The API server is not reachable."""


@dataclass(frozen=True)
class Target:
    """Which cluster, and which namespace of it; `namespace` empty means the kubeconfig's own, `everywhere` all."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    everywhere: bool = False

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of asking.

        Raises:
            NoAnswer: the API server refused or did not answer.
        """
        try:
            return asyncio.run(work)
        except KubeError as error:
            raise NoAnswer(str(error)) from None

    def connect(self) -> Api:
        """The way to the API server.

        Raises:
            BadKubeConfig: no kubeconfig was found.
        """
        return Api.connect(self.kubeconfig, self.context, limits=LIMITS)

    def scope(self, api: Api) -> str:
        """The namespace to show; empty for all."""
        return "" if self.everywhere else self.namespace or api.namespace


_TARGET = together(
    click.option("--kubeconfig", default="", metavar="FILE", help="Instead of KUBECONFIG and ~/.kube/config."),
    click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig."),
    click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace. [default: the context's]"),
    click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces."),
)


def target_options(command: Command) -> Command:
    """`--kubeconfig`, `--context`, `-n` and `-A`, as kubectl has them; the command gets one Target."""

    @wraps(command)
    def with_target(*args: Any, kubeconfig: str, context: str, namespace: str, everywhere: bool, **rest: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context, namespace, everywhere), **rest)

    return _TARGET(with_target)  # type: ignore[return-value]


agent_port_option = click.option("--agent-port", default=5678, show_default=True, help="Port of the nodes' agents.")
form_option = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["text", "wide", "json", "yaml"]),
    default="text",
    help="How to print; json and yaml are for programs.",
)


@dataclass
class ClusterScene:
    """The objects read. `missing` names the kinds (plural) that the API server does not know.

    `slices` are the names of the ResourceSlices, None where they are not known.
    """

    nodes: list[Node]
    pods: list[Pod]
    sharepods: list[SharePod]
    vgpus: list[VGPU]
    quotas: list[GPUQuota]
    namespace: str
    missing: tuple[str, ...] = ()
    claims: list[ResourceClaim] = field(default_factory=list)
    slices: frozenset[str] | None = None
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        """Fill the ledger: every node, then every pod with a node, and every claim."""
        ledger = self.ledger = Ledger(maker("aliquot")())
        for node in sorted(self.nodes, key=lambda n: n.metadata.name):
            ledger.node_changed(Change("added", node))
        for pod in self.pods:
            ledger.pod_changed(Change("added", pod))
        for claim in self.claims:
            ledger.claim_changed(Change("added", claim))
        bounds = [bound for quota in self.quotas for bound in quotas_of(quota)]
        ledger.decider.quotas = Quotas(bounds)

    def here(self, item: HasMeta) -> bool:
        """Whether a namespaced object is in the namespace to show."""
        return not self.namespace or item.metadata.namespace == self.namespace

    @cached_property
    def pods_by_key(self) -> Mapping[str, Pod]:
        """The pods by `namespace/name`."""
        return {pod.metadata.key: pod for pod in self.pods}

    @property
    def index(self) -> Mapping[str, tuple[str, int]]:
        """(node, index of the GPU there) by UUID, of every device in the ledger."""
        specs = self.ledger.cluster.nodes
        return {d.uuid: (spec.name, d.index) for spec in specs for d in spec.gpus}

    def gpus(self) -> list[dict[str, Any]]:
        """Every device that pods may use, with its tenants and the pods of those that are claims, as plain values."""
        cluster = self.ledger.cluster
        devices = []
        for name, number in sorted(cluster.index.items()):
            topology = cluster.spec(number).topology
            for g, gpu in enumerate(ledger_gpus(cluster, name)):
                links = list(topology.links[g]) if topology is not None else []
                devices.append({"node": name, **ledger_facts(gpu), "links": links})
                for one in devices[-1]["residents"]:
                    if (claim := self.ledger.claim_of(one["tenant"])) is not None:
                        one |= {"claim": claim.metadata.name, "pods": [pod.name for pod in claim.pods]}
        return devices


async def read_scene(target: Target) -> ClusterScene:
    """Everything, read at once.

    Raises:
        KubeError: nodes or pods cannot be listed.
    """
    async with target.connect() as api:
        missing: list[str] = []

        async def own(resource: Resource[T]) -> list[T]:
            try:
                return await listed(api, resource)
            except NotFound:
                missing.append(resource.plural)
                return []

        async def of_claims(resource: Resource[T]) -> list[T] | None:
            try:
                return await listed(api, resource)
            except NotFound:
                return None
            except Forbidden as error:
                click.echo(f"what claims hold is not shown: {error}", err=True)
                return None

        claims, slices = await asyncio.gather(of_claims(RESOURCE_CLAIMS), of_claims(RESOURCE_SLICES))
        nodes, pods, sharepods, vgpus, quotas = await asyncio.gather(
            listed(api, NODES), listed(api, PODS), own(SHAREPODS), own(VGPUS), own(GPUQUOTAS)
        )
        names = None if slices is None else frozenset(one.metadata.name for one in slices)
        return ClusterScene(
            nodes, pods, sharepods, vgpus, quotas, target.scope(api), tuple(missing), claims or [], names
        )  # fmt: skip


async def listed(api: Api, resource: Resource[T]) -> list[T]:
    """All objects of a kind, sorted by name; read in pages, and again in one piece when a page has expired.

    Raises:
        KubeError: the API server refused.
    """
    path = resource.path()
    try:
        items = [raw async for page in api.pages(path, size=PAGE) for raw in page.items or []]
    except Gone:
        items = [raw async for page in api.pages(path) for raw in page.items or []]
    try:
        return sorted((resource.decode(bytes(raw)) for raw in items), key=lambda item: item.metadata.key)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the API server sent {resource.plural} that cannot be read: {error}") from None


def name_of(resident: Mapping[str, Any]) -> str:
    """A tenant of `ClusterScene.gpus`, of a claim with its pods in brackets."""
    pods = resident.get("pods")
    return f"{resident['tenant']} ({', '.join(pods)})" if pods else str(resident["tenant"])


def age(meta: Meta) -> str:
    """How long ago it was made, as kubectl writes it."""
    return format_age(meta.age_s(time.time())) if meta.creation_timestamp else "-"

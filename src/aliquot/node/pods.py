"""The node's pods, kept up to date by a watch; the API server is queried when the watch may be behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.names import GPU_PERCENT, PLAN, RESIZE
from aliquot.kube.objects import Container, ContainerStatus, Meta, Pod, PodSpec, PodStatus, Resource, Wire
from aliquot.kube.reflector import Change, Reflector
from aliquot.lib.decoding import decode_json
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.tenancy.removal import Answer


class NodePod(Wire):
    """A pod as a node's agent reads it."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def key(self) -> PodKey:
        """Its identity."""
        return PodKey(self.metadata.uid, self.metadata.namespace, self.metadata.name)

    @property
    def ended(self) -> bool:
        """True when none of its containers runs again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def plan(self) -> str:
        """The text of its plan; empty where it has none."""
        return self.metadata.annotations.get(PLAN, "")

    @property
    def resize(self) -> str:
        """What is said of a size that it does not have yet."""
        return self.metadata.annotations.get(RESIZE, "")

    @property
    def request(self) -> Pod:
        """As dialects read it."""
        return Pod(self.metadata, self.spec)

    def requesting(self) -> list[Container]:
        """Its containers that request a share."""
        every = [*self.spec.init_containers, *self.spec.containers]
        return [c for c in every if c.resources.limits.get(GPU_PERCENT) or c.resources.requests.get(GPU_PERCENT)]

    def privileged(self, container: str) -> bool:
        """Whether that container reaches every device of its node."""
        every = [*self.spec.init_containers, *self.spec.containers]
        return any(c.name == container and c.security_context.privileged for c in every)

    @property
    def statuses(self) -> list[ContainerStatus]:
        """Those of all of its containers."""
        return [*self.status.init_container_statuses, *self.status.container_statuses]

    def running(self) -> set[str]:
        """Names of its containers that run now."""
        return {status.name for status in self.statuses if status.state.running is not None}

    def init_containers_ended(self, earlier: Mapping[str, str]) -> bool:
        """Whether its init containers have ended, and not only those runs of them whose ids are the `earlier` ones.

        A pod whose sandbox died runs them again and stays Initialized (kubelet, pkg/kubelet/status/generate.go).
        """
        sidecars = {each.name for each in self.spec.init_containers if each.restart_policy == "Always"}
        statuses = [each for each in self.status.init_container_statuses if each.name not in sidecars]
        return self.status.initialized and all(
            each.state.terminated is not None and each.container_id != earlier.get(each.name) for each in statuses
        )

    def failing(self) -> set[str]:
        """Names of its containers that kubelet was to start and could not, or is to start again later.

        One for which it has no devices alternates between the two reasons.
        """
        return {status.name for status in self.statuses if status.detail.reason in FAILING_REASONS}


FAILING_REASONS: Final = ("CreateContainerConfigError", "CrashLoopBackOff")
NODE_PODS: Final = Resource(NodePod, "Pod", "pods")
FETCHED_S: Final = 60.0
"""How long a queried pod is kept before the watch delivers it: its end may never be reported."""


class NodePods:
    """The pods of one node by uid; `on_gone` is called with each pod that has ended or was deleted, `on_resize` when a
    plan was changed, or what is said of a size."""

    def __init__(
        self, api: Api, node: str, on_gone: Callable[[NodePod], None], on_resize: Callable[[], None] = lambda: None
    ) -> None:
        self._api = api
        self._node = node
        self._on_gone = on_gone
        self._on_resize = on_resize
        self._by_uid: dict[str, NodePod] = {}
        self._fetched: dict[str, NodePod] = {}
        self._fetched_s = 0.0
        self.reflector = Reflector(api, NODE_PODS, self._changed, selectors={"fieldSelector": f"spec.nodeName={node}"})

    def __iter__(self) -> Iterator[NodePod]:
        return iter(list(self.by_uid().values()))

    def by_uid(self) -> dict[str, NodePod]:
        """The pods now, from the watch or a query."""
        if self._fetched and time.monotonic() - self._fetched_s > FETCHED_S:
            self._fetched = {}
        return self._fetched | self._by_uid

    def keys(self) -> dict[str, PodKey]:
        """Every pod's names by its uid."""
        return {uid: pod.key for uid, pod in self.by_uid().items()}

    def get(self, uid: str) -> NodePod | None:
        """The pod with that uid."""
        return self.by_uid().get(uid)

    @property
    def synced(self) -> bool:
        """Whether the API server has listed all pods of the node once."""
        return self.reflector.synced.is_set()

    def lives(self, uid: str) -> bool:
        """Whether the pod exists and has not ended, as far as the watch has delivered."""
        pod = self.get(uid)
        return pod is not None and not pod.ended

    def says(self, uid: str) -> Answer:
        """What the API server says about what the pod has; silent before it has listed the node's pods."""
        return "used" if self.lives(uid) else "gone" if self.synced else "silent"

    async def refresh(self) -> None:
        """Query the API server for all pods of the node, for those that the watch has not delivered yet.

        Raises:
            KubeError: it does not answer.
        """
        query = {"fieldSelector": f"spec.nodeName={self._node}"}
        page = decode_json(await self._api.request("GET", NODE_PODS.path(), params=query), _PodList)
        self._fetched = {pod.metadata.uid: pod for pod in page.items}
        self._fetched_s = time.monotonic()

    def _changed(self, change: Change[NodePod]) -> None:
        pod = change.object
        if change.kind == "deleted":
            self._by_uid.pop(pod.metadata.uid, None)
            self._fetched.pop(pod.metadata.uid, None)
            self._on_gone(pod)
            return
        self._by_uid[pod.metadata.uid] = pod
        if pod.ended:
            self._on_gone(pod)
        elif change.old is not None and (pod.plan, pod.resize) != (change.old.plan, change.old.resize):
            self._on_resize()


class _PodList(Wire):
    items: list[NodePod] = []  # noqa: RUF012

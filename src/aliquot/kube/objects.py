"""The parts of Kubernetes objects that Aliquot reads, with the API's own names on the wire, and where the kinds are.

Decoding skips every field that is not named here, which is most of the time a client spends. These objects are
therefore never written back whole: a write is a patch, a server-side apply, or an object that Aliquot made itself. What
must survive a round trip (a pod template) is kept as it came.

Every field has a default, for the API server leaves out what is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec

from aliquot.kube.names import PLAN_STATUS
from aliquot.kube.plan import read_missing
from aliquot.kube.quantities import Quantity
from aliquot.lib.decoding import convert_to, decode_json
from aliquot.model.sharepod import PATTERNS
from aliquot.model.validation import sentence
from aliquot.status.workloads import PENDING, SHARE_MISSING, ContainerState, pod_state

T = TypeVar("T", bound=msgspec.Struct)
K = TypeVar("K", bound="HasMeta")
Quantities = dict[str, Quantity]


class Wire(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of everything read from or sent to the API server."""


class Value(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """Base of small parts that can be shared, since they never change."""


class OwnerReference(Value, frozen=True):
    """The owner of an object, by which the garbage collector deletes it."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class Meta(Wire):
    """ObjectMeta."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []

    @property
    def key(self) -> str:
        """`namespace/name`, or the name of a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def age_s(self, now_s: float) -> float:
        """Seconds since the object was made; 0 where that is not known."""
        try:
            return max(0.0, now_s - datetime.fromisoformat(self.creation_timestamp or "").timestamp())
        except ValueError:
            return 0.0


class HasMeta(Protocol):
    """Any object with metadata."""

    @property
    def metadata(self) -> Meta:
        """Its ObjectMeta."""
        ...


class ApiObject(Wire):
    """Any object; as it is where only its metadata matters."""

    metadata: Meta = msgspec.field(default_factory=Meta)


def without_nulls(value: Any) -> Any:
    """JSON without the fields that are null, which mean the same as fields that are left out."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


class Undecodable(ValueError):
    """An object with a field that is not of its type; the text names it."""


def decoded(document: Any, kind: type[T]) -> T:
    """An object from a document that may have been written by hand.

    Raises:
        Undecodable: a field is not of its type.
    """
    given = without_nulls(document)
    try:
        return convert_to(kind, given)
    except msgspec.ValidationError as error:
        raise Undecodable(sentence(error, given, kind, patterns=PATTERNS)) from None


class ListMeta(Wire):
    """The metadata of a list: its version, and where the next page goes on."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class RawList(Wire):
    """One page of a list whose items are decoded one by one."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class ApiStatus(Wire):
    """The API server's answer if it is not an object."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0


class WatchEvent(Wire):
    """One line of a watch; the object is decoded after its type is known."""

    type: str
    object: msgspec.Raw


class PodClaim(Value, frozen=True):
    """A claim by the pod's name for it; in a pod's spec with the claim's own, or the template that makes it."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class Resources(Value, frozen=True):
    """ResourceRequirements of a container."""

    limits: Quantities = {}
    requests: Quantities = {}
    claims: tuple[PodClaim, ...] = ()


class SecurityContext(Value, frozen=True):
    """What a container may do on its node."""

    privileged: bool = False


class Container(Value, frozen=True):
    """One container of a pod."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""
    security_context: SecurityContext = SecurityContext()


class SchedulingGate(Value, frozen=True):
    """A scheduling gate: it must be removed before the scheduler considers the pod."""

    name: str = ""


class SchedulingGroup(Value, frozen=True):
    """The group of pods that a pod is placed with."""

    pod_group_name: str = ""


class Taint(Value, frozen=True):
    """A node's taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(Value, frozen=True):
    """A taint that a pod puts up with."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether it is this taint."""
        same = self.operator == "Exists" or self.value == taint.value
        return self.effect in ("", taint.effect) and self.key in ("", taint.key) and same


class Requirement(Value, frozen=True):
    """One condition on a node's labels or fields."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def holds(self, values: Mapping[str, str]) -> bool:
        """Whether they meet it."""
        has, value = self.key in values, values.get(self.key, "")
        if self.operator in ("Exists", "DoesNotExist"):
            return has == (self.operator == "Exists")
        if self.operator in ("In", "NotIn"):
            return (has and value in self.values) == (self.operator == "In")
        try:
            left, right = int(value), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return left > right if self.operator == "Gt" else left < right


class NodeTerm(Value, frozen=True):
    """Conditions that must all hold."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class SelectorTerms(Value, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class PreferredNodes(Value, frozen=True):
    """Nodes that a pod would rather have."""

    weight: int = 0


class NodeAffinity(Value, frozen=True):
    """A pod's node affinity: kube-scheduler heeds it, and explanations name what it rules out."""

    required: SelectorTerms | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: list[PreferredNodes] = msgspec.field(name="preferredDuringSchedulingIgnoredDuringExecution", default=[])


class Affinity(Value, frozen=True):
    """A pod affinity term."""

    node_affinity: NodeAffinity | None = None


class PodSpec(Wire):
    """A pod's spec."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    preemption_policy: str = ""
    restart_policy: str = ""
    node_selector: dict[str, str] = {}
    scheduling_gates: list[SchedulingGate] = []
    scheduling_group: SchedulingGroup | None = None
    containers: list[Container] = []
    init_containers: list[Container] = []
    resource_claims: tuple[PodClaim, ...] = ()
    overhead: Quantities = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []

    @property
    def prefers_nodes(self) -> bool:
        """Whether its author would rather have it on some nodes than on others."""
        nodes = self.affinity.node_affinity if self.affinity is not None else None
        return nodes is not None and bool(nodes.preferred)


class Condition(Wire):
    """One condition, of any object."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class StateDetail(Value, frozen=True):
    """Why a container waits or has ended."""

    reason: str = ""
    message: str = ""
    exit_code: int = 0


class ContainerStates(Value, frozen=True):
    """What a container does: the one of the three that is given."""

    waiting: StateDetail | None = None
    running: StateDetail | None = None
    terminated: StateDetail | None = None


class ContainerStatus(Value, frozen=True):
    """One container as kubelet reports it."""

    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    restart_count: int = 0
    started: bool = False
    state: ContainerStates = ContainerStates()

    @property
    def detail(self) -> StateDetail:
        """Why it waits or has ended; empty while it runs or nothing is known."""
        return self.state.waiting or self.state.terminated or StateDetail()

    @property
    def plain(self) -> ContainerState:
        """The same in the words of the read model."""
        if self.state.running is not None:
            return ContainerState("running")
        stage: Literal["waiting", "terminated"] = "waiting" if self.state.terminated is None else "terminated"
        return ContainerState(stage, self.detail.reason, self.detail.exit_code)


class PodStatus(Wire):
    """A pod's status."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    pod_ip: str = msgspec.field(name="podIP", default="")
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[PodClaim, ...] = ()

    @property
    def initialized(self) -> bool:
        """Whether the pod's init containers have ended."""
        return any(c.type == "Initialized" and c.status == "True" for c in self.conditions)


class Pod(ApiObject):
    """A pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def ended(self) -> bool:
        """True when none of its containers runs again, so that its GPUs are free."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def state(self) -> str:
        """Its state in one word, as in kubectl's column STATUS; without a node Pending."""
        status = self.status
        if not (self.spec.node_name or self.ended):
            return PENDING
        if self.share_missing and not self.metadata.deletion_timestamp:
            return SHARE_MISSING
        sidecars = {c.name for c in self.spec.init_containers if c.restart_policy == "Always"}
        return pod_state(
            status.phase,
            [c.plain for c in status.container_statuses],
            init=[c.plain for c in status.init_container_statuses if not (c.started and c.name in sidecars)],
            reason=status.reason,
            leaving=bool(self.metadata.deletion_timestamp),
        )

    @property
    def share_missing(self) -> str:
        """Which of its containers run or wait without their share and why, by its node's agent; empty if none does."""
        reasons = read_missing(self.metadata.annotations.get(PLAN_STATUS, ""))
        statuses = [*self.status.init_container_statuses, *self.status.container_statuses] if reasons else []
        return "; ".join(
            f"container {s.name} {'waits' if s.state.waiting else 'runs'} without its share: {reasons[s.name]}"
            for s in statuses
            if s.name in reasons and (s.state.running is not None or s.state.waiting is not None)
        )

    @property
    def restarts(self) -> int:
        """How often its containers were started again, as in kubectl's column RESTARTS.

        Init containers count while the pod initializes, sidecars always.
        """
        sidecars = {c.name for c in self.spec.init_containers if c.restart_policy == "Always"}
        initializing = self.state.startswith("Init:")
        first = [c for c in self.status.init_container_statuses if initializing or c.name in sidecars]
        return sum(c.restart_count for c in [*first, *self.status.container_statuses])


class NodeSpec(Wire):
    """Whether a node takes pods."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(Wire):
    """A node's status."""

    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[Condition] = []


class Node(ApiObject):
    """A node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def ready(self) -> bool:
        """Its kubelet says so."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)


class ObjectReference(Wire):
    """Points to an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Binding(Wire, omit_defaults=False):  # kind and version have to be on the wire
    """Puts a pod on a node. Annotations are merged into the pod in the same write, `metadata.uid` is its precondition.

    Source: the API server's BindingREST (pkg/registry/core/pod/storage).
    """

    metadata: Meta
    target: ObjectReference
    api_version: str = msgspec.field(default="v1")
    kind: str = "Binding"


class Event(ApiObject):
    """What `kubectl describe` shows."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    reason: str = ""
    message: str = ""
    type: Literal["Normal", "Warning", ""] = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
    action: str = ""


class LeaseSpec(Wire):
    """The holder of a lease and its duration."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(ApiObject):
    """A Lease of coordination.k8s.io/v1."""

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class Secret(ApiObject):
    """A Secret; values are in base64."""

    data: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class Resource(Generic[K]):
    """One kind of object; `path` gives its place under the API server's root."""

    type: type[K]
    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", sub: str = "") -> str:
        """`/api/v1/namespaces/a/pods/b/status`; without a namespace that of all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/" + "/".join([*parts, self.plural, *filter(None, (name, sub))])

    def decode(self, body: bytes) -> K:
        """One object.

        Raises:
            msgspec.ValidationError: a field is not of its type; DecodeError: it is no JSON.
        """
        return decode_json(body, self.type)


PODS: Final = Resource(Pod, "Pod", "pods")
NODES: Final = Resource(Node, "Node", "nodes", namespaced=False)
EVENTS: Final = Resource(Event, "Event", "events")
LEASES: Final = Resource(Lease, "Lease", "leases", "coordination.k8s.io")
SECRETS: Final = Resource(Secret, "Secret", "secrets")

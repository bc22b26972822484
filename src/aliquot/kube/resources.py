"""The kinds of objects, their paths, and the types they are decoded as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from aliquot.kube.objects import Event, HasMeta, Lease, Node, Pod, Secret

T = TypeVar("T", bound=HasMeta)


@dataclass(frozen=True)
class Resource(Generic[T]):
    """One kind of object; `path` gives its place under the API server's root."""

    type: type[T]
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

    def decode(self, body: bytes) -> T:
        """One object.

        Raises:
            msgspec.ValidationError: a field is not of its type; DecodeError: it is no JSON.
        """
        return msgspec.json.decode(body, type=self.type)


PODS: Final = Resource(Pod, "Pod", "pods")
NODES: Final = Resource(Node, "Node", "nodes", namespaced=False)
EVENTS: Final = Resource(Event, "Event", "events")
LEASES: Final = Resource(Lease, "Lease", "leases", "coordination.k8s.io")
SECRETS: Final = Resource(Secret, "Secret", "secrets")

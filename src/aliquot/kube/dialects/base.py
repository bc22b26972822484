"""What a dialect is: the fields of one project for a part of a GPU, read and written.

A dialect owns certain resource names, annotations and labels. `read` turns a pod in its words into the model, `write`
turns the model into its words, and `planned` gives the annotations that the project's own tools look for on a pod that
has its GPU. What a dialect cannot say is an error, never a silent loss. Here is also what dialects have in common:
counts of resources, annotations and labels as text, with every fault named by its path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aliquot.kube.objects import Container, Pod
from aliquot.kube.plan import PodPlan
from aliquot.kube.quantities import Quantity, parse_count
from aliquot.kube.requests import BadPod, ContainerAsk, PodAsk, containers_of, pod_ask
from aliquot.model.errors import UserError
from aliquot.model.quantities import BadQuantity
from aliquot.model.requests import Device

T = TypeVar("T")
_TEXT_MOST: Final = 8192
"""Characters of one annotation: two hundred UUIDs."""
ORDERED: Final = "pods wait in the order of their PriorityClass (spec.priorityClassName)"


class CanNotSay(UserError):
    """The dialect cannot express a part of the request."""


@dataclass
class Words:
    """The fields to write into a pod: resources by container, annotations, labels, node selectors."""

    resources: dict[str, dict[str, Quantity]] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Owned:
    """The names of a dialect: resources and schedulers, prefixes of annotations, labels, node selectors."""

    resources: frozenset[str] = frozenset()
    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    node_selector: tuple[str, ...] = ()
    schedulers: frozenset[str] = frozenset()

    @property
    def requests(self) -> tuple[str, ...]:
        """How the names begin that request GPUs: resources, or annotations and labels where there are none."""
        return tuple(sorted(self.resources)) or tuple(dict.fromkeys((*self.annotations, *self.labels)))


class Dialect(ABC):
    """One project's dialect; the common case has no annotations on a placed pod and no variables in its containers."""

    name: str
    owned: Owned
    yields_to: frozenset[str] = frozenset()
    """The dialects that share words with this one, and whose pods a pod is that seems to be of both."""

    def speaks(self, pod: Pod) -> bool:
        """Is this pod written in these words? It is where a container names one of the resources."""
        return any(names_any(c, self.owned.resources) for c, _, _ in containers_of(pod))

    def read(self, pod: Pod) -> PodAsk:
        """The pod's request.

        Raises:
            BadPod: the words contradict themselves, with the path of each fault.
        """
        faults: list[str] = []
        asks, notes = self.asks(pod, faults)
        if faults:
            raise BadPod(pod.metadata.key, faults)
        return pod_ask(pod, asks, notes)

    @abstractmethod
    def asks(self, pod: Pod, faults: list[str]) -> tuple[list[ContainerAsk], list[str]]:
        """The requests of its containers, and what of its words is not kept; errors go to `faults`, with their path."""

    @abstractmethod
    def write(self, ask: PodAsk) -> Words:
        """The same request in this dialect.

        Raises:
            CanNotSay: there are no words for a part of it.
        """

    def planned(self, pod: Pod, plan: PodPlan, devices: Mapping[str, Device], now_ns: int) -> dict[str, str]:
        """Annotations that the project's tools expect on a placed pod; `devices` by UUID, `now_ns` since the epoch."""
        return {}

    def environment(self, pod: Pod, container: str, plan: PodPlan, devices: Mapping[str, Device]) -> dict[str, str]:
        """Variables that programs written for the project read in that container."""
        return {}

    def started(self, pod: Pod) -> dict[str, str]:
        """Annotations that the project's device plugin writes when it has given a container of the pod its devices."""
        return {}


def asked(container: Container, name: str) -> Quantity | None:
    """A resource of a container: its limit, or else its request."""
    limits = container.resources.limits
    return limits[name] if name in limits else container.resources.requests.get(name)


def count(container: Container, path: str, name: str, faults: list[str]) -> int:
    """A resource counted in integers; 0 if absent. Errors go to `faults`, with their path."""
    value = asked(container, name)
    if value is None:
        return 0
    other = container.resources.requests.get(name, value)
    where = f'{path}.resources.limits["{name}"]'
    try:
        number = parse_count(value)
        if parse_count(other) != number:
            faults.append(f"{where} {value} differs from the request {other}; they must be equal")
        return number
    except BadQuantity as error:
        faults.append(f"{where}: {error}")
        return 0


def only_plain(ask: PodAsk, dialect: str, *, models: bool = False) -> None:
    """For dialects without labels, names and parts.

    Raises:
        CanNotSay: the ask has something that the dialect has no words for.
    """
    for c in ask.containers:
        request, labels = c.request, c.request.labels
        for given, what in (
            (labels.affinity or labels.anti_affinity or labels.exclusion, "labels on devices"),
            (request.gpu_id, "the name of a vGPU"),
            (request.gpu or c.uuids_not, "UUIDs of devices"),
            (not models and (request.model or c.models_not), "models"),
            (request.memory is not None and request.memory.part, "memory as a part of a device"),
            (request.memory_limit, "memory that is lent"),
            (c.parts > 1, "equal parts of several GPUs"),
            (c.near_cores, "near cores"),
            (request.mixed, "mixed models"),
            (request.enforce, "a word for what is enforced"),
        ):
            if given:
                raise CanNotSay(f'container "{c.container}" has {what}, for which {dialect} has no words')


def names_any(container: Container, names: frozenset[str]) -> bool:
    """Does the container mention one of these resources?"""
    return not names.isdisjoint(container.resources.limits) or not names.isdisjoint(container.resources.requests)


def strip(document: dict[str, Any], owned: Owned) -> None:
    """Remove a dialect's fields from a pod or pod template, in place, and mappings that become empty."""
    metadata = document.get("metadata") or {}
    _strip_map(metadata, "annotations", owned.annotations)
    _strip_map(metadata, "labels", owned.labels)
    spec = document.get("spec") or {}
    _strip_map(spec, "nodeSelector", owned.node_selector)
    if spec.get("schedulerName") in owned.schedulers:
        del spec["schedulerName"]
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        resources = container.get("resources") or {}
        for side in ("limits", "requests"):
            kept = {k: v for k, v in (resources.get(side) or {}).items() if k not in owned.resources}
            _keep(resources, side, kept)
        if "resources" in container and not resources:
            del container["resources"]


def put(document: dict[str, Any], words: Words) -> None:
    """Write fields into a pod or pod template, in place. Extended resources go to the limits, as usual."""
    for place, key, values in (
        ("metadata", "annotations", words.annotations),
        ("metadata", "labels", words.labels),
        ("spec", "nodeSelector", words.node_selector),
    ):
        if values:
            outer = document.setdefault(place, {})
            outer[key] = {**(outer.get(key) or {}), **values}
    spec = document.get("spec") or {}
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        if resources := words.resources.get(container.get("name", "")):
            held = container.setdefault("resources", {})
            held["limits"] = {**(held.get("limits") or {}), **resources}
            # The API server copies limits to requests before admission and wants both equal after it.
            if copied := {name: value for name, value in resources.items() if name in (held.get("requests") or {})}:
                held["requests"] = {**held["requests"], **copied}


def _strip_map(outer: dict[str, Any], key: str, prefixes: tuple[str, ...]) -> None:
    kept = {k: v for k, v in (outer.get(key) or {}).items() if not (prefixes and k.startswith(prefixes))}
    _keep(outer, key, kept)


def _keep(outer: dict[str, Any], key: str, kept: dict[str, Any]) -> None:
    if kept:
        outer[key] = kept
    else:
        outer.pop(key, None)


def base_of(key: str) -> str:
    """An annotation's name without the container."""
    prefix, slash, rest = key.partition("/")
    return prefix + slash + rest.partition(".")[0]


@dataclass
class Texts:
    """Texts under a prefix, such as a pod's annotations; a container's own, `NAME.CONTAINER`, goes before the pod's.

    Faults are collected in `faults`, each with its path.
    """

    values: Mapping[str, str]
    faults: list[str]
    place: str = "metadata.annotations"
    prefix: str = ""
    container: str = ""

    def _key(self, name: str) -> str:
        own = f"{self.prefix}{name}.{self.container}"
        return own if self.container and own in self.values else f"{self.prefix}{name}"

    def where(self, name: str) -> str:
        """The path of a text."""
        return f'{self.place}["{self._key(name)}"]'

    def text(self, name: str) -> str:
        """A text as it is; empty where it is absent."""
        return self.values.get(self._key(name), "")

    def read(self, name: str, parse: Callable[[str], T]) -> T | None:
        """The value of a text; None without it or when it is wrong, which is noted."""
        text = self.values.get(self._key(name))
        if text is not None and len(text) > _TEXT_MOST:
            self.faults.append(f"{self.where(name)} has {len(text)} characters; the most is {_TEXT_MOST}")
            return None
        return None if text is None else self.parse(self.where(name), text, parse)

    def parse(self, where: str, text: str, parse: Callable[[str], T]) -> T | None:
        """The value of a text that stands at `where`."""
        try:
            return parse(text)
        except BadQuantity as error:
            fault = f"{where}: {error}"
            if fault not in self.faults:
                self.faults.append(fault)
            return None

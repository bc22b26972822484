"""The scheduler extender's messages, by the names kube-scheduler gives them.

The Go structs have no JSON tags, so keys are capitalised; pods and nodes inside are ordinary API objects.

Source: k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from aliquot.kube.objects import Pod


class Message(msgspec.Struct, rename="pascal"):
    """Base of all messages."""


class NodeList(msgspec.Struct):
    """Whole nodes, kept unchanged, because kube-scheduler expects what it sent."""

    items: list[msgspec.Raw] | None = None


class Args(Message):
    """The arguments of `filter` and `prioritize`: names if the extender is nodeCacheCapable, otherwise nodes."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")


class FilterResult(Message):
    """Which nodes stay. `error` fails the scheduling cycle, so a node that does not fit is never an error."""

    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")
    failed_nodes: msgspec.Raw = msgspec.Raw(b"{}")
    failed_and_unresolvable_nodes: msgspec.Raw = msgspec.Raw(b"{}")
    error: str = ""


def host_list(names: bytes) -> msgspec.Raw:
    """Names, given as the inside of a JSON array, as that array."""
    return msgspec.Raw(b"[" + names + b"]")


def host_reasons(groups: Iterable[tuple[bytes, str]]) -> msgspec.Raw:
    """An object of names and the reason of each; names with one reason are given together, as inside an array."""
    found = []
    for names, reason in groups:
        text = b'":' + msgspec.json.encode(reason)
        found.append(names[:-1].replace(b'","', text + b',"') + text)
    return msgspec.Raw(b"{" + b",".join(found) + b"}")


def host_priorities(groups: Iterable[tuple[bytes, int]]) -> msgspec.Raw:
    """An array of names with their scores, 0 to 10; names with one score are given together, as inside an array."""
    found = []
    for names, score in groups:
        text = b',"Score":%d}' % score
        found.append(b'{"Host":' + names.replace(b'","', b'"' + text + b',{"Host":"') + text)
    return msgspec.Raw(b"[" + b",".join(found) + b"]")


class MetaPod(Message):
    """A victim by its uid."""

    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(Message):
    """The victims on one node."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(Message):
    """The same with whole pods."""

    pods: list[Pod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(Message):
    """Which victims kube-scheduler proposes on which node."""

    pod: Pod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    def proposed(self) -> dict[str, MetaVictims]:
        """The victims by uid, in whichever of the two forms they came."""
        if self.node_name_to_meta_victims:
            return self.node_name_to_meta_victims
        return {
            node: MetaVictims([MetaPod(pod.metadata.uid) for pod in victims.pods or []], victims.num_pdb_violations)
            for node, victims in (self.node_name_to_victims or {}).items()
        }


class PreemptionResult(Message):
    """Nodes on which preemption helps, with their victims."""

    node_name_to_meta_victims: dict[str, MetaVictims]


class BindingArgs(Message):
    """The arguments of `bind`: pod and node."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class BindingResult(Message):
    """Empty when the pod is bound."""

    error: str = ""


class BadMessage(Exception):
    """A body that is not a message of the kind; its text is one sentence."""


def read(body: bytes, kind: type[Any]) -> Any:
    """A message of a kind.

    Raises:
        BadMessage: no JSON, or a field that is absent or of another type; the text names it.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"the body is not a valid {kind.__name__} of the scheduler extender: {error}") from None

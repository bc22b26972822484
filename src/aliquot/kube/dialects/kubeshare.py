"""KubeShare, both versions: decimal fractions and bytes as text under a prefix.

The share belongs to the pod. In Aliquot one container holds it: the first.

Version 1: SharePods of `kubeshare.nthu/v1`, whose annotations `kubeshare/...` say the share and the labels. `spec` of
such a SharePod is a PodSpec itself. `kubeshare/GPUID` with `spec.nodeName` names a vGPU.

Version 2: plain pods with labels `sharedgpu/...` and the scheduler `kubeshare-scheduler`. `gpu_request` may be a whole
number above 1. Groups of pods that start together (`group_name`, `group_headcount`, `group_threshold`) have no
counterpart here.

Facts: NTHU-LSALAB/KubeShare README.md (releases 1.0 and 2.0), doc/yaml, doc/test, doc/yaml/gpuModel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aliquot.kube.dialects.base import ORDERED, CanNotSay, Dialect, Owned, Texts, Words
from aliquot.kube.objects import Pod
from aliquot.kube.requests import LEAST_MILLI, ContainerAsk, PodAsk
from aliquot.model.quantities import MILLI, BadQuantity, Memory, parse_milli
from aliquot.model.requests import BadRequest, GpuRequest, Labels, checked

API_VERSION_1: Final = "kubeshare.nthu/v1"
PREFIX_1: Final = "kubeshare/"
ASKING_1: Final = (f"{PREFIX_1}gpu_request", f"{PREFIX_1}gpu_limit")
"""Annotations one of which makes a pod KubeShare 1's."""

PREFIX_2: Final = "sharedgpu/"
ASKING_2: Final = (f"{PREFIX_2}gpu_request", f"{PREFIX_2}gpu_limit")
"""Labels one of which makes a pod KubeShare 2's."""

SCHEDULER: Final = "kubeshare-scheduler"
_READ: Final = frozenset(
    f"{PREFIX_2}{name}" for name in ("gpu_request", "gpu_limit", "gpu_mem", "gpu_model", "priority")
)
_GROUP: Final = ("group_", "pod_group_", "min_available")
"""How names about pods that start together begin."""

_MIB: Final = 1024 * 1024


def bytes_to_memory(text: str) -> Memory:
    """Bytes as text, rounded up to MiB.

    Raises:
        BadQuantity: no whole number of bytes, or 0.
    """
    if not text.strip().isdigit() or not int(text):
        raise BadQuantity(f'"{text}" is not a number of bytes; write 1073741824 for 1 GiB')
    return Memory(mib=-(-int(text) // _MIB))


def read_share(pod: Pod, fields: Texts, *, gpu_id: str = "", labels: Labels | None = None) -> list[ContainerAsk]:
    """The pod's share as that of its first container; faults go to `fields`, and then there is none.

    A request of 0 is KubeShare's way of saying that nothing is guaranteed; here that is the least share.
    """
    request = fields.read("gpu_request", parse_milli)
    limit = fields.read("gpu_limit", parse_milli)
    memory = fields.read("gpu_mem", bytes_to_memory)
    if not pod.spec.containers:
        fields.faults.append("spec.containers is empty; write at least one container")
    if fields.faults:
        return []
    asked = GpuRequest(
        request_milli=request or LEAST_MILLI,
        limit_milli=max(limit, request or LEAST_MILLI) if limit is not None and not request else limit,
        memory=memory,
        model=fields.text("gpu_model"),
        gpu_id=gpu_id,
        labels=labels or Labels(),
    )
    try:
        checked(asked, request_name=fields.where("gpu_request"), limit_name=fields.where("gpu_limit"))
    except BadRequest as error:
        fields.faults.append(str(error))
        return []
    return [ContainerAsk(pod.spec.containers[0].name, asked)]


def write_share(ask: PodAsk, dialect: str) -> dict[str, str]:
    """The texts of the one share, without their prefix; fields that are empty are left out.

    Raises:
        CanNotSay: several containers have shares of their own, or the ask has something beyond a share.
    """
    if len(ask.containers) != 1:
        raise CanNotSay(
            f"{dialect} has one share for the whole pod, here are {len(ask.containers)} containers that ask"
        )
    (c,) = ask.containers
    request = c.request
    if c.parts > 1 or c.models_not or c.uuids_not or request.gpu or c.near_cores:
        raise CanNotSay(f'container "{c.container}" has parts, UUIDs, cores or models to avoid; {dialect} has no words')
    if request.memory is not None and not request.memory.mib:
        raise CanNotSay(f'container "{c.container}" asks for a part of the memory; {dialect} knows bytes')
    found = {
        "gpu_request": _decimal(request.request_milli),
        "gpu_limit": _decimal(request.ceiling_milli),
        "gpu_mem": str((request.memory.mib or 0) * _MIB) if request.memory is not None else "",
    }
    return {name: text for name, text in found.items() if text}


def _decimal(milli: int) -> str:
    text = f"{milli / MILLI:.3f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def notes_on_containers(pod: Pod) -> list[str]:
    """One sentence where KubeShare would let several containers use the share."""
    others = [c.name for c in pod.spec.containers[1:]]
    if not others:
        return []
    return [f'the share is given to container "{pod.spec.containers[0].name}"; {", ".join(others)} get no GPU']


class KubeShare1(Dialect):
    """The words of KubeShare 1."""

    name = "kubeshare1"
    owned = Owned(frozenset(), (PREFIX_1,))

    def speaks(self, pod: Pod) -> bool:
        """It has the annotation for the request or the limit."""
        return any(key in pod.metadata.annotations for key in ASKING_1)

    def asks(self, pod: Pod, faults: list[str]) -> tuple[list[ContainerAsk], list[str]]:
        """The ask of the pod's first container; KubeShare 1 knows one GPU at most."""
        fields = Texts(pod.metadata.annotations, faults, prefix=PREFIX_1)
        labels = Labels(*(fields.text(f"sched_{kind}") for kind in ("affinity", "anti-affinity", "exclusion")))
        asks = read_share(pod, fields, gpu_id=fields.text("GPUID"), labels=labels)
        if asks and asks[0].request.request_milli > 1000:
            faults.append(f"{fields.where('gpu_request')} is above 1.0, the most that KubeShare 1 knows")
        return asks, notes_on_containers(pod)

    def write(self, ask: PodAsk) -> Words:
        """Annotations only."""
        texts = write_share(ask, self.name)
        (c,) = ask.containers
        if c.request.request_milli > 1000 or c.request.model or c.priority:
            raise CanNotSay(
                f'container "{c.container}" has more than one GPU, a model or a priority; {self.name} has none'
            )
        labels = c.request.labels
        texts |= {
            "GPUID": c.request.gpu_id,
            "sched_affinity": labels.affinity,
            "sched_anti-affinity": labels.anti_affinity,
            "sched_exclusion": labels.exclusion,
        }
        return Words(annotations={f"{PREFIX_1}{name}": text for name, text in texts.items() if text})


class KubeShare2(Dialect):
    """The words of KubeShare 2."""

    name = "kubeshare2"
    owned = Owned(frozenset(), (PREFIX_2,), (PREFIX_2,), (), frozenset({SCHEDULER}))

    def speaks(self, pod: Pod) -> bool:
        """It has the label for the request or the limit."""
        return any(key in pod.metadata.labels for key in ASKING_2)

    def asks(self, pod: Pod, faults: list[str]) -> tuple[list[ContainerAsk], list[str]]:
        """The ask of the pod's first container."""
        fields = Texts(pod.metadata.labels, faults, place="metadata.labels", prefix=PREFIX_2)
        asks = read_share(pod, fields)
        priority = fields.read("priority", _priority) or 0
        notes = notes_on_containers(pod)
        for label in pod.metadata.labels:
            if label.startswith(PREFIX_2) and label not in _READ:
                group = label.removeprefix(PREFIX_2).startswith(_GROUP)
                notes.append(
                    f"{label} is not kept: {'pods are placed one by one' if group else 'it is not known here'}"
                )
        if priority:
            notes.append(f"{PREFIX_2}priority is not kept: {ORDERED}")
        return [replace(ask, priority=priority) for ask in asks], notes

    def write(self, ask: PodAsk) -> Words:
        """Labels only."""
        texts = write_share(ask, self.name)
        (c,) = ask.containers
        if c.request.labels != Labels() or c.request.gpu_id:
            raise CanNotSay(f'container "{c.container}" has labels on devices or a vGPU; {self.name} has none')
        if "|" in c.request.model or not 0 <= c.priority <= 100:
            raise CanNotSay(f'container "{c.container}" has several models or a priority outside 0 to 100')
        texts |= {"gpu_model": c.request.model, "priority": str(c.priority) if c.priority else ""}
        return Words(labels={f"{PREFIX_2}{name}": text for name, text in texts.items() if text})


def _priority(text: str) -> int:
    if not text.strip().isdigit() or int(text) > 100:
        raise BadQuantity(f'"{text}" is not a priority; write 0 to 100')
    return int(text)

"""KubeShare v2: plain pods with labels `sharedgpu/...` and the scheduler `kubeshare-scheduler`.

`gpu_request` may be a whole number above 1. Groups of pods that start together (`group_name`, `group_headcount`,
`group_threshold`) have no counterpart here.

Facts: NTHU-LSALAB/KubeShare README.md (release 2.0), doc/test, doc/yaml/gpuModel.
"""

from __future__ import annotations

from typing import Final

from aliquot.kube.dialects.annotations import Texts
from aliquot.kube.dialects.base import ORDERED, CanNotSay, Dialect, Owned, Words
from aliquot.kube.dialects.fractions import notes_on_containers, read_share, write_share
from aliquot.kube.objects import Pod
from aliquot.kube.requests import BadPod, PodAsk, pod_ask
from aliquot.model.quantities import BadQuantity
from aliquot.model.requests import Labels

PREFIX: Final = "sharedgpu/"
ASKING: Final = (f"{PREFIX}gpu_request", f"{PREFIX}gpu_limit")
"""Labels one of which makes a pod KubeShare's."""

SCHEDULER: Final = "kubeshare-scheduler"
_READ: Final = frozenset(f"{PREFIX}{name}" for name in ("gpu_request", "gpu_limit", "gpu_mem", "gpu_model", "priority"))
_GROUP: Final = ("group_", "pod_group_", "min_available")
"""How names about pods that start together begin."""


class KubeShare2(Dialect):
    """The words of KubeShare 2."""

    name = "kubeshare2"
    owned = Owned(frozenset(), (PREFIX,), (PREFIX,), (), frozenset({SCHEDULER}))

    def speaks(self, pod: Pod) -> bool:
        """It has the label for the request or the limit."""
        return any(key in pod.metadata.labels for key in ASKING)

    def read(self, pod: Pod) -> PodAsk:
        """The ask of the pod's first container."""
        fields = Texts(pod.metadata.labels, [], place="metadata.labels", prefix=PREFIX)
        ask = read_share(pod, fields)
        priority = fields.read("priority", _priority) or 0
        if ask is None or fields.faults:
            raise BadPod(pod.metadata.key, fields.faults)
        notes = notes_on_containers(pod)
        for label in pod.metadata.labels:
            if label.startswith(PREFIX) and label not in _READ:
                group = label.removeprefix(PREFIX).startswith(_GROUP)
                notes.append(
                    f"{label} is not kept: {'pods are placed one by one' if group else 'it is not known here'}"
                )
        if priority:
            notes.append(f"{PREFIX}priority is not kept: {ORDERED}")
        ask = type(ask)(ask.container, ask.request, priority=priority)
        return pod_ask(pod, [ask], self.name, notes)

    def write(self, ask: PodAsk) -> Words:
        """Labels only."""
        texts = write_share(ask, self.name)
        (c,) = ask.containers
        if c.request.labels != Labels() or c.request.gpu_id:
            raise CanNotSay(f'container "{c.container}" has labels on devices or a vGPU; {self.name} has none')
        if "|" in c.request.model or not 0 <= c.priority <= 100:
            raise CanNotSay(f'container "{c.container}" has several models or a priority outside 0 to 100')
        texts |= {"gpu_model": c.request.model, "priority": str(c.priority) if c.priority else ""}
        return Words(labels={f"{PREFIX}{name}": text for name, text in texts.items() if text})


def _priority(text: str) -> int:
    if not text.strip().isdigit() or int(text) > 100:
        raise BadQuantity(f'"{text}" is not a priority; write 0 to 100')
    return int(text)

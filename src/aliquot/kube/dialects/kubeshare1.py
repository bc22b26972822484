"""KubeShare v1: SharePods of `kubeshare.nthu/v1`, whose annotations `kubeshare/...` say the share and the labels.

`spec` of such a SharePod is a PodSpec itself. `kubeshare/GPUID` with `spec.nodeName` names a vGPU.

Facts: NTHU-LSALAB/KubeShare README.md (release 1.0), doc/yaml.
"""

from __future__ import annotations

from typing import Final

from aliquot.kube.dialects.annotations import Texts
from aliquot.kube.dialects.base import CanNotSay, Dialect, Owned, Words
from aliquot.kube.dialects.fractions import notes_on_containers, read_share, write_share
from aliquot.kube.objects import Pod
from aliquot.kube.requests import BadPod, PodAsk, pod_ask
from aliquot.model.requests import Labels

PREFIX: Final = "kubeshare/"
ASKING: Final = (f"{PREFIX}gpu_request", f"{PREFIX}gpu_limit")
"""Annotations one of which makes a pod KubeShare's."""

API_VERSION: Final = "kubeshare.nthu/v1"


class KubeShare1(Dialect):
    """The words of KubeShare 1."""

    name = "kubeshare1"
    owned = Owned(frozenset(), (PREFIX,))

    def speaks(self, pod: Pod) -> bool:
        """It has the annotation for the request or the limit."""
        return any(key in pod.metadata.annotations for key in ASKING)

    def read(self, pod: Pod) -> PodAsk:
        """The ask of the pod's first container; KubeShare 1 knows one GPU at most."""
        fields = Texts(pod.metadata.annotations, [], prefix=PREFIX)
        labels = Labels(*(fields.text(f"sched_{kind}") for kind in ("affinity", "anti-affinity", "exclusion")))
        ask = read_share(pod, fields, gpu_id=fields.text("GPUID"), labels=labels)
        if ask is not None and ask.request.request_milli > 1000:
            fields.faults.append(f"{fields.where('gpu_request')} is above 1.0, the most that KubeShare 1 knows")
        if ask is None or fields.faults:
            raise BadPod(pod.metadata.key, fields.faults)
        return pod_ask(pod, [ask], self.name, notes_on_containers(pod))

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
        return Words(annotations={f"{PREFIX}{name}": text for name, text in texts.items() if text})

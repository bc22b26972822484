"""The dialects in which pods request GPUs: Aliquot's own, and those of the projects it replaces.

`read` is the one door: it finds out whose words a pod is written in. A pod that asks in two sets of words at once is
refused, since they could be meant to be added or to be the same. A pod that was converted when it was admitted carries
the annotation `aliquot.dev/dialect`; then Aliquot's words count, and the old ones may still stand there for old tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aliquot.kube import names
from aliquot.kube.dialects.aliyun import Aliyun, Unit
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.dialects.hami import Hami
from aliquot.kube.dialects.kubeshare import KubeShare1, KubeShare2
from aliquot.kube.dialects.native import Native
from aliquot.kube.dialects.nvidia import Nvidia
from aliquot.kube.dialects.tencent import Tencent
from aliquot.kube.objects import Pod
from aliquot.kube.requests import BadPod, PodAsk, require_readable

NATIVE: Final = Native()


def foreign(*, aliyun_unit: Unit = "GiB") -> Mapping[str, Dialect]:
    """The dialects of others by name."""
    known: list[Dialect] = [Tencent(), Aliyun(aliyun_unit), Hami(), KubeShare1(), KubeShare2(), Nvidia()]
    return {dialect.name: dialect for dialect in known}


FOREIGN: Final = foreign()


def of_origin(pod: Pod, others: Mapping[str, Dialect] = FOREIGN) -> Dialect | None:
    """The project in whose dialect the pod was created, also after it was rewritten; None for Aliquot's own."""
    named = others.get(pod.metadata.annotations.get(names.DIALECT, ""))
    return named or next(iter(speaking(pod, others)), None)


def speaking(pod: Pod, others: Mapping[str, Dialect]) -> list[Dialect]:
    """The dialects of others that the pod uses."""
    found = [dialect for dialect in others.values() if dialect.speaks(pod)]
    return [dialect for dialect in found if dialect.yields_to.isdisjoint(other.name for other in found)]


def spoken(pod: Pod, others: Mapping[str, Dialect] = FOREIGN) -> Dialect | None:
    """The dialect of the pod; None without a GPU request.

    Raises:
        BadPod: it uses two dialects, or is too large to be read.
    """
    native = NATIVE.speaks(pod)
    notes = pod.metadata.annotations
    converted = names.DIALECT in notes and (native or names.CLAIMS in notes)
    found = [NATIVE] * native + ([] if converted else speaking(pod, others))
    if found:
        require_readable(pod)
    if len(found) > 1:
        listed = " and ".join(d.name for d in found)
        raise BadPod(pod.metadata.key, [f"it asks for GPUs in the words of {listed}; keep one of them"])
    return found[0] if found else None


def read(pod: Pod, others: Mapping[str, Dialect] = FOREIGN) -> PodAsk | None:
    """The pod's request; None if it requests no GPU.

    Raises:
        BadPod: its words contradict themselves, with the path of each fault.
    """
    dialect = spoken(pod, others)
    ask = dialect.read(pod) if dialect is not None else None
    return ask if ask is not None and ask.containers else None

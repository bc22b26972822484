"""What both versions of KubeShare have in common: decimal fractions and bytes as text under a prefix.

The share belongs to the pod. In Aliquot one container holds it: the first.
"""

from __future__ import annotations

from aliquot.kube.dialects.annotations import Texts
from aliquot.kube.dialects.base import CanNotSay
from aliquot.kube.objects import Pod
from aliquot.kube.requests import LEAST_MILLI, ContainerAsk, PodAsk
from aliquot.model.quantities import MILLI, BadQuantity, Memory, parse_milli
from aliquot.model.requests import BadRequest, GpuRequest, Labels, checked

_MIB = 1024 * 1024


def bytes_to_memory(text: str) -> Memory:
    """Bytes as text, rounded up to MiB.

    Raises:
        BadQuantity: no whole number of bytes, or 0.
    """
    if not text.strip().isdigit() or not int(text):
        raise BadQuantity(f'"{text}" is not a number of bytes; write 1073741824 for 1 GiB')
    return Memory(mib=-(-int(text) // _MIB))


def read_share(pod: Pod, fields: Texts, *, gpu_id: str = "", labels: Labels | None = None) -> ContainerAsk | None:
    """The pod's share as that of its first container; faults go to `fields`.

    A request of 0 is KubeShare's way of saying that nothing is guaranteed; here that is the least share.
    """
    request = fields.read("gpu_request", parse_milli)
    limit = fields.read("gpu_limit", parse_milli)
    memory = fields.read("gpu_mem", bytes_to_memory)
    if not pod.spec.containers:
        fields.faults.append("spec.containers is empty; write at least one container")
    if fields.faults:
        return None
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
        return None
    return ContainerAsk(pod.spec.containers[0].name, asked)


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

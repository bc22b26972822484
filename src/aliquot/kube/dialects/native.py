"""Aliquot's own words: two resources, a few annotations.

    resources.limits:  aliquot.dev/gpu-percent: 30     aliquot.dev/gpu-memory: 4Gi
    annotations:       aliquot.dev/gpu-limit: "0.6"    aliquot.dev/gpu-limit.sidecar: "0.2"

The resource is what the scheduler and kubelet count, so it says hundredths; an exact request stands in the annotation
`gpu-request`, and then the resource is its hundredths rounded down, at least 1. An annotation without a suffix means
every container that asks; `gpu-request` without one means the only container that asks.

Resources of a pod cannot be changed. Once it has a plan, the annotations `gpu-request` and `gpu-memory` may therefore
differ from them, and are what it is to have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final

from aliquot.kube import names
from aliquot.kube.dialects.base import ORDERED, Dialect, Owned, Texts, Words, asked, base_of, count, names_any
from aliquot.kube.objects import Container, Pod
from aliquot.kube.quantities import format_mib_quantity, mib_up
from aliquot.kube.requests import LEAST_MILLI, ContainerAsk, PodAsk, Role, containers_of, improbable, shortened
from aliquot.model.quantities import MILLI, BadQuantity, Memory, format_milli, parse_memory, parse_milli
from aliquot.model.requests import ENFORCE, BadRequest, GpuRequest, Labels, checked, parse_label, parse_word
from aliquot.model.wake import format_wake, parse_wake

_TAKEN_BACK: Final = f"{names.PREFIX}priority"
_NO_ASK: Final = (
    names.PLAN,
    names.PLAN_STATUS,
    names.PLAN_APPLIED,
    names.RESIZE,
    names.DIALECT,
    names.TRACEPARENT,
    names.SHAREPOD_GENERATION,
    names.SHAREPOD_SPEC,
    names.WORKLOAD,
    names.CLAIMS,
)
_CORES_MOST: Final = 1024
_LIST: Final = re.compile(r"\s*[,|]\s*")
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,4})?)\s*%?")
_PARTS_MOST: Final = 64


class Native(Dialect):
    """The dialect of this project; every other is converted to it."""

    name = "aliquot"
    owned = Owned(frozenset(names.RESOURCES), (names.PREFIX,), (), ())

    def speaks(self, pod: Pod) -> bool:
        """It names our resources, or has one of our annotations for asking and no claims in their place."""
        notes = pod.metadata.annotations
        noted = names.CLAIMS not in notes and any(base_of(key) in names.ASK_ANNOTATIONS for key in notes)
        return super().speaks(pod) or noted

    def asks(self, pod: Pod, faults: list[str]) -> tuple[list[ContainerAsk], list[str]]:
        """The requests of its containers, by resource or annotation."""
        faults += unknown_words(pod)
        asking = _asking(pod, faults)
        asks, notes = [], list[str]()
        for entry in asking:
            if (ask := _container(pod, entry, len(asking), faults)) is not None:
                asks.append(ask)
                memory = f'{entry.path}.resources.limits["{names.GPU_MEMORY}"]'
                notes += improbable(
                    ask, _path_of_request(entry), memory, asked(entry.container, names.GPU_MEMORY), "bytes"
                )
        if not asking and not faults:
            faults.append(
                f'metadata.annotations speak of a GPU, but no container asks for one; add "{names.GPU_PERCENT}" '
                "to a container's resources.limits"
            )
        return asks, notes

    def write(self, ask: PodAsk) -> Words:
        """Resources on each container; annotations with a suffix where there are several containers that ask."""
        words = Words()
        for c in ask.containers:
            suffix = f".{c.container}" if len(ask.containers) > 1 else ""
            words.resources[c.container] = resources_for(c)
            request, labels = c.request, c.request.labels
            part = request.memory.part if request.memory is not None else None
            limit = f"{request.limit_milli * c.parts / MILLI:.3f}" if request.limit_milli is not None else ""
            annotations = {
                names.GPU_REQUEST: f"{c.total_milli / MILLI:.3f}" if c.total_milli != c.percent * LEAST_MILLI else "",
                names.GPU_LIMIT: limit.rstrip("0").rstrip("."),
                names.GPU_MEMORY_PART: f"{float(part * 100):g}%" if part is not None else "",
                names.GPU_MEMORY_LIMIT: request.memory_limit_text,
                names.GPU_PARTS: str(c.parts) if c.parts > 1 else "",
                names.GPU_MODEL: ", ".join(filter(None, request.model.split("|"))),
                names.GPU_MODEL_NOT: ", ".join(c.models_not),
                names.GPU_UUID: ", ".join([*filter(None, request.gpu.split(",")), *(f"!{u}" for u in c.uuids_not)]),
                names.GPU_ID: request.gpu_id,
                names.AFFINITY: labels.affinity,
                names.ANTI_AFFINITY: labels.anti_affinity,
                names.EXCLUSION: labels.exclusion,
                names.GPU_MODELS_MIXED: "true" if request.mixed else "",
                names.CPU_BIND: str(c.near_cores) if c.near_cores else "",
                names.ENFORCE: request.enforce or "",
                names.WAKE: format_wake(request.wake_us) if request.wake_us else "",
            }
            words.annotations |= {f"{name}{suffix}": text for name, text in annotations.items() if text}
        return words


def resized_words(ask: ContainerAsk, suffix: str = "") -> dict[str, str | None]:
    """The annotations by which a container that runs is given this size, None for those that have to go.

    `suffix` is that of its own annotations, where it has some.
    """
    request = ask.request
    said = Native().write(PodAsk("", "", (ask,))).annotations
    sizes: dict[str, str | None] = {f"{name}{suffix}": said.get(name) for name in names.SIZES}
    sizes[f"{names.GPU_REQUEST}{suffix}"] = f"{ask.total_milli / MILLI:.3f}"
    if request.memory is not None and request.memory.mib:
        sizes[f"{names.GPU_MEMORY}{suffix}"] = format_mib_quantity(request.memory.mib * ask.parts)
    return sizes


def resources_for(ask: ContainerAsk) -> dict[str, str | int | float]:
    """The resources that the scheduler and kubelet must see on the container of this ask."""
    found: dict[str, str | int | float] = {names.GPU_PERCENT: ask.percent}
    if ask.request.memory is not None and ask.request.memory.mib:
        found[names.GPU_MEMORY] = format_mib_quantity(ask.request.memory.mib * ask.parts)
    return found


@dataclass(frozen=True)
class _Entry:
    """One container with a request."""

    container: Container
    role: Role
    path: str
    percent: int
    memory_mib: int
    request: tuple[str, str] | None
    """Path and text of its gpu-request."""
    planned: bool
    """Whether its pod has a plan, so that annotations go before resources, which cannot change any more."""


def unknown_words(pod: Pod, sizes: frozenset[str] = frozenset()) -> list[str]:
    """Resources and annotations with our prefix that do not exist, or name a container that does not.

    `sizes` are resources by which fixed sizes are asked for by count.
    """
    known = dict.fromkeys(c.name for c, _, _ in containers_of(pod))
    listed = shortened(", ".join(known))
    faults = [
        f'{path}.resources.limits["{name}"] is not a resource of Aliquot; it knows {", ".join(names.RESOURCES)}'
        for c, _, path in containers_of(pod)
        for name in dict.fromkeys([*c.resources.limits, *c.resources.requests])
        if name.startswith(names.PREFIX) and name not in names.RESOURCES and name not in sizes
    ]
    for key in pod.metadata.annotations:
        if not key.startswith(names.PREFIX) or key in _NO_ASK:
            continue
        base, container = base_of(key), key.partition("/")[2].partition(".")[2]
        if base not in names.ASK_ANNOTATIONS:
            if base == _TAKEN_BACK:
                faults.append(f"{path_of(key)} orders nothing: {ORDERED}; leave it out")
                continue
            short = ", ".join(name.removeprefix(names.PREFIX) for name in names.ASK_ANNOTATIONS)
            faults.append(f"{path_of(key)} is not an annotation of Aliquot; it knows {short}")
        elif container and container not in known:
            faults.append(f'{path_of(key)} names a container "{container}"; the pod has {listed}')
    return faults


def _asking(pod: Pod, faults: list[str]) -> list[_Entry]:
    """The containers that request a GPU, by resource or by annotation."""
    notes = pod.metadata.annotations
    found: list[_Entry] = []
    everyone = containers_of(pod)
    named = {c.name for c, _, _ in everyone if f"{names.GPU_REQUEST}.{c.name}" in notes}
    by_resource = {c.name for c, _, _ in everyone if names_any(c, Native.owned.resources)}
    asking = by_resource | named
    lone = _lone_request(pod, asking - named, everyone, faults)
    for c, role, path in everyone:
        if c.name not in asking and c.name != lone:
            continue
        key = f"{names.GPU_REQUEST}.{c.name}" if c.name in named else names.GPU_REQUEST
        request = (path_of(key), notes[key]) if c.name in named or c.name == lone else None
        before = len(faults)
        percent = count(c, path, names.GPU_PERCENT, faults)
        amount, mib = asked(c, names.GPU_MEMORY), 0
        try:
            mib = mib_up(amount) if amount is not None else 0
            if amount is not None and (mib < 1 or mib_up(c.resources.requests.get(names.GPU_MEMORY, amount)) != mib):
                raise BadQuantity(f"{amount} is not an amount of memory above 0, equal in limits and requests")
        except BadQuantity as error:
            faults.append(f'{path}.resources.limits["{names.GPU_MEMORY}"]: {error}')
            mib = 0
        if not percent and request is None and len(faults) == before:
            if asked(c, names.GPU_PERCENT) is not None:
                faults.append(f'{path}.resources.limits["{names.GPU_PERCENT}"] is 0, which is no share; the least is 1')
            else:
                way_out = f'add "{names.GPU_PERCENT}" to its resources.limits, 1 is the least'
                faults.append(f"{path} asks for GPU memory but for no share; {way_out}")
        found.append(_Entry(c, role, path, percent, mib, request, names.PLAN in notes))
    return found


def _lone_request(
    pod: Pod, without: set[str], everyone: list[tuple[Container, Role, str]], faults: list[str]
) -> str | None:
    """The container that a gpu-request without a suffix means: the only one that asks, or the only one there is."""
    if names.GPU_REQUEST not in pod.metadata.annotations:
        return None
    candidates = without or {c.name for c, role, _ in everyone if role == "app"}
    if not candidates:
        faults.append(f"{path_of(names.GPU_REQUEST)} asks for a GPU, but the pod has no container that could have it")
        return None
    if len(candidates) == 1:
        return next(iter(candidates))
    listed = ", ".join(sorted(candidates))
    faults.append(
        f"{path_of(names.GPU_REQUEST)} could mean several containers ({listed}); "
        f"name one, as in {names.GPU_REQUEST}.{sorted(candidates)[0]}"
    )
    return None


def _container(pod: Pod, entry: _Entry, asking: int, faults: list[str]) -> ContainerAsk | None:
    notes, before = Texts(pod.metadata.annotations, faults, container=entry.container.name), len(faults)
    total = _total_milli(entry, notes)
    limit = notes.read(names.GPU_LIMIT, parse_milli)
    parts = notes.read(names.GPU_PARTS, lambda text: parse_integer(text, 1, _PARTS_MOST)) or 1
    memory = _memory_of(entry, notes, parts)
    uuids = notes.read(names.GPU_UUID, parse_words) or ()
    labels = Labels(*(notes.read(n, parse_label) or "" for n in (names.AFFINITY, names.ANTI_AFFINITY, names.EXCLUSION)))
    gpu_id = notes.read(names.GPU_ID, parse_label) or ""
    cores = notes.read(names.CPU_BIND, lambda text: parse_integer(text, 1, _CORES_MOST)) or 0
    enforce = notes.read(names.ENFORCE, partial(parse_word, ENFORCE))
    wake_us = notes.read(names.WAKE, parse_wake) or 0
    memory_limit = notes.read(names.GPU_MEMORY_LIMIT, parse_memory)
    mixed = notes.read(names.GPU_MODELS_MIXED, parse_truth) or False
    models, models_not = (notes.read(name, parse_words) or () for name in (names.GPU_MODEL, names.GPU_MODEL_NOT))
    if len(faults) > before or not total:
        return None
    if parts > 1 and (total % parts or (limit or 0) % parts or total // parts >= 1000):
        faults.append(
            f"{notes.where(names.GPU_PARTS)} {parts} does not divide {format_milli(total)} GPUs"
            f"{f' with limit {format_milli(limit)}' if limit else ''} into equal shares below 1.0"
        )
        return None
    request = GpuRequest(
        request_milli=total // parts,
        limit_milli=None if limit is None else limit // parts,
        memory=memory,
        model="|".join(models),
        gpu=",".join(uuid for uuid in uuids if not uuid.startswith("!")),
        gpu_id=gpu_id,
        labels=labels,
        enforce=enforce,
        mixed=mixed,
        wake_us=wake_us,
        memory_limit=memory_limit,
    )
    for name in (names.WAKE, names.GPU_MEMORY_LIMIT):
        if parts > 1 and notes.text(name):
            faults.append(
                f"{notes.where(name)} is for a part of one GPU, {notes.where(names.GPU_PARTS)} is {parts}; "
                "leave one of them out"
            )
    if enforce == "never" and cores:
        faults.append(
            f"{notes.where(names.CPU_BIND)} is done by the library that {notes.where(names.ENFORCE)} never leaves out; "
            "write memory, or leave one of them out"
        )
    _check(entry, request, parts, notes, faults)
    return ContainerAsk(
        entry.container.name,
        request,
        entry.role,
        parts,
        models_not,
        tuple(uuid[1:] for uuid in uuids if uuid.startswith("!")),
        near_cores=cores,
    )


def _path_of_request(entry: _Entry) -> str:
    return entry.request[0] if entry.request else f'{entry.path}.resources.limits["{names.GPU_PERCENT}"]'


def _check(entry: _Entry, request: GpuRequest, parts: int, notes: Texts, faults: list[str]) -> None:
    """What each number says alone is right; do they go together?"""
    path = _path_of_request(entry)
    try:
        checked(
            request,
            request_name=path,
            limit_name=notes.where(names.GPU_LIMIT),
            enforce_name=notes.where(names.ENFORCE),
            wake_name=notes.where(names.WAKE),
            memory_limit_name=notes.where(names.GPU_MEMORY_LIMIT),
        )
    except BadRequest as error:
        faults.append(str(error))
        return
    devices = parts * (request.whole + (request.rest_milli > 0))
    labels = request.labels
    if devices > 1 and (labels.affinity or request.gpu_id):
        name = names.AFFINITY if labels.affinity else names.GPU_ID
        faults.append(f"{notes.where(name)} means one GPU, but {path} asks for {devices}; leave one of them out")
    if labels.affinity and labels.affinity == labels.anti_affinity:
        faults.append(
            f'{notes.where(names.AFFINITY)} and {notes.where(names.ANTI_AFFINITY)} are both "{labels.affinity}"; '
            "the same label cannot mean together and apart"
        )
    if request.memory is not None and request.whole and (request.rest_milli == 0 and request.whole > 1):
        faults.append(
            f'{entry.path}.resources.limits["{names.GPU_MEMORY}"] is given with {request.whole} whole GPUs, '
            "which own all their memory; leave it out"
        )


def _total_milli(entry: _Entry, notes: Texts) -> int:
    """The request in milli-GPU; the exact one and the resource must agree."""
    if entry.request is None:
        return entry.percent * 10
    where, text = entry.request
    exact = notes.parse(where, text, parse_milli) or 0
    hundredths = max(1, exact // 10)
    if exact and entry.percent and entry.percent != hundredths and not entry.planned:
        notes.faults.append(
            f'{entry.path}.resources.limits["{names.GPU_PERCENT}"] is {entry.percent}, but {where} "{text}" makes it '
            f"{hundredths}; write that or leave it out"
        )
    elif exact == 0 and text:
        notes.faults.append(f"{where} {text} asks for nothing; ask for at least 0.001 of a GPU")
    return exact


def _memory_of(entry: _Entry, notes: Texts, parts: int) -> Memory | None:
    part, said_mib = notes.read(names.GPU_MEMORY_PART, parse_percent), notes.read(names.GPU_MEMORY, _positive_mib)
    resource = f'{entry.path}.resources.limits["{names.GPU_MEMORY}"]'
    counted_mib = 0 if entry.planned and (part or said_mib) else entry.memory_mib
    if part is not None and (counted_mib or said_mib):
        notes.faults.append(
            f"{notes.where(names.GPU_MEMORY_PART)} and {notes.where(names.GPU_MEMORY) if said_mib else resource} "
            "both say how much memory; leave one of them out"
        )
    if said_mib and counted_mib and said_mib != counted_mib:
        notes.faults.append(
            f"{resource} is {format_mib_quantity(counted_mib)}, but {notes.where(names.GPU_MEMORY)} makes it "
            f"{format_mib_quantity(said_mib)}; write that or leave it out"
        )
    if part is not None:
        return Memory(part=part)
    mib = said_mib or counted_mib
    if mib % parts:
        where = notes.where(names.GPU_MEMORY) if said_mib else resource
        notes.faults.append(f"{where} is not {parts} times a whole number of MiB")
    return Memory(mib=mib // parts) if mib else None


def _positive_mib(text: str) -> int:
    """An amount of memory in MiB.

    Raises:
        BadQuantity: it is none, or 0.
    """
    if (mib := mib_up(text)) < 1:
        raise BadQuantity(f"{text} is not an amount of memory above 0")
    return mib


def path_of(key: str) -> str:
    """Where an annotation stands in its pod."""
    return f'metadata.annotations["{key}"]'


def parse_integer(text: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`.

    Raises:
        BadQuantity: the text is none.
    """
    if not re.fullmatch(r"-?\d{1,12}", text.strip()) or not least <= int(text) <= most:
        raise BadQuantity(f'"{text}" is not a whole number between {least} and {most}')
    return int(text)


def parse_truth(text: str) -> bool:
    """`true` or `false`.

    Raises:
        BadQuantity: the text is neither.
    """
    if text not in ("true", "false"):
        raise BadQuantity(f'"{text}" is neither true nor false')
    return text == "true"


def parse_words(text: str) -> tuple[str, ...]:
    """Names with commas or strokes between.

    Raises:
        BadQuantity: there is none.
    """
    found = tuple(filter(None, _LIST.split(text.strip())))
    if not found:
        raise BadQuantity("it names nothing; write one name or several with commas between, or leave it out")
    return found


def parse_percent(text: str) -> Fraction:
    """A part of a device, up to 100 %.

    Raises:
        BadQuantity: the text is none.
    """
    found = _PERCENT.fullmatch(text.strip())
    part = Fraction(found[1]) / 100 if found else Fraction(0)
    if not 0 < part <= 1:
        raise BadQuantity(f'"{text}" is not a part of a device\'s memory; write 1% to 100%')
    return part

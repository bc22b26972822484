"""Explanations in words: the one place where codes and numbers become sentences.

The command line, kubectl's plugin, the pages and kube-scheduler's events all show these, so one situation reads the
same everywhere. A node's sentence depends on its code and the request alone, not on the node, where that can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.model.wake import format_us, format_wake
from aliquot.placement.asks import PPM, Ask
from aliquot.placement.codes import (
    EXCLUSIVE,
    UNHEALTHY,
    Alternatives,
    Code,
    Links,
    PlacedBecause,
    Preference,
    QuotaExcess,
    Room,
    Suggestion,
    UnmeasuredKernels,
    UnmetConstraint,
    Verdict,
)

MAX_UUID_SHOWN: Final = 80
FITS: Final = "fits"
FREE_NOW: Final = "waits, though GPUs for it are free now"
"""The verb for a pod that has room and that kube-scheduler has not placed."""
_BARRIERS: Final = {EXCLUSIVE: "is not exclusive to others", UNHEALTHY: "is well"}
_DEVICES_SHOWN: Final = 4
_ELSEWHERE: Final = "the pod's group has a share for it on another node"
_ENDING_SHOWN: Final = 3
_NODES_SHOWN: Final = 8


def text_of(reason: UnmetConstraint) -> str:
    """The constraint in words, to follow the name of the node or device."""
    return _TEXTS[reason.code](reason)


def sentence_of(reason: UnmetConstraint) -> str:
    """The constraint in words, with the name of the node or device before it."""
    return f"{f'GPU {reason.gpu}' if reason.gpu >= 0 else reason.node} {text_of(reason)}"


def wish(ask: Ask) -> str:
    """What is asked, in words."""
    parts = []
    if ask.devices:
        few = f"{ask.whole} GPU{'s' * (ask.whole != 1)}" if not ask.rest_milli else f"{format_milli(ask.milli)} GPU"
        parts.append(few + (f" of model {' or '.join(ask.models)}" if ask.models else ""))
        if ask.devices > 1:
            parts[-1] += " close to each other"
    if ask.gpu_mib:
        parts.append(f"{format_mib(ask.gpu_mib)} of GPU memory")
    elif ask.gpu_mem_ppm:
        parts.append(f"{_percent(ask.gpu_mem_ppm)} of a GPU's memory")
    if ask.cpu_milli:
        parts.append(f"{ask.cpu_milli / 1000:g} CPU")
    if ask.memory_mib:
        parts.append(f"{format_mib(ask.memory_mib)} of memory")
    if ask.wake_us:
        parts.append(f"to wake in {format_wake(ask.wake_us)}")
    return ", ".join([*parts, *_named(ask)]) or "nothing"


def _named(ask: Ask) -> list[str]:
    """The labels and devices that are asked for by name."""
    labels = ask.labels
    named = {"affinity": labels.affinity, "anti-affinity": labels.anti_affinity, "exclusion": labels.exclusion}
    named |= {"vGPU": ask.gpu_id, "GPU": ask.gpu_uuid}
    return [f'{kind} "{value}"' for kind, value in named.items() if value]


def waiting(name: str, ask: Ask, verdicts: Sequence[Verdict]) -> str:
    """The answer for a request that has no place."""
    reason = verdicts[0].reason if len(verdicts) == 1 else None
    if reason is not None:
        why = text_of(reason) if reason.code is Code.QUOTA else f"node {sentence_of(reason)}"
        lacks = shortfall(ask, verdicts[0])
        return f"{name} waits: asks {wish(ask)}; {why}." + f" It {lacks}." * lacks.startswith("needs ")
    return f"{name} waits: asks {wish(ask)}, none of {len(verdicts)} nodes has that much free."


def never(name: str, why: str) -> str:
    """The answer for a request that the machine could not hold if it were empty."""
    return f"{name} never fits here: {why}"


def not_counted(barred: Mapping[str, str]) -> Iterator[str]:
    """Nodes that are left out of an answer, by why: Kubernetes does not allow them for the pod."""
    for why in dict.fromkeys(barred.values()):
        names = [name for name, other in sorted(barred.items()) if other == why]
        more = f" and {len(names) - _NODES_SHOWN} more" if len(names) > _NODES_SHOWN else ""
        yield f"not counted: {', '.join(names[:_NODES_SHOWN])}{more}: {why}"


def reported(message: str) -> str:
    """What kube-scheduler says of a pod."""
    return f"kube-scheduler reports: {message}"


def gpus(indices: Sequence[int]) -> str:
    """GPUs by their index."""
    return " and ".join(f"GPU {index}" for index in indices)


def moved(indices: Sequence[int]) -> str:
    """Why something is not where it would be placed now, which is on these GPUs."""
    why = "the tenants, or what was learned of future requests, have changed"
    return f"asked now, it would go to {gpus(indices)}: {why}"


def within_quota(excess: QuotaExcess) -> str:
    """How much more would have been within the quota."""
    left, shown = max(0, excess.allowed - excess.held), format_mib if excess.memory else format_milli
    return f"{shown(left) if left else 'nothing'} more would fit"


def over_quota(excess: QuotaExcess) -> str:
    """What would be too much for a namespace, or what else a quota is for."""
    kind = excess.kind
    if excess.label:
        quota = f'the quota "{excess.quota}"' if excess.quota else "the quota"
        return f'{quota} of {kind} "{excess.namespace}" forbids labels of {excess.label}'
    shown = format_mib if excess.memory else format_milli
    model = f" of {excess.model}" if excess.model else ""
    by = f' by the quota "{excess.quota}"' if excess.quota else ""
    return (
        f'{kind} "{excess.namespace}" holds {shown(excess.held)}{model} GPU{" memory" if excess.memory else "s"} of '
        f"{shown(excess.allowed)} it may have{by}, {shown(excess.asked)} more were asked"
        f"{': with an exclusion label each GPU counts whole' if excess.whole else ''}"
    )


def suggestion(change: Suggestion) -> str:
    """A way to make a request fit, to follow "Nearest:"."""
    where = f"GPU {change.gpu} of {change.node}" if change.gpu >= 0 else change.node
    match change.kind:
        case "uncordon":
            return f"reopen node {change.node}, and it fits there"
        case "less":
            return f"ask {' and '.join(_less(change))} less, and it fits on {where}"
        case "wait":
            ends = [
                f"{end.name} ({format_milli(end.milli)}, {format_mib(end.memory_mib)})" if end.milli else end.name
                for end in change.ends
            ]
            more = f" and {len(ends) - _ENDING_SHOWN} more" if len(ends) > _ENDING_SHOWN else ""
            has = "have" if len(ends) > 1 else "has"
            return f"after {', '.join(ends[:_ENDING_SHOWN])}{more} {has} ended, it fits on {where}"
        case "drop":
            asked, ask = change.asked, change.ask
            dropped = ", ".join(wish for wish in _named(asked) if wish not in _named(ask))
            if asked.models != ask.models:
                dropped = f"model {' or '.join(asked.models)}"
            elif asked.wake_us != ask.wake_us:
                dropped = f"wake {format_wake(asked.wake_us)}"
            return f"without {dropped} it fits on {where} now"


def _less(change: Suggestion) -> Iterator[str]:
    """What is asked for no more."""
    asked, ask = change.asked, change.ask
    if asked.milli > ask.milli:
        yield f"{format_milli(asked.milli - ask.milli)} GPU"
    if change.less_gpu_mib > 0:
        yield f"{format_mib(change.less_gpu_mib)} of GPU memory"
    if asked.gpu_mem_ppm > ask.gpu_mem_ppm:
        yield f"{_percent(asked.gpu_mem_ppm - ask.gpu_mem_ppm)} of the GPU's memory"
    if asked.cpu_milli > ask.cpu_milli:
        yield f"{(asked.cpu_milli - ask.cpu_milli) / MILLI:g} CPU"
    if asked.memory_mib > ask.memory_mib:
        yield f"{format_mib(asked.memory_mib - ask.memory_mib)} of memory"


def because(reason: PlacedBecause, *, held: bool = False) -> str:
    """One part of the reason for a placement; `held` if the place is held already."""
    match reason:
        case Room(node, gpu, milli, mib, takes_milli, takes_mib) if held:
            compute = f"without it {format_milli(milli)} free, with it {format_milli(milli - takes_milli)}"
            return f"GPU {gpu} of {node}: {compute}; {format_mib(mib)} and {format_mib(mib - takes_mib)}"
        case Room(node, gpu, milli, mib, takes_milli, takes_mib):
            compute = f"{format_milli(milli)} free now, {format_milli(milli - takes_milli)} after"
            return f"GPU {gpu} of {node}: {compute}; {format_mib(mib)} now, {format_mib(mib - takes_mib)} after"
        case UnmeasuredKernels(tenant):
            return f"whether it wakes in time is not certain yet: kernels of {tenant} were not measured"
        case Links(counts):
            return "links between them: " + ", ".join(f"{count} x {link}" for link, count in counts)
        case Preference(policy, takes):
            return f"{policy} takes {takes}"
        case Alternatives(nodes, fitting, next_best):
            if not next_best:
                return f"no other of {nodes} nodes has room" if nodes > 1 else "it is the only node"
            return f"{fitting} of {nodes} nodes have room; the next best is {next_best}"


@dataclass(frozen=True, slots=True)
class PlaceReason:
    """What stands against a request in one place, or in a group of equal ones; `lasting` if in empty ones too."""

    where: str
    text: str
    lasting: bool = False
    places: int = 1


def place_reasons(verdicts: Sequence[Verdict]) -> list[PlaceReason]:
    """The devices of one node, or of several nodes those with the same obstacles in one line, the commonest first."""
    if len(verdicts) == 1:
        (verdict,) = verdicts
        reasons = [verdict.reason] if verdict.reason is not None and not _by_devices(verdict.reason) else []
        devices = [r for r in verdict.devices if r is not None and r.code is not Code.QUOTA]  # said above them
        on_node = [PlaceReason(verdict.node, text_of(reason), reason.lasting) for reason in reasons]
        return on_node + [PlaceReason(f"GPU {r.gpu}", text_of(r), r.lasting) for r in devices]
    groups: dict[tuple[str, bool], list[str]] = {}
    for verdict in verdicts:
        if verdict.reason is not None:
            groups.setdefault((_summary(verdict, verdict.reason), verdict.lasting), []).append(verdict.node)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [
        PlaceReason(names[0] if len(names) == 1 else f"{len(names)} nodes", text, lasting, len(names))
        for (text, lasting), names in ordered
    ]


def shortfall(ask: Ask, verdict: Verdict) -> str:
    """What an ask lacks on one node, in one line: what it needs, and how much of that is free where."""
    devices = [(index, r) for index, r in zip(verdict.indices, verdict.devices, strict=True) if not (r and r.lasting)]
    reasons = [r for _, r in devices if r is not None]
    if verdict.reason is None or verdict.reason.code is not Code.NODE_GPUS or not reasons:
        return refusal(verdict, _DEVICES_SHOWN)
    if len(devices) == 1:
        return sentence_of(reasons[0])
    room: list[str] = []
    if ask.devices > 1 or not ask.rest_milli:
        free = [index for index, r in devices if r is None]
        room.append(f"{len(free) or 'none'} {'are' if len(free) > 1 else 'is'} free" + f" ({gpus(free)})" * bool(free))
    else:
        for code, shown in ((Code.GPU_COMPUTE, format_milli), (Code.GPU_MEMORY, format_mib)):
            short = [r for r in reasons if r.code is code]
            most = max(short, key=lambda r: r.have, default=None)
            where = "" if code is Code.GPU_COMPUTE else " on those with enough of it"
            if most is not None and most.have > 0:
                room.append(f"at most {shown(most.have)} is free{where} ({gpus([most.gpu])})")
            elif code is Code.GPU_MEMORY and short:
                room.append(f"no memory is free{where}")
            elif short:
                room.append("no GPU has any free" if len(short) == len(reasons) else f"{len(short)} without any free")
    others = Counter(text_of(r) for r in reasons if r.code not in (Code.GPU_COMPUTE, Code.GPU_MEMORY))
    room += [f"{count} GPU{'s' * (count > 1)} {text}" for text, count in others.most_common(_DEVICES_SHOWN)]
    parts = [f"{ask.whole} whole GPU{'s' * (ask.whole > 1)}"] if ask.whole else []
    parts += [f"{format_milli(ask.rest_milli)} of {'another' if ask.whole else 'a GPU'}"] if ask.rest_milli else []
    needed = " and ".join(parts) + (f" with {format_mib(ask.gpu_mib)}" if ask.gpu_mib else "")
    return f"needs {needed}, {'; '.join(room)}"


def refusal(verdict: Verdict, shown: int) -> str:
    """What stands against a request on one node, in one line, with its first devices."""
    reasons = [reason for reason in verdict.devices if reason is not None]
    named = [reason for reason in reasons if reason.code is not Code.GPU_UUID]  # these are not short of anything
    devices = [sentence_of(reason) for reason in named or reasons]
    more = f" (and {len(devices) - shown} more)" if len(devices) > shown else ""
    if devices or verdict.reason is None:
        return f"{'; '.join(devices[:shown])}{more}"
    return sentence_of(verdict.reason)


def _by_devices(reason: UnmetConstraint) -> bool:
    """Whether the node's reason is the sum of those of its devices."""
    return reason.code in (Code.NODE_GPUS, Code.NODE_FEW_GPUS, Code.QUOTA)


def _summary(verdict: Verdict, reason: UnmetConstraint) -> str:
    """The node's reason, with those of its devices counted."""
    texts = [text_of(device) for device in verdict.devices if device and device.lasting >= reason.lasting]
    counts = Counter(text for text in texts if text != text_of(reason))
    if not _by_devices(reason) or not counts or (reason.lasting and len(texts) < len(verdict.devices)):
        return text_of(reason)
    devices = [f"{count} x {text}" if count > 1 else text for text, count in counts.most_common(_DEVICES_SHOWN)]
    more = f" and {len(counts) - _DEVICES_SHOWN} more" if len(counts) > _DEVICES_SHOWN else ""
    return f"{text_of(reason)}: {'; '.join(devices)}{more}"


def _few(wanted: Ask, reason: UnmetConstraint) -> str:
    kind = f" of model {' or '.join(wanted.models)}" if wanted.models else ""
    if wanted.gpu_mib and wanted.devices == 1:
        kind += f" with {format_mib(wanted.gpu_mib)}"
    if wanted.gpu_uuid:
        kind += (
            f" called {wanted.gpu_uuid}" if len(wanted.gpu_uuid) < MAX_UUID_SHOWN else " with one of the UUIDs named"
        )
    if wanted.wake_us:
        kind += " that can promise when it wakes"
    kind += f" of {reason.label}" if reason.label else ""
    if reason.asked == 1:
        return f"has no GPU{kind}"
    return f"has {reason.have or 'no'} GPU{'s' * (reason.have > 1)}{kind}, {reason.asked} were asked"


def _room(wanted: Ask, label: str) -> str:
    parts = []
    if wanted.whole:
        parts.append(f"{wanted.whole} free GPU{'s' * (wanted.whole > 1)}")
    if wanted.rest_milli:
        memory = f" and {format_mib(wanted.gpu_mib)}" if wanted.gpu_mib else ""
        memory = f" and {_percent(wanted.gpu_mem_ppm)} of its memory" if wanted.gpu_mem_ppm else memory
        parts.append(f"a GPU with {format_milli(wanted.rest_milli)}{memory} free")
    allowed = ["its labels allow"] if _named(wanted) else []
    allowed += ["can promise when it wakes"] if wanted.wake_us else []
    allowed += [_BARRIERS[label]] if label else []
    return " and ".join(parts) + "".join(f"{' and' if n else ''} that {each}" for n, each in enumerate(allowed))


def _percent(ppm: int) -> str:
    return f"{ppm * 100 / PPM:g}%"


def _wake(reason: UnmetConstraint) -> str:
    if not reason.have:
        return f'has "{reason.label}" with a wake of its own, too many to keep one as short as this'
    allowed, longest = format_us(reason.asked), format_us(reason.have)
    return f'has "{reason.label}" with kernels of {longest}, wake allows {allowed}'


_TEXTS: Final[Mapping[Code, Callable[[UnmetConstraint], str]]] = {
    Code.POD_FAULTY: lambda r: r.label,
    Code.POD_TOGETHER: lambda r: "has room for each container alone, not for all",
    Code.POD_UNTRIED: lambda r: f"was not tried for {r.asked} requests at once: its turn comes with the next call",
    Code.POD_GROUP: lambda r: f"is left out: {r.label or _ELSEWHERE}",
    Code.NODE_UNKNOWN: lambda r: "has no GPUs that Aliquot knows of",
    Code.NODE_FAULTY: lambda r: f"takes no pods: {r.label}",
    Code.NODE_CORDONED: lambda r: "takes no pods (cordoned)",
    Code.NODE_CPU: lambda r: f"has {r.have / MILLI:g} CPU free, {r.asked / MILLI:g} were asked",
    Code.NODE_MEMORY: lambda r: f"has {format_mib(r.have)} of memory free, {format_mib(r.asked)} were asked",
    Code.NODE_NO_GPU: lambda r: "has no GPU",
    Code.NODE_FEW_GPUS: lambda r: _few(r.wanted or Ask(), r),
    Code.NODE_GPU_SIZE: lambda r: (
        f"has no GPU with {format_mib(r.asked)} of memory, its largest has {format_mib(r.have)}"
    ),
    Code.NODE_GPUS: lambda r: f"does not have {_room(r.wanted or Ask(), r.label)}",
    Code.NODE_ONE_MODEL: lambda r: f"does not have {_room(r.wanted or Ask(), '')} of one model",
    Code.GPU_UUID: lambda r: "is not the one that was named",
    Code.GPU_MODEL: lambda r: f'is "{r.label}", another model was asked',
    Code.GPU_SIZE: lambda r: f"has {format_mib(r.have)} in all, {format_mib(r.asked)} were asked",
    Code.GPU_UNHEALTHY: lambda r: "is not well",
    Code.QUOTA: lambda r: over_quota(r.excess) if r.excess else "",
    Code.GPU_AFFINITY: lambda r: f'is not where affinity "{r.label}" is',
    Code.GPU_NAMED_ELSEWHERE: lambda r: f'is not the one that is called "{r.label}"',
    Code.GPU_NAME: lambda r: "is called by another name",
    Code.GPU_EXCLUSION: lambda r: (
        f'has residents without exclusion "{r.label}"' if r.label else "is exclusive to others"
    ),
    Code.GPU_ANTI_AFFINITY: lambda r: f'has a resident with anti-affinity "{r.label}" too',
    Code.GPU_WAKE: _wake,
    Code.GPU_TURNS: lambda r: f"takes turns by {r.label}, wake is kept by fluid alone",
    Code.GPU_COMPUTE: lambda r: f"has {format_milli(r.have)} free, {format_milli(r.asked)} were asked",
    Code.GPU_MEMORY: lambda r: f"has {format_mib(r.have)} free, {format_mib(r.asked)} were asked",
}

"""A request, and the plan of slices that satisfies it.

A *slice* is (GPU, request, limit, memory). A request of 2.5 GPUs becomes a plan of three slices: two whole GPUs, which
own all their memory, and half of a third, to which the memory asked for belongs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal, TypeVar, get_args

import msgspec

from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI, BadQuantity, Memory, format_milli
from aliquot.model.wake import LEAST_US, MAX_US, YEAR_S, format_wake

Enforce = Literal["never", "memory", "all"]
"""What is enforced: nothing, the memory limit alone, or the memory limit and the share of time."""
ENFORCE: Final[tuple[Enforce, ...]] = get_args(Enforce)


Recommend = Literal["show", "initial", "auto"]
"""Whether what a tenant should ask for is shown alone, or its request follows it when it starts, or while it runs."""
RECOMMEND: Final[tuple[Recommend, ...]] = get_args(Recommend)
Word = TypeVar("Word", bound=str)
MAX_MIB: Final = 1 << 40
MAX_GPU_MIB: Final = 512 * 1024
MAX_CHOICE: Final = 4096
"""Characters of the models or GPUs that a request names: UUIDs of ninety."""
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class BadRequest(UserError):
    """A request that no machine could ever meet, or that contradicts itself."""


@dataclass(frozen=True)
class Labels:
    """Labels that a resident puts on its device (KubeShare 4.4); empty text is none."""

    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""


@dataclass(frozen=True)
class GpuRequest:
    """The part of a GPU that one tenant asks for.

    `limit_milli` None means up to the whole device; `memory` None means the same part of the device's memory as of its
    compute. `gpu` fixes the device by UUID or index, `gpu_id` by the name of a vGPU: equal names share a device.
    `enforce` None leaves to `enforced` what is held. Several GPUs are of one model unless `mixed`. `wake_us` is how
    soon its first kernel is to start when it wakes within its request, 0 where that is not promised. After
    `park_after_s` without use of the GPU its memory may be taken off it, and sooner where another needs it; 0: never.
    What is `movable` may be taken to another GPU while it runs. `recommend` is whether the request follows the use;
    None: as its engine has it. `memory` is guaranteed, and from there up to `memory_limit` what is free is lent; None:
    nothing is.
    """

    request_milli: int
    limit_milli: int | None = None
    memory: Memory | None = None
    model: str = ""
    gpu: str = ""
    gpu_id: str = ""
    labels: Labels = field(default_factory=Labels)
    enforce: Enforce | None = None
    mixed: bool = False
    wake_us: int = 0
    park_after_s: float = 0.0
    movable: bool = False
    recommend: Recommend | None = None
    memory_limit: Memory | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The models allowed, sorted; none for any."""
        return tuple(sorted({name.strip() for name in self.model.split("|")} - {""})) if self.model else ()

    @property
    def whole(self) -> int:
        """Number of GPUs taken whole."""
        return self.request_milli // MILLI

    @property
    def rest_milli(self) -> int:
        """Milli-GPU of the one device that may be shared; 0 if only whole GPUs are requested."""
        return self.request_milli % MILLI

    @property
    def ceiling_milli(self) -> int:
        """The limit with its default: so many devices as the request touches, each to the full."""
        if self.limit_milli is not None:
            return self.limit_milli
        return -(-self.request_milli // MILLI) * MILLI

    @property
    def memory_limit_text(self) -> str:
        """Up to where memory is lent, as an annotation has it; empty where nothing is."""
        return "" if self.memory_limit is None else self.memory_limit.quantity

    def enforced(self, *, library: bool = False) -> Enforce:
        """What is enforced: as requested, else all of it on a shared GPU, and on whole ones a memory limit if one is
        given.

        `library` is whether something else was asked for that the library in the program does, as binding to cores is.
        """
        if self.enforce is not None:
            return self.enforce
        if self.rest_milli:
            return "all"
        return "memory" if library or self.memory is not None else "never"

    def memory_on(self, device_mib: int) -> int:
        """MiB of the shared device, by what was asked or by the fraction of compute."""
        if self.memory is not None:
            return self.memory.on(device_mib)
        return int(Fraction(self.rest_milli or MILLI, MILLI) * device_mib)


def parse_label(text: str) -> str:
    """A label, or the name of a vGPU.

    Raises:
        BadQuantity: it has other characters than Kubernetes lets a label have, or too many.
    """
    if not _LABEL.fullmatch(text):
        raise BadQuantity(f'"{text}" is not a label; use up to 63 letters, digits and -_. as in team-a')
    return text


def check_fields(request: GpuRequest, *, cpu_bind: int = 0) -> None:
    """Refuse what options and manifests refuse of each field by itself, of a caller who used neither.

    Raises:
        BadQuantity: a label, the name of a vGPU, an amount of memory or a duration is none.
        BadRequest: it is bound to cores by the library that is to be left out.
    """
    labels, memory = request.labels, request.memory
    for label in filter(None, (request.gpu_id, labels.affinity, labels.anti_affinity, labels.exclusion)):
        parse_label(label)
    for name, text in (("model", request.model), ("gpu", request.gpu)):
        if len(text) > MAX_CHOICE or not text.isprintable():
            raise BadQuantity(f'{name} "{text}" is not in one line of {MAX_CHOICE} characters')
    for name, amount in (("memory", memory), ("memory_limit", request.memory_limit)):
        if amount is not None and amount.mib is None and not 0 < (amount.part or 0) <= 1:
            raise BadQuantity(f"{name} is neither a number of MiB nor a part of a device's, above 0 and at most 1")
    if request.wake_us and not LEAST_US <= request.wake_us <= MAX_US:
        raise BadQuantity(f"wake_us {request.wake_us} is not 0, nor {LEAST_US} to {MAX_US}")
    if not 0 <= request.park_after_s <= YEAR_S:
        raise BadQuantity(f"park_after_s {request.park_after_s} is not 0 to {YEAR_S}, a year")
    if cpu_bind < 0 or (cpu_bind and request.enforce == "never"):
        raise BadRequest(f"cpu_bind {cpu_bind} is not a number of cores, or 0; with enforce never it is 0")


def parse_word(words: Sequence[Word], text: str) -> Word:
    """One of these words.

    Raises:
        BadQuantity: another one.
    """
    for known in words:
        if text == known:
            return known
    raise BadQuantity(f'"{text:.40}" is not one of {", ".join(words)}')


def checked(
    request: GpuRequest,
    *,
    request_name: str,
    limit_name: str,
    enforce_name: str = "enforce",
    wake_name: str = "wake",
    memory_name: str = "",
    memory_limit_name: str = "--gpu-mem-limit",
) -> GpuRequest:
    """The request itself, if it makes sense; the names say where its fields came from.

    With `memory_name`, memory that would not be limited is refused: that of several whole GPUs.

    Raises:
        BadRequest: nothing asked, a limit below the request or above the devices it can run on, or a share of a GPU
            that others share, or a memory limit, which are not to be enforced; a time to wake in for a request that
            takes no turns, or takes them on several GPUs at once.
    """
    asked = format_milli(request.request_milli)
    if request.request_milli <= 0:
        raise BadRequest(f"{request_name} {asked} asks for nothing; ask for at least 0.001 of a GPU")
    limit = format_milli(request.ceiling_milli)
    if request.ceiling_milli < request.request_milli:
        raise BadRequest(f"{limit_name} {limit} is below {request_name} {asked}; a limit is at least the request")
    devices = -(-request.request_milli // MILLI)
    if request.ceiling_milli > devices * MILLI:
        raise BadRequest(
            f"{limit_name} {limit} is more than the {devices} GPU(s) that {request_name} {asked} runs on; "
            f"a limit is at most {devices}.0"
        )
    if request.enforce in ("never", "memory") and request.rest_milli:
        raise BadRequest(
            f"{enforce_name} {request.enforce} needs whole GPUs, {request_name} is {asked}: it would take from those "
            "it shares a GPU with; write all, or leave it out"
        )
    if request.enforce == "never" and request.memory is not None:
        raise BadRequest(
            f"{enforce_name} never holds no memory limit, and one is given; leave the memory out, or write memory"
        )
    if memory_name and request.memory is not None and request.whole > 1 and not request.rest_milli:
        raise BadRequest(
            f"{memory_name} {request.memory} limits the memory of one GPU, {request_name} is {asked}: several "
            "whole GPUs have all of theirs; leave it out"
        )
    lent = f"{memory_limit_name} {request.memory_limit}"
    if request.memory_limit is not None and request.request_milli >= MILLI:
        raise BadRequest(
            f"{lent} is for a part of one GPU, below 1; {request_name} is {asked}: "
            "a whole GPU has all of its memory; leave it out"
        )
    low, most = request.memory or Memory(), request.memory_limit or Memory()
    if (low.mib or 0) > (most.mib or MAX_MIB) or (low.part or 0) > (most.part or 1):
        raise BadRequest(f"{lent} is below {memory_name or 'the memory'} {low}; a limit is at least what is guaranteed")
    if (most.mib or 0) > MAX_GPU_MIB:
        raise BadRequest(f"{lent} is more memory than any GPU has; write 512Gi at most, or a part")
    for given, name in (
        (request.park_after_s, "park-after"),
        (request.recommend in ("initial", "auto"), f"recommend {request.recommend}"),
        (request.movable, "movable"),
    ):
        if given and request.request_milli >= MILLI:
            raise BadRequest(f"{name} is for a part of one GPU, below 1; {request_name} is {asked}: leave it out")
    if request.wake_us and request.request_milli >= MILLI:
        raise BadRequest(
            f"{wake_name} {format_wake(request.wake_us)} is for a part of one GPU, {request_name} is {asked}: "
            "whole GPUs are not shared and never wait; leave it out"
        )
    return request


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """A part of one device. As JSON it is the array of these fields in this order, as plans of pods have it."""

    gpu: GpuUuid = msgspec.field(name="uuid")
    request_milli: int
    limit_milli: int
    memory_mib: int


@dataclass(frozen=True)
class Plan:
    """The slices that meet one request, whole GPUs first."""

    slices: tuple[Slice, ...]

    @property
    def uuids(self) -> list[GpuUuid]:
        """The devices, in the order in which the tenant sees them."""
        return [piece.gpu for piece in self.slices]


class Device(msgspec.Struct, frozen=True):
    """One GPU as placement sees it; what more is known of it elsewhere extends this."""

    index: int
    uuid: GpuUuid
    model: str
    memory_mib: int

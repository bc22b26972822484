"""The protocol between the command line and an engine: JSON lines on a socket that only its owner may open.

One connection, one call. The call `lease` keeps its connection: a place lasts as long as the connection of the process
that holds it, so a runner that dies in whatever way leaves nothing behind. A runner whose command has ended says so,
and gets the number of processes that still used the GPU and were ended. A lease with `wait` is answered by lines that
say why it waits, until there is room. The call `exec` keeps its connection too, so that its command ends with the
engine.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import msgspec

from aliquot import status
from aliquot.driver.gpu import Gpu
from aliquot.lib.package import version
from aliquot.model.requests import Device, Enforce, GpuRequest
from aliquot.model.sharepod import SharePodManifest
from aliquot.status.workloads import PENDING, ContainerState, pod_state

WIRE: Final = 2
"""Raised when a change to calls or replies would be misunderstood. New fields have defaults instead."""
COMMAND_ENDED: Final = b"ended\n"


class LogCut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a log that is wanted: its last lines, what is not older than that, the run before the last start."""

    tail: int | None = None
    since_s: float | None = None
    previous: bool = False


class Call(msgspec.Struct, omit_defaults=True):
    """One line to the engine; which fields matter depends on `verb`."""

    verb: str
    name: str = ""
    text: str = ""
    request: GpuRequest | None = None
    cpu_bind: int = 0
    follow: bool = False
    restart: bool = False
    container: str = ""
    pid: int = 0
    wait: bool = False
    cut: LogCut | None = None


def encode_reply(reply: Reply) -> bytes:
    """The line for a reply."""
    reply.wire, reply.version = WIRE, version()
    return msgspec.json.encode(reply) + b"\n"


def encode_call(call: Call) -> bytes:
    """The line for a call."""
    return msgspec.json.encode(call, enc_hook=_fraction_text) + b"\n"


def decode_call(line: bytes) -> Call:
    """The call of a line.

    Raises:
        msgspec.MsgspecError: the line is not a call.
    """
    return msgspec.json.decode(line, type=Call, dec_hook=_fraction)


def _fraction_text(value: object) -> str:
    """A part of a GPU's memory, exactly: the one kind of value that msgspec does not know."""
    assert isinstance(value, Fraction)
    return str(value)


def _fraction(kind: type, text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, TypeError, ZeroDivisionError):
        raise ValueError(f"{text!r:.40} is not a fraction") from None


class RunLease(msgspec.Struct):
    """A tenant's place, as its runner needs it; for `exec` with the container's environment and folder."""

    name: str
    directory: str
    socket: str
    libcuda: str
    libnvml: str
    visible_devices: str
    enforce: Enforce = "all"
    variables: dict[str, str] = {}
    container: str = ""
    env: dict[str, str] = {}
    cwd: str = ""


class GpuFacts(Device, frozen=True):
    """One GPU as `get gpus` shows it: what is promised of it, to whom, and how near the others are."""

    free_milli: int
    free_mib: int
    tenants: list[dict[str, Any]]
    labels: dict[str, str]
    links: list[str]
    numa: int | None
    cores: str
    driver: str = ""


class ExplanationFacts(msgspec.Struct):
    """The explanation of one request: lines for people, fields for programs."""

    name: str
    fits: bool
    lines: list[str]
    facts: dict[str, Any] = {}


class EngineFacts(msgspec.Struct):
    """Facts about the running engine."""

    pid: int
    runtime_dir: str
    emulate: str
    arbiter_pid: int
    gpus: list[Gpu]
    tenants: int
    policy: str = ""
    history: str = ""
    """The file of the dashboard's history; empty where it is in memory."""


class RunProcess(msgspec.Struct, frozen=True):
    """One process of a tenant."""

    pid: int
    command: str


class QueuedRun(msgspec.Struct, frozen=True):
    """A run that waits for room, and why."""

    name: str
    request_milli: int
    limit_milli: int
    reason: str
    age_s: float


class PodFacts(msgspec.Struct):
    """One SharePod as `get` shows it; `gpus` are the numbers of its GPUs, none while it waits.

    `memory_mib` is what it has, `requested_memory` what it asked for, as a person reads it; empty: by its request.
    `reason` is kubelet's word for trouble, such as CrashLoopBackOff. `manifest` is what was applied.
    """

    name: str
    phase: str
    gpus: list[int]
    gpu_uuids: list[str]
    request_milli: int
    limit_milli: int
    memory_mib: int
    restarts: int
    age_s: float
    message: str = ""
    reason: str = ""
    requested_memory: str = ""
    containers: list[dict[str, Any]] = []
    events: list[str] = []
    enforce: Enforce = "all"
    wake_us: int = 0
    labels: dict[str, str] = {}
    manifest: SharePodManifest | None = None

    @property
    def state(self) -> str:
        """What `get` and the pages call it: Pending, Running, Completed, Error or kubelet's word for trouble."""
        containers = [ContainerState(c["state"].lower(), c["reason"], c["exit_status"] or 0) for c in self.containers]
        return self.phase if self.phase == PENDING else pod_state(self.phase, containers)


class Reply(msgspec.Struct, omit_defaults=True):
    """One line back. `error` is a sentence for a person and `code` the exit status that goes with it."""

    wire: int = 0
    version: str = ""
    error: str = ""
    code: int = 1
    lease: RunLease | None = None
    facts: EngineFacts | None = None
    pods: list[PodFacts] | None = None
    tenants: list[dict[str, Any]] | None = None
    lines: list[str] | None = None
    text: str = ""
    explanations: list[ExplanationFacts] | None = None
    gpus: list[GpuFacts] | None = None
    promised: list[status.Gpu] | None = None
    processes: dict[str, list[RunProcess]] | None = None
    queue: list[QueuedRun] | None = None
    hours: dict[str, Any] | None = None
    left_behind: int = 0
    """Processes that a run's command left on its GPU, and that were ended."""

    lost: dict[str, str] = {}
    """SharePods of an engine that was killed, with the phases they were in."""

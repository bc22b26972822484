"""The protocol between the command line and an engine: JSON lines on a socket.

A private engine's socket is its owner's alone. The machine's engine knows the account of each call from the kernel.

One connection, one call. The call `lease` keeps its connection: a place lasts as long as the connection of the process
that holds it, so a runner that dies in whatever way leaves nothing behind. A runner whose command has ended says so,
and gets the number of processes that still used the GPU and were ended. A lease with `wait` is answered by lines that
say why it waits, until there is room. The call `exec` keeps its connection too, so that its command ends with the
engine. A call is one struct for each verb, whose parameter is what the engine answers; a refusal may come instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec

from aliquot import status
from aliquot.arbiter.records import Status
from aliquot.driver.gpu import Gpu
from aliquot.lib.decoding import decode_json
from aliquot.lib.package import version
from aliquot.model.errors import printable
from aliquot.model.ids import GpuUuid, tenant_name
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import BadRequest, Device, Enforce, GpuRequest, Slice, check_fields, checked
from aliquot.model.sharepod import SharePodManifest
from aliquot.status.workloads import PARKED, PENDING, ContainerState, pod_state

_FRACTION: Final = re.compile(r"[0-9]{1,18}(/[1-9][0-9]{0,17})?")
WIRE: Final = 3
"""Raised when a change to calls or answers would be misunderstood. New fields have defaults instead."""
MAX_WORD: Final = 4096
"""Characters of a text in a call, but for manifests."""
COMMAND_ENDED: Final = b"ended\n"
_STAGES: Final[Mapping[str, Literal["waiting", "running", "terminated"]]] = {
    "Waiting": "waiting",
    "Running": "running",
    "Terminated": "terminated",
}
A = TypeVar("A", covariant=True)


ContainerStage = Literal["Waiting", "Running", "Terminated"]


class EngineAnswer(msgspec.Struct, tag_field="kind", omit_defaults=True):
    """What the engine says to a call."""


class EngineRefusal(EngineAnswer, tag="refusal"):
    """`error` is a sentence for a person, `code` the exit status that goes with it; `of_machine`: see `GpuTaken`."""

    error: str
    code: int = 1
    of_machine: bool = False


class Ready(EngineAnswer, tag="ready"):
    """The engine that was started answers from now on."""


class EngineFacts(EngineAnswer, tag="engine"):
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

    namespace: str = "default"
    """Where the caller's SharePods are that name no namespace."""

    system: bool = False
    """Whether it is the machine's, for all accounts."""


class TenantSlice(Slice, frozen=True, array_like=False):
    """A part of one GPU, as `get tenants` shows it: an object, in which the GPU's UUID is `gpu`."""

    gpu: GpuUuid = msgspec.field(name="gpu")


class TenantFacts(msgspec.Struct, frozen=True):
    """A tenant as `get tenants` shows it; `gpus` are its GPUs' numbers, amounts of memory are as in `PodFacts`."""

    name: str
    injection: str
    enforce: Enforce
    gpus: list[int]
    slices: list[TenantSlice]
    pending_mib: int = 0
    parked: bool = False
    containers: list[str] = []  # where its processes are, as `podman 0123456789ab`
    lent_mib: int = 0
    why_ended: str = ""  # why its programs were that held lent memory; empty once others have taken their place


class ShareFacts(msgspec.Struct, frozen=True):
    """A share: its tenant, its CDI device and the file of that, and the options that do the same without CDI.

    `rm` is whether it ends with its container.
    """

    tenant: TenantFacts
    device: str
    spec: str
    options: list[str]
    rm: bool = False


class ShareList(EngineAnswer, tag="shares"):
    """Every share, or one."""

    shares: list[ShareFacts]


class TenantList(EngineAnswer, tag="tenants"):
    """Every tenant."""

    tenants: list[TenantFacts]


class GpuTenant(msgspec.Struct, frozen=True):
    """A tenant's part of a GPU, as `get gpus` shows it."""

    name: str
    request_milli: int
    memory_mib: int


class GpuFacts(Device, frozen=True):
    """One GPU as `get gpus` shows it: what is promised of it, to whom, and how near the others are."""

    free_milli: int
    free_mib: int
    tenants: list[GpuTenant]
    labels: dict[str, str]
    links: list[str]
    numa: int | None
    cores: str
    driver: str = ""


class GpuList(EngineAnswer, tag="gpus"):
    """Every GPU, by index."""

    gpus: list[GpuFacts]


class PromisedGpus(EngineAnswer, tag="promised"):
    """Every GPU in the records of the read model, nothing of it measured."""

    gpus: list[status.Gpu]


class ExplanationFacts(msgspec.Struct):
    """The explanation of one request: lines for people, fields for programs."""

    name: str
    fits: bool
    lines: list[str]
    facts: dict[str, Any] = {}


class Explanations(EngineAnswer, tag="explanations"):
    """One for each request that was to be explained."""

    explanations: list[ExplanationFacts]


class RunProcess(msgspec.Struct, frozen=True):
    """One process of a tenant."""

    pid: int
    command: str
    container: str = ""
    """Where it is, as `podman 0123456789ab`; empty where it is in none that is known."""

    @property
    def text(self) -> str:
        """The command, after the container it is in, for a terminal."""
        return printable(f"[{self.container}] {self.command}" if self.container else self.command)


class QueuedRun(msgspec.Struct, frozen=True):
    """A run that waits for room, and why."""

    name: str
    request_milli: int
    limit_milli: int
    reason: str
    age_s: float


class RunningFacts(EngineAnswer, tag="running"):
    """The processes of each tenant, and the runs that wait."""

    processes: dict[str, list[RunProcess]]
    queue: list[QueuedRun]


class ContainerFacts(msgspec.Struct, frozen=True):
    """One container of a SharePod; `exit_status` is that of its last run, None before one has ended."""

    name: str
    state: ContainerStage
    reason: str
    pid: int | None
    exit_status: int | None
    restarts: int
    command: list[str] = []


class PodFacts(msgspec.Struct):
    """One SharePod as `get` shows it; `gpus` are the numbers of its GPUs, none while it waits.

    `memory_mib` is what it has, `pending_mib` what it holds beyond that since it was reduced, `lent_mib` what it holds
    beyond that because it is lent to it, and `requested_memory` what it asked for, as a person reads it; empty: by its
    request. `reason` is kubelet's word for trouble, such as CrashLoopBackOff. `manifest` is what is in force.
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
    containers: list[ContainerFacts] = []
    events: list[str] = []
    enforce: Enforce = "all"
    wake_us: int = 0
    labels: dict[str, str] = {}
    pending_mib: int = 0
    parked: bool = False
    manifest: SharePodManifest | None = None
    lent_mib: int = 0

    @property
    def state(self) -> str:
        """What `get` and the pages call it: Pending, Running, Parked, Completed, Error or a word of kubelet's."""
        if self.parked:
            return PARKED
        containers = [ContainerState(_STAGES[c.state], c.reason, c.exit_status or 0) for c in self.containers]
        return self.phase if self.phase == PENDING else pod_state(self.phase, containers)


class PodList(EngineAnswer, tag="pods"):
    """SharePods; `lost` are those of an engine that was killed, with the phases they were in."""

    pods: list[PodFacts]
    lost: dict[str, str] = {}


class HourSums(EngineAnswer, tag="hours"):
    """GPU-hours of a time to look back."""

    hours: status.Hours


class Recommended(EngineAnswer, tag="recommended"):
    """What to ask for, from a time to look back."""

    found: status.Recommendations


class Lines(EngineAnswer, tag="lines"):
    """What was done, or a piece of a log."""

    lines: list[str]


class RunLease(EngineAnswer, tag="lease"):
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
    resumes: bool = False
    """Whether the place outlives the engine: a runner whose engine ends waits for the next, and resumes."""

    options: list[str] = []
    """For `docker run` or `podman run`, of a run in a container."""


class ArbiterMeasures(EngineAnswer, tag="measured"):
    """What the arbiter measures."""

    status: Status


class LeaseWait(EngineAnswer, tag="waiting"):
    """Why a lease is not given yet."""

    reason: str


class Resized(EngineAnswer, tag="resized"):
    """A share before a resize and after it; up to `max_memory_mib`, also before and after, memory is lent to it.

    It has yet to free `pending_mib` of its memory, and holds `lent_mib` beyond what is guaranteed now.
    """

    name: str
    resource: Literal["sharepod", "run"]
    before: TenantSlice
    after: TenantSlice
    pending_mib: int = 0
    dry_run: bool = False
    lent_mib: int = 0
    max_memory_mib: tuple[int, int] = (0, 0)


class Moved(EngineAnswer, tag="moved"):
    """A SharePod or run whose memory was taken off its GPU, or came back, maybe to another; how much, and to which."""

    name: str
    resource: Literal["sharepod", "run"]
    parked: bool
    memory_mib: int
    gpu: int


class PhaseAnswer(EngineAnswer, tag="phase"):
    """A tenant has yielded its GPU, or acquired it; in that case why its memory is not there yet, or nothing."""

    name: str
    waits: str = ""


class LeftBehind(EngineAnswer, tag="left-behind"):
    """How many processes a run's command left on its GPU, which were ended, and why the command was, if it was."""

    processes: int
    why_ended: str = ""


AnyAnswer = (
    EngineRefusal | Ready | EngineFacts | TenantList | GpuList | PromisedGpus | Explanations | RunningFacts | PodList
    | HourSums | Recommended | Lines | RunLease | LeaseWait | LeftBehind | ArbiterMeasures | Resized | ShareList
    | Moved | PhaseAnswer
)  # fmt: skip


class Call(msgspec.Struct, Generic[A], tag_field="verb", omit_defaults=True, frozen=True):
    """One line to the engine, which answers with an `A`."""


class InfoCall(Call[EngineFacts], tag="info", frozen=True):
    """Facts about the engine."""


class ApplyCall(Call[Lines], tag="apply", frozen=True):
    """Create the SharePods of a text; with `restart` those that differ from it are started anew."""

    text: str
    restart: bool = False


class PodsCall(Call[PodList], tag="pods", frozen=True):
    """One SharePod by its full name, or all."""

    name: str = ""


class GpusCall(Call[GpuList], tag="gpus", frozen=True):
    """Every GPU with its tenants."""


class PromisedCall(Call[PromisedGpus], tag="promised", frozen=True):
    """Every GPU as its ledger promises it."""


class ExplainCall(Call[Explanations], tag="explain", frozen=True):
    """Explain a request, a SharePod or tenant by its name, or all SharePods that wait."""

    name: str = ""
    request: GpuRequest | None = None


class StatusCall(Call[ArbiterMeasures], tag="measure", frozen=True):
    """What the arbiter measures; its own socket is the engine's alone, for each question takes of its time."""


class TenantsCall(Call[TenantList], tag="tenants", frozen=True):
    """Every tenant."""


class RunningCall(Call[RunningFacts], tag="running", frozen=True):
    """Processes, and runs that wait."""


class HoursCall(Call[HourSums], tag="hours", frozen=True):
    """GPU-hours; `since` says how far to look back, as 7d."""

    since: str = ""


class RecommendCall(Call[Recommended], tag="recommend", frozen=True):
    """What to ask for; `since` says how far to look back, as 7d."""

    since: str = ""


class DashboardCall(Call[Lines], tag="dashboard", frozen=True):
    """The address of the dashboard; of the machine's engine one that signs the caller's account in."""


class EndCall(Call[Lines], tag="end", frozen=True):
    """End a SharePod or a run, by the name that `top` shows."""

    name: str


class ResizeCall(Call[Resized], tag="resize", frozen=True):
    """Change the share of a SharePod by its full name, or of the run of that name, while it runs.

    What is None stays as it is. With `dry_run` nothing changes.
    """

    name: str
    run: str
    request_milli: int | None = None
    limit_milli: int | None = None
    memory: Memory | None = None
    memory_limit: Memory | None = None
    dry_run: bool = False


class ParkCall(Call[Moved], tag="park", frozen=True):
    """Take the memory of a SharePod by its full name, or of the run of that name, off its GPU, or bring it `back`.

    With `gpu` it is taken to another GPU, by its index or UUID.
    """

    name: str
    run: str
    back: bool = False
    gpu: str = ""


class PhaseCall(Call[PhaseAnswer], tag="phase", frozen=True):
    """The tenant of the process that calls needs no GPU until further notice, or `needs` it."""

    needs: bool


class DeleteCall(Call[Lines], tag="delete", frozen=True):
    """Delete a SharePod by its full name."""

    name: str


class LogCut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a log that is wanted: its last lines, what is not older than that, the run before the last start."""

    tail: Annotated[int, msgspec.Meta(ge=0)] | None = None
    since_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    previous: bool = False


class LogsCall(Call[Lines], tag="logs", frozen=True):
    """What a container printed, in pieces; the first container where none is named."""

    name: str
    container: str = ""
    follow: bool = False
    cut: LogCut = LogCut()


class LeaseCall(Call[RunLease | LeaseWait], tag="lease", frozen=True):
    """A place for a run, as long as the connection lasts; with `wait` also one that there is no room for yet."""

    name: str
    request: GpuRequest
    cpu_bind: int = 0
    wait: bool = False
    container: bool = False


class ShareCall(Call[ShareList], tag="share", frozen=True):
    """Make a share; with `rm` it ends with its container."""

    name: str
    request: GpuRequest
    cpu_bind: int = 0
    rm: bool = False


class SharesCall(Call[ShareList], tag="shares", frozen=True):
    """Every share, or the caller's share of a name."""

    name: str = ""


class EndShareCall(Call[Lines], tag="end-share", frozen=True):
    """Delete a share; with `force` its processes are ended."""

    name: str
    force: bool = False


class ResumeCall(Call[RunLease], tag="resume", frozen=True):
    """The place that the caller's run has had under an engine that has ended, by its tenant's name."""

    name: str


class ExecCall(Call[RunLease], tag="exec", frozen=True):
    """The place of a SharePod's container, or of the run that is called `run`."""

    name: str
    run: str
    container: str = ""


AnyCall = (
    InfoCall | ApplyCall | PodsCall | GpusCall | PromisedCall | ExplainCall | TenantsCall | RunningCall | HoursCall
    | EndCall | DeleteCall | LogsCall | LeaseCall | ExecCall | StatusCall | ResumeCall | ResizeCall | RecommendCall
    | ShareCall | SharesCall | EndShareCall
    | ParkCall | PhaseCall | DashboardCall
)  # fmt: skip


class _Line(msgspec.Struct):
    """An answer with the protocol and version of the program that gives it."""

    answer: AnyAnswer
    wire: int = WIRE
    version: str = ""


def encode_answer(answer: AnyAnswer) -> bytes:
    """The line for an answer."""
    return msgspec.json.encode(_Line(answer, version=version())) + b"\n"


def decode_answer(line: bytes) -> AnyAnswer:
    """The answer of a line.

    Raises:
        msgspec.MsgspecError: the line is not an answer.
    """
    return decode_json(line, _Line).answer


def encode_call(call: Call[Any]) -> bytes:
    """The line for a call; a part of a GPU's memory is a text, exactly: the one kind of value msgspec does not know."""
    return msgspec.json.encode(call, enc_hook=str) + b"\n"


def decode_call(line: bytes) -> AnyCall:
    """The call of a line.

    Raises:
        msgspec.MsgspecError: the line is not a call.
        BadName, BadQuantity, BadRequest: a field of it is what the command line would have refused.
    """
    call: AnyCall = decode_json(line, AnyCall, fraction_of)
    for name, value in msgspec.structs.asdict(call).items():
        if isinstance(value, str) and name != "text" and (len(value) > MAX_WORD or not value.isprintable()):
            raise BadRequest(f'{name} "{value}" is not in one line of {MAX_WORD} characters')
    if isinstance(call, LeaseCall | ShareCall):
        tenant_name(call.name)
    if isinstance(call, LeaseCall | ShareCall | ExplainCall) and call.request is not None:
        check_fields(call.request, cpu_bind=0 if isinstance(call, ExplainCall) else call.cpu_bind)
        checked(call.request, request_name="request_milli", limit_name="limit_milli", memory_name="memory")
    if isinstance(call, ResizeCall):
        check_fields(GpuRequest(MILLI, memory=call.memory, memory_limit=call.memory_limit))
    return call


def fraction_of(kind: type, text: Any) -> Fraction:
    """The value of a text; of a short one, for `1e99999999` is as well a text of hours."""
    if not isinstance(text, str) or not _FRACTION.fullmatch(text):
        raise ValueError(f"{text!r:.40} is not a fraction")
    return Fraction(text)

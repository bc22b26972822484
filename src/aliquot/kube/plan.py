"""The plan annotation: which container gets which parts of which GPUs. Read and written here and nowhere else.

It is written in the Binding, and after that only when the pod is resized: then with a generation that is one higher,
and with the slices that may be in force until the node has applied it. It carries all that is needed to rebuild the
ledger from the pods alone, also when someone edits the pod's other annotations later. Compact JSON with a version:

    {"v":1,"n":"node-a","c":{"main":{"s":[["GPU-5f2e...",300,600,4096]],"k":[0,1]}}}

`n` is the node, `c` the containers; `s` slices of (UUID, milli-GPU guaranteed, milli-GPU limit, MiB), whole GPUs first;
`k` the CPU cores near them; `l` labels (affinity, anti-affinity, exclusion); `g` the vGPU's name; `p` parts; `u` the
container whose slices it uses, since both never run at once; `e` what is enforced, `all` where absent; `i` its place
among the init containers, from 1 on, negative for a sidecar; `w` the promise of how soon it wakes, in microseconds. `g`
is the generation, 0 where absent, and `b` the slices from before by container. `aliquot.dev/plan-applied` is the node's
answer, `{"g":2,"m":{"main":512}}`: the generation that it has applied, and the MiB that programs have yet to free.
Keys that a reader does not know are passed over; another version is refused.

The annotation `aliquot.dev/plan-status` says the outcome of each container's part, as its node reports it:
`main: provisioned; side: waits (the arbiter is away)`, or `missing` for a container that runs without its share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

import msgspec

from aliquot.kube.names import PLAN, PLAN_APPLIED
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import AliquotError
from aliquot.model.quantities import MILLI
from aliquot.model.requests import Enforce, Labels, Plan, Slice
from aliquot.model.wake import MAX_US

PLAN_VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024
STARTS_LAST: Final = 1 << 31
Outcome = Literal["provisioned", "waits", "refused", "missing"]
"""`waits` may resolve itself, `refused` never does, and of `missing` the container runs all the same."""
_MISSING: Final = re.compile(r"(?:^|; )([^:;]+): missing \(([^)]*)")


class BadPlan(AliquotError):
    """A plan that cannot be read; the pod must not be given a GPU by it."""


@dataclass(frozen=True)
class ContainerPlan:
    """The share of one container."""

    slices: tuple[Slice, ...]
    cores: tuple[int, ...] = ()
    labels: Labels = field(default_factory=Labels)
    gpu_id: str = ""
    parts: int = 1
    uses: str = ""
    enforce: Enforce = "all"
    init: int = 0
    wake_us: int = 0

    @property
    def starts(self) -> int:
        """Its place in the order in which the pod's containers start; the same for all that start last."""
        return abs(self.init) or STARTS_LAST

    @property
    def plan(self) -> Plan:
        """The slices alone."""
        return Plan(self.slices)


class Applied(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node has applied: a plan's generation, and MiB by container that were reduced and are yet to be freed."""

    generation: int = msgspec.field(name="g", default=0)
    pending_mib: dict[str, int] = msgspec.field(name="m", default={})


@dataclass(frozen=True)
class PodPlan:
    """The shares of a pod, and its node. `before` are slices that may be in force until `generation` is applied."""

    node: str
    containers: Mapping[str, ContainerPlan]
    generation: int = 0
    before: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)

    @property
    def slices(self) -> list[Slice]:
        """The slices of all containers."""
        return [piece for given in self.containers.values() for piece in given.slices]

    def resized(self, sizes: Mapping[str, tuple[Slice, ...]]) -> PodPlan:
        """The plan with these slices, by the container that has them, and the same for those that use them."""
        after = {
            name: replace(given, slices=sizes.get(given.uses or name, given.slices))
            for name, given in self.containers.items()
        }
        return replace(self, containers=after)

    def in_force(self, applied: Applied) -> list[Slice]:
        """The slices that the node says are in force, of the containers that use no other's."""
        before = {} if applied.generation >= self.generation else self.before
        own = {name: given for name, given in self.containers.items() if not given.uses}
        return [piece for name, given in own.items() for piece in before.get(name, given.slices)]

    def reserved(self, applied: Applied) -> PodPlan:
        """The same plan with the most that may be in force: what the ledger keeps from others."""
        if not self.generation:
            return self
        sizes: dict[str, tuple[Slice, ...]] = {}
        for name, given in self.containers.items():
            if applied.generation < self.generation:
                others = self.before.get(name, given.slices)
            else:
                more_mib = applied.pending_mib.get(name, 0)
                others = tuple(msgspec.structs.replace(s, memory_mib=s.memory_mib + more_mib) for s in given.slices)
            sizes[name] = tuple(map(larger, given.slices, others))
        return replace(self.resized(sizes), before={})


def larger(a: Slice, b: Slice) -> Slice:
    """Of two slices of one GPU the larger amounts."""
    amounts = (max(pair) for pair in zip(msgspec.structs.astuple(a)[1:], msgspec.structs.astuple(b)[1:], strict=True))
    return Slice(a.gpu, *amounts)


class _Container(msgspec.Struct, omit_defaults=True, frozen=True):
    s: tuple[Slice, ...] = ()
    k: tuple[int, ...] = ()
    l: tuple[str, ...] = ()  # noqa: E741 - the annotation's own key
    g: str = ""
    p: int = 1
    u: str = ""
    e: Enforce = "all"
    i: int = 0
    w: Annotated[int, msgspec.Meta(ge=0, le=MAX_US)] = 0


class _Plan(msgspec.Struct, omit_defaults=True, frozen=True):
    v: int
    n: str = ""
    c: dict[str, _Container] = {}
    g: Annotated[int, msgspec.Meta(ge=0)] = 0
    b: dict[str, tuple[Slice, ...]] = {}


class _Version(msgspec.Struct):
    v: int


def write_plan(plan: PodPlan) -> str:
    """The annotation's text."""
    containers = {}
    for name, given in plan.containers.items():
        labels = (given.labels.affinity, given.labels.anti_affinity, given.labels.exclusion)
        containers[name] = _Container(
            given.slices,
            given.cores,
            labels if any(labels) else (),
            given.gpu_id,
            given.parts,
            given.uses,
            given.enforce,
            given.init,
            given.wake_us,
        )
    made = _Plan(PLAN_VERSION, plan.node, containers, plan.generation, dict(plan.before))
    return msgspec.json.encode(made).decode()


def read_plan(annotations: Mapping[str, str]) -> PodPlan | None:
    """The plan of a pod with these annotations; None when it has none.

    Raises:
        BadPlan: it is not in the form of a plan, or of another version.
    """
    text = annotations.get(PLAN)
    if text is None:
        return None
    if len(text) > MAX_BYTES:
        raise BadPlan(f'metadata.annotations["{PLAN}"] is longer than {MAX_BYTES} bytes')
    try:
        version = decode_json(text, _Version).v
        if version != PLAN_VERSION:
            raise BadPlan(
                f'metadata.annotations["{PLAN}"] is of version {version}, this program reads version {PLAN_VERSION}; '
                "upgrade it or let the pod end"
            )
        raw = decode_json(text, _Plan)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadPlan(f'metadata.annotations["{PLAN}"] cannot be read: {error}') from None
    containers = {}
    for name, given in raw.c.items():
        for piece in (*given.s, *raw.b.get(name, ())):
            if not (0 < piece.request_milli <= piece.limit_milli <= MILLI and piece.memory_mib >= 0):
                text = f'metadata.annotations["{PLAN}"] gives container "{name}" a slice that cannot be: {piece}'
                raise BadPlan(text)
        if given.e != "all" and any(piece.request_milli < MILLI for piece in given.s):
            raise BadPlan(f'metadata.annotations["{PLAN}"] does not enforce the part of a GPU of container "{name}"')
        containers[name] = ContainerPlan(
            given.s, given.k, Labels(*given.l[:3]), given.g, given.p, given.u, given.e, given.i, given.w
        )
    return PodPlan(raw.n, containers, raw.g, raw.b)


def generation_of(text: str) -> int:
    """The generation of a plan in this annotation's text; 0 where it cannot be read."""
    try:
        return decode_json(text, _Plan).g
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return 0


def read_applied(annotations: Mapping[str, str]) -> Applied:
    """What the pod's node has applied of its plan; nothing of a later generation where that cannot be read."""
    try:
        return decode_json(annotations.get(PLAN_APPLIED, "{}"), Applied)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Applied()


def write_applied(applied: Applied) -> str:
    """The annotation's text."""
    return msgspec.json.encode(applied).decode()


def written_outcome(container: str, outcome: Outcome, why: str) -> str:
    """What the annotation says of one container."""
    return f"{container}: {outcome}" + (f" ({why})" if why else "")


def read_missing(text: str) -> dict[str, str]:
    """Why each container that runs without its share does so, by name."""
    return dict(_MISSING.findall(text))

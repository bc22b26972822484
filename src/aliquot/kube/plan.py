"""The plan annotation: which container gets which parts of which GPUs. Read and written here and nowhere else.

It is written in the Binding, and after that only when the pod is resized: then with a generation that is one higher,
and with the slices that may be in force until the node has applied it. It carries all that is needed to rebuild the
ledger from the pods alone, also when someone edits the pod's other annotations later. Compact JSON with a version:

    {"v":1,"n":"node-a","c":{"main":{"s":[["GPU-5f2e...",300,600,4096]],"k":[0,1]}}}

`n` is the node, `c` the containers; `s` slices of (UUID, milli-GPU guaranteed, milli-GPU limit, MiB), whole GPUs first;
`k` the CPU cores near them; `l` labels (affinity, anti-affinity, exclusion); `g` the vGPU's name; `p` parts; `u` the
container whose slices it uses, since both never run at once; `e` what is enforced, `all` where absent; `i` its place
among the init containers, from 1 on, negative for a sidecar; `w` the promise of how soon it wakes, in microseconds;
`m` up to where memory is lent to it beyond its slice, `30720Mi` or `75%`. `g` is the generation, 0 where absent, `b`
the slices from before by container, and `a` the allocation of a claim that was resized. `aliquot.dev/plan-applied` is
the node's answer, `{"g":2,"m":{"main":512}}`: the generation that it has applied, and the MiB that programs have yet to
free.
Keys that a reader does not know are passed over; another version is refused.

The annotation `aliquot.dev/plan-status` says the outcome of each container's part, as its node reports it:
`main: provisioned; side: waits (the arbiter is away)`, or `missing` for a container that runs without its share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import astuple, replace

from aliquot.kube.names import PLAN, PLAN_APPLIED
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import AliquotError
from aliquot.model.quantities import MILLI, BadQuantity, parse_memory
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


class ContainerPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The share of one container."""

    slices: tuple[Slice, ...] = msgspec.field(name="s", default=())
    cores: tuple[int, ...] = msgspec.field(name="k", default=())
    label_texts: tuple[str, ...] = msgspec.field(name="l", default=())
    """Those of `labels`; none where all are empty."""
    gpu_id: str = msgspec.field(name="g", default="")
    parts: int = msgspec.field(name="p", default=1)
    uses: str = msgspec.field(name="u", default="")
    enforce: Enforce = msgspec.field(name="e", default="all")
    init: int = msgspec.field(name="i", default=0)
    wake_us: Annotated[int, msgspec.Meta(ge=0, le=MAX_US)] = msgspec.field(name="w", default=0)
    memory_limit: str = msgspec.field(name="m", default="")

    @property
    def labels(self) -> Labels:
        """The labels of its devices."""
        return Labels(*self.label_texts[:3])

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


class PodPlan(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="v", tag=PLAN_VERSION):
    """The shares of a pod, and its node. `before` are slices that may be in force until `generation` is applied."""

    node: str = msgspec.field(name="n", default="")
    containers: dict[str, ContainerPlan] = msgspec.field(name="c", default={})
    generation: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="g", default=0)
    before: dict[str, tuple[Slice, ...]] = msgspec.field(name="b", default={})
    allocation: str = msgspec.field(name="a", default="")

    @property
    def slices(self) -> list[Slice]:
        """The slices of all containers."""
        return [piece for given in self.containers.values() for piece in given.slices]

    @property
    def place(self) -> tuple[str, str, dict[str, list[str]]]:
        """What no resize changes: its node, the allocation of a claim, and the GPUs of each container."""
        gpus = {name: [str(piece.gpu) for piece in given.slices] for name, given in self.containers.items()}
        return self.node, self.allocation, gpus

    def resized(self, sizes: Mapping[str, tuple[Slice, ...]], memory_limits: Mapping[str, str] = MappingProxyType({})
                ) -> PodPlan:  # fmt: skip
        """The plan with these slices, by the container that has them, and the same for those that use them; and with
        these limits of what is lent to them.
        """
        after = {
            name: replace(
                given,
                slices=sizes.get(host, given.slices),
                memory_limit=memory_limits.get(host, given.memory_limit),
            )
            for name, given in self.containers.items()
            for host in [given.uses or name]
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
                others = tuple(replace(s, memory_mib=s.memory_mib + more_mib) for s in given.slices)
            sizes[name] = tuple(map(larger, given.slices, others))
        return replace(self.resized(sizes), before={})


def larger(a: Slice, b: Slice) -> Slice:
    """Of two slices of one GPU the larger amounts."""
    amounts = (max(pair) for pair in zip(astuple(a)[1:], astuple(b)[1:], strict=True))
    return Slice(a.gpu, *amounts)


class _Version(msgspec.Struct):
    v: int


def label_texts(labels: Labels) -> tuple[str, ...]:
    """Labels as a plan has them."""
    texts = (labels.affinity, labels.anti_affinity, labels.exclusion)
    return texts if any(texts) else ()


def write_plan(plan: PodPlan) -> str:
    """The annotation's text."""
    return msgspec.json.encode(plan).decode()


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
        plan = decode_json(text, PodPlan)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadPlan(f'metadata.annotations["{PLAN}"] cannot be read: {error}') from None
    for name, given in plan.containers.items():
        for piece in (*given.slices, *plan.before.get(name, ())):
            if not (0 < piece.request_milli <= piece.limit_milli <= MILLI and piece.memory_mib >= 0):
                text = f'metadata.annotations["{PLAN}"] gives container "{name}" a slice that cannot be: {piece}'
                raise BadPlan(text)
        if given.memory_limit:
            try:
                parse_memory(given.memory_limit)
            except BadQuantity as error:
                raise BadPlan(f'metadata.annotations["{PLAN}"] of container "{name}": {error}') from None
        if given.enforce != "all" and any(piece.request_milli < MILLI for piece in given.slices):
            raise BadPlan(f'metadata.annotations["{PLAN}"] does not enforce the part of a GPU of container "{name}"')
    return plan


def generation_of(text: str) -> int:
    """The generation of a plan in this annotation's text; 0 where it cannot be read."""
    try:
        return decode_json(text, PodPlan).generation
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

"""What viewers with rights to a part see: of a cluster to some namespaces, of a machine to an account's own.

GPUs, nodes and free room are visible to all: a part that a tenant of another namespace holds is shown with its size and
use, from which a viewer sees what room there is. Everything else of it is hidden: its name, how long it waits, its
grants and debt, its processes and whether its promise was kept. Workloads, quota, events, vGPUs and explanations are
shown for the viewer's namespaces only, and sums count these. A cluster's door makes one of these for each set of
namespaces and hands out the same one each time, so that viewers with equal rights share their live pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from aliquot.model.ids import split_key
from aliquot.model.requests import GpuRequest
from aliquot.status.gpus import Gpu, Node, Pool, QuotaLine, Share
from aliquot.status.history import Hours, Lane, Past, Range, Timeline, Turn, Turns, Uses, totalled
from aliquot.status.source import StatusSource
from aliquot.status.workloads import Event, Explanation, History, TopologyFacts, Trial, Workload

Answer = TypeVar("Answer", Explanation, Trial)
OTHERS: Final = "(another namespace)"
OTHER_NAMESPACES: Final = "(other namespaces)"
HANDOVER_S: Final = 0.001
"""Turns of others that are no farther apart are shown as one."""
_WORD: Final = re.compile(r"[^\s\",;:()]+(?::[^\s\",;:()]+)*")


class View:
    """A part of the facts; what a view does not change is theirs."""

    title: str
    window_s: float
    program: str
    as_of_s: float
    revision: int

    def __init__(self, facts: StatusSource) -> None:
        self._facts = facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)


class NamespacedView(View):
    """View restricted to `namespaces`; runs without a namespace are hidden."""

    def __init__(self, facts: StatusSource, namespaces: frozenset[str]) -> None:
        super().__init__(facts)
        self.namespaces = namespaces
        self._gpus: tuple[Sequence[Gpu], Sequence[Gpu]] = ([], [])

    @property
    def past(self) -> Past:
        """What was recorded; see `NamespacedPast`."""
        return NamespacedPast(self._facts.past, self._mine)

    def gpus(self) -> Sequence[Gpu]:
        """Every GPU; names of others' parts are left out. Masked once for each reading of the facts."""
        gpus = self._facts.gpus()
        of, masked = self._gpus
        if of is not gpus:
            masked = [self._masked(gpu) for gpu in gpus]
            self._gpus = (gpus, masked)
        return masked

    def workloads(self) -> Sequence[Workload]:
        """The workloads of the viewer's namespaces."""
        return [workload for workload in self._facts.workloads() if self._mine(workload.name)]

    def nodes(self) -> Sequence[Node]:
        """Every node."""
        return self._facts.nodes()

    def topology(self, node: str) -> TopologyFacts | None:
        """See `StatusSource`."""
        return self._facts.topology(node)

    def pool(self) -> Pool:
        """Every vGPU with those of its tenants that the viewer may see; nameless if there are none."""
        pool = self._facts.pool()
        vgpus = []
        for vgpu in pool.vgpus:
            mine = [name for name in vgpu.attached if self._mine(name)]
            vgpus.append(msgspec.structs.replace(vgpu, name=vgpu.name if mine else OTHERS, attached=mine))
        return Pool(pool.policy, vgpus)

    def quota(self) -> Sequence[QuotaLine]:
        """That of the viewer's namespaces."""
        return [line for line in self._facts.quota() if line.namespace in self.namespaces]

    def events(self, since: int) -> Sequence[Event]:
        """The events of workloads of the viewer's namespaces."""
        return [event for event in self._facts.events(since) if self._mine(event.subject)]

    def turns(self, gpu: str) -> Turns | None:
        """When others held the GPU, without their names and without where one handed it to the next."""
        found = self._facts.turns(gpu)
        if found is None:
            return None
        turns: list[Turn] = []
        for turn in found.turns:
            if self._mine(turn.tenant):
                turns.append(turn)
            elif turns and turns[-1].tenant == OTHER_NAMESPACES and turn.since_s - turns[-1].until_s <= HANDOVER_S:
                turns[-1] = Turn(OTHER_NAMESPACES, turns[-1].since_s, max(turns[-1].until_s, turn.until_s))
            else:
                turns.append(msgspec.structs.replace(turn, tenant=OTHER_NAMESPACES))
        return msgspec.structs.replace(found, turns=turns)

    def history(self, gpu: str, seconds: float) -> History | None:
        """Only the viewer's own tenants have a history."""
        history = self._facts.history(gpu, seconds)
        if history is None:
            return None
        mine = [series for series in history.series if self._mine(series.tenant)]
        return msgspec.structs.replace(history, series=mine)

    def explain(self, name: str) -> Explanation | None:
        """None for a workload of another namespace, as for one that does not exist."""
        found = self._facts.explain(name) if self._mine(name) else None
        return None if found is None else self._nameless(found)

    def try_request(self, request: GpuRequest) -> Trial:
        """See `StatusSource`; other tenants of a GPU are left out."""
        trial = self._facts.try_request(request)
        return msgspec.structs.replace(
            self._nameless(trial),
            before=[self._masked(gpu) for gpu in trial.before],
            after=[self._masked(gpu, own=len(was.shares)) for gpu, was in zip(trial.after, trial.before, strict=True)],
        )

    def _mine(self, name: str) -> bool:
        return split_key(name)[0] in self.namespaces - {""}

    def _masked(self, gpu: Gpu, *, own: int | None = None) -> Gpu:
        """`own` is the place of a share that is the viewer's whatever its name: that of a trial."""
        shares = [
            share if self._mine(share.tenant) or number == own else _hidden(share, number + 1)
            for number, share in enumerate(gpu.shares)
        ]
        named = any(self._mine(share.tenant) for share in gpu.shares)
        holder = gpu.holder if self._mine(gpu.holder) else ""
        return msgspec.structs.replace(gpu, shares=shares, holder=holder, vgpu=gpu.vgpu if named else "")

    def _nameless(self, found: Answer) -> Answer:
        """Without names of others: the reason why waking cannot be promised names the tenant.

        `nearest` and `ways` may name another viewer's workload, and are left out.
        """
        others = {share.tenant for gpu in self._facts.gpus() for share in gpu.shares if not self._mine(share.tenant)}

        def shown(word: re.Match[str]) -> str:
            return OTHERS if word[0] in others or word[0].rstrip(".") in others else word[0]

        why = [_WORD.sub(shown, sentence) for sentence in found.why]
        reasons = [msgspec.structs.replace(each, text=_WORD.sub(shown, each.text)) for each in found.reasons]
        return msgspec.structs.replace(found, why=why, reasons=reasons, nearest="", ways=[])


class OwnedView(View):
    """All facts of a machine; events are shown of the workloads alone that the viewer `owns`, by name."""

    def __init__(self, facts: StatusSource, owns: Callable[[str], bool]) -> None:
        super().__init__(facts)
        self.owns = owns

    def workloads(self) -> Sequence[Workload]:
        """Every workload."""
        shown = self._facts.workloads()
        return [each if self.owns(each.name) else msgspec.structs.replace(each, events=[]) for each in shown]

    def events(self, since: int) -> Sequence[Event]:
        """The events of the viewer's own."""
        return [event for event in self._facts.events(since) if self.owns(event.subject)]


def _hidden(share: Share, number: int) -> Share:
    """What a viewer may know of a tenant of another namespace, by a list of fields: one that is added is hidden."""
    return Share(
        f"{OTHERS} {number}", share.request_milli, share.limit_milli, share.usage_milli, share.memory_mib,
        share.memory_used_mib, enforce=share.enforce, hidden=True,
    )  # fmt: skip


class NamespacedPast:
    """Names and hours of what `mine` says of a tenant's name; all others are one lane without a name."""

    def __init__(self, past: Past, mine: Callable[[str], bool]) -> None:
        self._past = past
        self._mine = mine

    def timeline(self, gpu: str, span: Range) -> Timeline:
        """Others' use of the GPU is shown in sum."""
        found = self._past.timeline(gpu, span)
        own = [lane for lane in found.lanes if self._mine(lane.tenant)]
        others = [lane for lane in found.lanes if not self._mine(lane.tenant)]
        return msgspec.structs.replace(found, lanes=[*own, _together(others)] if others else own)

    def hours(self, span: Range) -> Hours:
        """Only the viewer's own namespaces."""
        found = self._past.hours(span)
        mine = [line for line in found.lines if line.namespace and self._mine(f"{line.namespace}/")]
        return totalled(msgspec.structs.replace(found, lines=mine))

    def uses(self, span: Range) -> Uses:
        """Only the viewer's own namespaces."""
        found = self._past.uses(span)
        mine = [use for use in found.uses if use.namespace and self._mine(f"{use.namespace}/")]
        return msgspec.structs.replace(found, uses=mine)


def _together(lanes: Sequence[Lane]) -> Lane:
    def summed(field: str) -> list[Any]:
        columns = zip(*(getattr(lane, field) for lane in lanes), strict=True)
        return [None if any(value is None for value in column) else round(sum(column), 4) for column in columns]

    nothing: list[Any] = [None] * len(lanes[0].used)
    return Lane(
        OTHER_NAMESPACES, "", summed("used"), summed("promised"), summed("lent"), nothing,
        summed("memory_mib"), nothing, nothing,
    )  # fmt: skip

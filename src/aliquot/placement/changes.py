"""The smallest change that would make an ask fit: a smaller ask, a tenant that ends, a node reopened, a wish dropped.

Sizes are in milli-GPU, so that changes compare: compute as it is, memory as the same part of its device, CPU and host
memory as the same part of the node, a tenant as what it holds, a wish that is dropped as all that is asked, at least a
whole GPU. Every change that is offered was tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Final

from aliquot.model.quantities import MILLI, Memory
from aliquot.placement.asks import PPM, Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.codes import Code, EndingTenant, Suggestion, Verdict
from aliquot.placement.entries import Resident
from aliquot.placement.quota import Quotas
from aliquot.placement.reasons import fits_on

_ENDING_MOST: Final = 3
_NODES_TRIED: Final = 64
_QUOTAS_TRIED: Final = 4


def apply(change: Suggestion, cluster: Cluster) -> Ask:
    """Apply a change to the ledger, and give the request that fits then."""
    for tenant in change.ends:
        cluster.release(tenant.name)
    if change.kind == "uncordon":
        cluster.set_cordoned(change.node, False)
    return change.ask


def changes(
    cluster: Cluster, ask: Ask, verdicts: Sequence[Verdict], quotas: Quotas, namespace: str
) -> list[Suggestion]:
    """Ways to make an ask fit that nothing can take now, the smallest first, at most one a kind and node.

    `cluster` is written into while changes are tried, and is as before afterwards: give a copy. Of a large cluster the
    nodes with the fewest obstacles are tried.
    """
    found: list[Suggestion] = []
    hopeful = sorted(
        (verdict for verdict in verdicts if verdict.reason and verdict.reason.code is not Code.NODE_NO_GPU),
        key=lambda verdict: sum(reason is not None for reason in verdict.devices),
    )
    for verdict in hopeful[:_NODES_TRIED]:
        trial = _Trial(cluster, verdict.node, quotas, namespace)
        uncordon = [] if cluster.open[trial.number] else [Suggestion("uncordon", verdict.node, ask, ask, size_milli=1)]
        for ways in (uncordon, _less(trial, ask, verdict), _wait(trial, ask, verdict)):
            fitting = [change for change in ways if trial.fits(change)]
            found += [min(fitting, key=lambda change: change.size_milli)] if fitting else []
    found += _drop(cluster, ask, quotas, namespace)
    if not found:  # more than one thing stands against it everywhere
        for verdict in hopeful[:_NODES_TRIED]:
            found += _cleared(_Trial(cluster, verdict.node, quotas, namespace), ask)
    return sorted(found, key=lambda change: (change.size_milli, change.kind, cluster.index[change.node]))


class _Trial:
    """Tries changes on one node of a writable ledger, and takes each back."""

    def __init__(self, cluster: Cluster, node: str, quotas: Quotas, namespace: str) -> None:
        self.cluster, self.node, self.namespace = cluster, node, namespace
        self.number = cluster.node_index(node)
        self.spec = cluster.spec(self.number)
        self._quotas = quotas

    def fits(self, change: Suggestion) -> bool:
        """Whether its ask fits once it is done."""
        with self.cluster.trial():
            apply(change, self.cluster)
            return fits_on(self.cluster, change.ask, self.node, self._quotas, self.namespace)

    def within_quota(self, ask: Ask) -> Ask:
        """The ask cut to what quotas leave of it; as it is where nothing is left, or where a part of it has no size."""
        for _ in range(_QUOTAS_TRIED):
            closed = self._quotas.closed(self.cluster, self.namespace, ask)
            excess = next((closed[device.model] for device in self.spec.gpus if device.model in closed), None)
            left = excess.allowed - excess.held if excess else 0
            if excess is None or left <= 0 or (excess.memory and ask.devices > 1):
                break
            ask = ask.but(memory=Memory(mib=left)) if excess.memory else ask.sized(left)
        return ask

    def size_of(self, tenant: str) -> int:
        """What a tenant holds, in milli-GPU; one without GPU by its part of the node."""
        held = self.cluster.tenants[tenant]
        compute = sum(piece.request_milli for piece in held.placement.slices)
        return max(compute, self.part(held.ask.cpu_milli, held.ask.memory_mib), 1)

    def part(self, cpu_milli: int, memory_mib: int) -> int:
        """So much CPU and host memory as parts of the node, thousandths."""
        cpu = -(-cpu_milli * MILLI // self.spec.cpu_milli) if self.spec.cpu_milli else 0
        return cpu + (-(-memory_mib * MILLI // self.spec.memory_mib) if self.spec.memory_mib else 0)

    def index_of(self, gpu: int) -> int:
        """The device's own index; -1 for -1, any device."""
        return self.spec.gpus[gpu].index if gpu >= 0 else -1

    def free(self, gpu: int) -> tuple[int, int, int]:
        """Milli-GPU unreserved, MiB unreserved and MiB in all of a device."""
        cell = (self.number, gpu)
        cluster = self.cluster
        return cluster.free_milli.item(*cell), cluster.free_mib.item(*cell), cluster.size_mib.item(*cell)


# Less


def _less(trial: _Trial, ask: Ask, verdict: Verdict) -> Iterator[Suggestion]:
    """The ask with what is too much taken off."""
    cluster, number = trial.cluster, trial.number
    cpu, memory = cluster.cpu_free.item(number), cluster.memory_free.item(number)
    base = replace(ask, cpu_milli=min(ask.cpu_milli, cpu), memory_mib=min(ask.memory_mib, memory))
    room = (None, Code.GPU_COMPUTE, Code.GPU_MEMORY, Code.GPU_SIZE, Code.QUOTA)
    if any(reason and reason.code is Code.QUOTA for reason in verdict.devices):
        base = trial.within_quota(base)
    gpus = [g for g, reason in enumerate(verdict.devices) if (reason.code if reason else None) in room]
    if not ask.devices:
        yield _smaller(trial, ask, base, -1)
    for g in gpus if ask.devices == 1 else ():
        yield from (_smaller(trial, ask, one, g) for one in _on_device(trial, base, g))
    if ask.devices > 1:
        if base.milli < ask.milli:
            yield _smaller(trial, ask, base, -1)
        for whole in range(ask.whole, -1, -1):
            for rest in sorted({ask.rest_milli, 0}, reverse=True):
                if whole or rest:
                    yield _smaller(trial, ask, base.sized(whole * MILLI + rest), -1)
        for g in gpus:
            yield from (_smaller(trial, ask, one, g) for one in _on_device(trial, base.sized(MILLI), g))


def _on_device(trial: _Trial, ask: Ask, g: int) -> Iterator[Ask]:
    """An ask of one device cut to what the device has left; nothing when it has nothing left."""
    free, free_mib, size_mib = trial.free(g)
    milli = min(ask.milli, free)
    if ask.gpu_mib:
        cut = ask.but(memory=Memory(mib=min(ask.gpu_mib, free_mib)))
        possible = free_mib > 0
    elif ask.gpu_mem_ppm:
        left_ppm = free_mib * PPM // size_mib if size_mib else 0
        cut = ask.but(memory=Memory(part=Fraction(min(ask.gpu_mem_ppm, left_ppm), PPM)))
        possible = cut.gpu_mem_ppm > 0
    else:
        cut, possible = ask, True
        if size_mib:  # memory follows compute, so compute is cut until its memory fits
            milli = min(milli, ((free_mib + 1) * MILLI - 1) // size_mib)
    if possible and milli > 0:
        yield cut if milli == MILLI else cut.sized(milli)


def _smaller(trial: _Trial, ask: Ask, smaller: Ask, g: int) -> Suggestion:
    made = Suggestion("less", trial.node, ask, smaller, trial.index_of(g))
    size_mib = trial.free(g)[2] if g >= 0 else 0
    size = ask.milli - smaller.milli
    size += trial.part(ask.cpu_milli - smaller.cpu_milli, ask.memory_mib - smaller.memory_mib)
    size += -(-made.less_gpu_mib * MILLI // size_mib) if size_mib else 0
    size += -(-(ask.gpu_mem_ppm - smaller.gpu_mem_ppm) // MILLI)
    return replace(made, size_milli=size)


# Wait


def _wait(trial: _Trial, ask: Ask, verdict: Verdict) -> Iterator[Suggestion]:
    """Tenants that must end first."""
    if verdict.lasting:
        return
    # The constraints of a device that its tenants' end does not remove.
    stays = (Code.GPU_AFFINITY, Code.GPU_NAMED_ELSEWHERE, Code.QUOTA, Code.GPU_SIZE)
    waits = [g for g, reason in enumerate(verdict.devices) if not (reason and (reason.lasting or reason.code in stays))]
    if ask.devices == 1:
        for g in waits:
            ends = _ends_for(trial, ask, g, whole=not ask.rest_milli)
            yield _ended(trial, ask, _with_node_room(trial, ask, ends), g)
    elif ask.devices and len(waits) >= ask.devices:
        # Whole devices are emptied where that ends least, then one more is given room for the rest.
        def size(ends: Iterable[str]) -> int:
            return sum(trial.size_of(name) for name in ends)

        emptied = {g: _ends_for(trial, ask, g, whole=True) for g in waits}
        chosen = sorted(waits, key=lambda g: (size(emptied[g]), g))[: ask.whole]
        names = [name for g in chosen for name in emptied[g]]
        if ask.rest_milli:
            rests = {g: _ends_for(trial, ask, g, whole=False) for g in waits if g not in chosen}
            names += min(rests.values(), key=size)
        yield _ended(trial, ask, _with_node_room(trial, ask, tuple(dict.fromkeys(names))), -1)
    elif not ask.devices:
        yield _ended(trial, ask, _with_node_room(trial, ask, ()), -1)
    if trial.namespace and any(reason and reason.code is Code.QUOTA for reason in verdict.devices):
        own = [name for name in trial.cluster.tenants if name.startswith(f"{trial.namespace}/")]
        for name in sorted(own, key=trial.size_of)[:_NODES_TRIED]:
            yield _ended(trial, ask, (name,), -1)


def _cleared(trial: _Trial, ask: Ask) -> Iterator[Suggestion]:
    """All tenants in the way end: those of the node, and holders of affinity or vGPU elsewhere; as few as possible."""
    tenants, affinity = trial.cluster.tenants, ask.labels.affinity
    ties = [
        name
        for name, held in tenants.items()
        if (affinity and held.ask.labels.affinity == affinity) or (ask.gpu_id and held.ask.gpu_id == ask.gpu_id)
    ]
    ends = tuple(dict.fromkeys((*ties, *trial.cluster.tenants_on(trial.number))))
    if not ends or not trial.fits(_ended(trial, ask, ends, -1)):
        return
    for name in sorted(ends, key=trial.size_of, reverse=True)[:_NODES_TRIED]:
        fewer = tuple(other for other in ends if other != name)
        if trial.fits(_ended(trial, ask, fewer, -1)):
            ends = fewer
    yield _ended(trial, ask, ends, -1)


def _ends_for(trial: _Trial, ask: Ask, g: int, *, whole: bool) -> tuple[str, ...]:
    """Residents of a device that must end so that it takes the part of an ask, as little as possible in all."""
    residents = trial.cluster.residents(trial.number, g)
    if whole:
        return tuple(resident.tenant for resident in residents)
    must = [resident for resident in residents if _conflicts(resident, ask)]
    rest = [resident for resident in residents if not _conflicts(resident, ask)]
    free, free_mib, size_mib = trial.free(g)
    milli = ask.rest_milli - free - sum(resident.piece.request_milli for resident in must)
    mib = ask.shape.memory_on(size_mib) - free_mib - sum(resident.piece.memory_mib for resident in must)
    return tuple(resident.tenant for resident in (*must, *_least(rest, milli, mib)))


def _conflicts(resident: Resident, ask: Ask) -> bool:
    """Whether the labels of this resident keep the ask off its device."""
    theirs, ours = resident.labels, ask.labels
    if theirs.exclusion != ours.exclusion:
        return True
    if ours.anti_affinity and theirs.anti_affinity == ours.anti_affinity:
        return True
    return bool(ask.gpu_id) and resident.gpu_id not in ("", ask.gpu_id)


def _least(residents: Sequence[Resident], milli: int, mib: int) -> tuple[Resident, ...]:
    """Those residents that free so much compute and memory and hold least; largest first where many are needed."""
    if milli <= 0 and mib <= 0:
        return ()

    def enough(some: Sequence[Resident]) -> bool:
        pieces = [resident.piece for resident in some]
        return sum(p.request_milli for p in pieces) >= milli and sum(p.memory_mib for p in pieces) >= mib

    for count in range(1, min(_ENDING_MOST, len(residents)) + 1):
        sets = [some for some in combinations(residents, count) if enough(some)]
        if sets:
            return min(sets, key=lambda some: sum(resident.piece.request_milli for resident in some))
    chosen: list[Resident] = []
    for resident in sorted(residents, key=lambda r: (-r.piece.request_milli, -r.piece.memory_mib, r.tenant)):
        chosen.append(resident)
        if enough(chosen):
            break
    return tuple(chosen)


def _with_node_room(trial: _Trial, ask: Ask, ends: tuple[str, ...]) -> tuple[str, ...]:
    """More tenants of the node, those with the most CPU first, until CPU and host memory suffice."""
    cluster, chosen = trial.cluster, list(ends)
    others = [name for name in cluster.tenants_on(trial.number) if name not in ends]

    def short() -> tuple[int, int]:
        asks = [cluster.tenants[name].ask for name in chosen]
        cpu = ask.cpu_milli - cluster.cpu_free.item(trial.number) - sum(other.cpu_milli for other in asks)
        memory = ask.memory_mib - cluster.memory_free.item(trial.number) - sum(other.memory_mib for other in asks)
        return cpu, memory

    while others and max(short()) > 0:
        key = "cpu_milli" if short()[0] > 0 else "memory_mib"
        need = max(short()[0 if key == "cpu_milli" else 1], 1)
        amounts = {name: getattr(cluster.tenants[name].ask, key) for name in others}
        enough = [name for name in others if amounts[name] >= need]
        pick = min(enough, key=lambda n: (amounts[n], n)) if enough else max(others, key=lambda n: (amounts[n], n))
        chosen.append(pick)
        others.remove(pick)
    return tuple(chosen)


def _ended(trial: _Trial, ask: Ask, names: tuple[str, ...], g: int) -> Suggestion:
    ends = []
    for name in names:
        pieces = trial.cluster.tenants[name].placement.slices
        ends.append(EndingTenant(name, sum(p.request_milli for p in pieces), sum(p.memory_mib for p in pieces)))
    size_milli = sum(trial.size_of(name) for name in names)
    return Suggestion("wait", trial.node, ask, ask, trial.index_of(g), tuple(ends), size_milli)


# Drop


def _drop(cluster: Cluster, ask: Ask, quotas: Quotas, namespace: str) -> Iterator[Suggestion]:
    """The ask without one of its wishes, where that is all it takes."""
    wishes = {"model": bool(ask.models), "gpu": bool(ask.gpu_uuid), "gpu_id": bool(ask.gpu_id)}
    without = [ask.but(**{name: ""}) for name, given in wishes.items() if given]
    without += [ask.but(wake_us=0)] if ask.wake_us else []
    for name in ("affinity", "anti_affinity", "exclusion"):
        if getattr(ask.labels, name):
            without.append(ask.but(labels=replace(ask.labels, **{name: ""})))
    size = max(ask.milli, MILLI)
    order = sorted(cluster.nodes, key=lambda spec: (spec.rank, cluster.index[spec.name]))
    for left in without:
        for spec in order:
            if fits_on(cluster, left, spec.name, quotas, namespace):
                yield Suggestion("drop", spec.name, ask, left, size_milli=size)
                break

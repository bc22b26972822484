"""One machine's ledger: a cluster of one node, with requests coming in and plans going out.

What `aliquot up` and `aliquot run` place by. The same core as a cluster's; only the errors are its own, for a person
of this machine can list its tenants and free what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Final

from aliquot.model.errors import AliquotError, UserError
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.model.requests import Device, GpuRequest, Plan, Slice
from aliquot.model.sharepod import MEMORY_LIMIT, MOVABLE
from aliquot.placement.asks import Ask, model_matches
from aliquot.placement.cluster import Cluster, LedgerError, NodeSpec, Placement, Resident
from aliquot.placement.codes import Code
from aliquot.placement.decide import Decider
from aliquot.placement.explain import PlacementExplanation, explain_with
from aliquot.placement.policy import Policy, policy
from aliquot.placement.reasons import Infeasible
from aliquot.placement.sentences import shortfall

if TYPE_CHECKING:
    from aliquot.topology import Topology

DEFAULT_POLICY: Final = "aliquot"
MAX_MOVES: Final = 3
MAX_TRIALS: Final = 200
"""Moves that are looked at to make room for a request."""


class NoRoom(AliquotError):
    """The machine could hold the request, but others hold too much of it now."""


class NeverFits(UserError):
    """No device of this machine could hold the request, even if it were empty."""


class MachineLedger:
    """The holders of one machine's GPUs, and the place of the next request.

    `by` is the name of a policy, or makes one; `node` is what the machine is called in explanations.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        *,
        topology: Topology | None = None,
        by: str | Callable[[], Policy] = DEFAULT_POLICY,
        node: str = "here",
    ) -> None:
        gpus = tuple(sorted(devices, key=lambda device: device.index))
        self.node = node
        self.spec = NodeSpec(node, gpus, topology=topology)
        self.cluster = Cluster([self.spec])
        self.decider = Decider(self.cluster, policy(by) if isinstance(by, str) else by())
        self._by = by
        self.parked: dict[TenantName, Plan] = {}
        """What tenants whose memory is off their GPUs have when it is back; until then they hold their time alone."""

    @property
    def devices(self) -> list[Device]:
        """All devices, in the order of their index."""
        return list(self.spec.gpus)

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return self.decider.policy.name

    @property
    def plans(self) -> dict[TenantName, Plan]:
        """What every tenant holds."""
        held = self.cluster.tenants.items()
        return {TenantName(name): Plan(holding.placement.slices) for name, holding in held}

    def residents(self, gpu: GpuUuid) -> list[Resident]:
        """Who is on a device, in the order of arrival."""
        return self.cluster.residents(*self.cluster.uuids[gpu])

    def ask(self, request: GpuRequest) -> Ask:
        """The request as placement reads it: a device that was named by its index is named by its UUID.

        Raises:
            NeverFits: the device or model does not exist, devices are too few, or none has enough memory, or so much
                that a memory limit is not below what is guaranteed.
        """
        candidates = self._named(request)
        needed = request.whole + (request.rest_milli > 0)
        if needed > len(candidates):
            number, rest = divmod(request.request_milli, MILLI)
            percent = not rest and 10 <= number < 100  # may have been meant as hundredths of a GPU
            hint = f", or for {number} % of one GPU write {number / 100:g} or {number}%" if percent else ""
            raise NeverFits(
                f"{format_milli(request.request_milli)} GPUs were asked, {len(candidates)} can be given; "
                f"ask for at most {len(candidates)}.0{hint}"
            )
        largest, limit = max(candidates, key=lambda device: device.memory_mib), request.memory_limit
        lent = f"as --gpu-mem-limit or {MEMORY_LIMIT}"
        for amount, what in ((request.memory, "of GPU memory"), (limit, lent)):
            if amount is not None and (asked_mib := amount.on(largest.memory_mib)) > largest.memory_mib:
                raise NeverFits(
                    f"{format_mib(asked_mib)} {what} were asked, GPU {largest.index} has "
                    f"{format_mib(largest.memory_mib)} in all; ask for less"
                )
        sizes_mib = [device.memory_mib for device in candidates]
        if limit is not None and all(limit.on(mib) < request.memory_on(mib) for mib in sizes_mib):
            least = format_mib(min(request.memory_on(mib) for mib in sizes_mib))
            raise NeverFits(f"{limit} {lent} are below the {least} that are guaranteed; write more, or ask for less")
        uuid = ",".join(device.uuid for device in candidates) if request.gpu else ""
        return Ask(replace(request, gpu=uuid))

    def plan(self, request: GpuRequest, *, again: bool = False) -> Plan:
        """A plan that can be reserved at once; `again` for a request that waited.

        Raises:
            NeverFits: the request asks for more than the machine has, or for a wake where turns are not taken for it.
            NoRoom: it would fit on an emptier machine; the text says what is missing on each device.
        """
        ask = self.ask(request)
        found = self.decider.decide(ask, again=again)
        if isinstance(found, Infeasible):
            verdict = found.reasons()[0]
            why = shortfall(ask, verdict)
            if any(reason.code == Code.GPU_TURNS for reason in verdict.devices if reason is not None):
                raise NeverFits(f"{why}. End this engine (aliquot down) and start one with: aliquot up --turns fluid")
            raise NoRoom(f"{why}. See who holds the rest: aliquot get tenants")
        plan = Plan(found.slices)
        for piece in plan.slices:
            self._check_return(piece, request)
        return plan

    def _check_return(self, new: Slice, request: GpuRequest) -> None:
        """Refuse memory beside which the largest of those that may be parked would never come back.

        Raises:
            NoRoom: as it says.
        """
        stays_mib, largest_mib, who = 0, 0, ""
        for name, plan in [*(self.plans | self.parked).items(), (TenantName(""), Plan((new,)))]:
            asked = self.request_of(name) if name else request
            mib = sum(piece.memory_mib for piece in plan.slices if piece.gpu == new.gpu)
            if not asked.park_after_s:
                stays_mib += mib if name not in self.parked or asked.memory_limit is not None else 0
            elif mib > largest_mib:
                largest_mib, who = mib, name
        memory_mib = next(device.memory_mib for device in self.devices if device.uuid == new.gpu)
        if largest_mib and stays_mib + largest_mib > memory_mib:
            raise NoRoom(
                f"beside {format_mib(stays_mib)} that stay on a GPU of {format_mib(memory_mib)}, "
                f'"{who or "this request"}", which may be parked, would not find its {format_mib(largest_mib)} again'
            )

    def explain(self, request: GpuRequest) -> PlacementExplanation:
        """Why a request fits where it would go, or what stands against it and what would help.

        Raises:
            NeverFits: as `ask`.
        """
        return explain_with(self.decider, self.ask(request))

    def explain_tenant(self, tenant: TenantName) -> PlacementExplanation:
        """The same for a tenant that is here, as if it came now."""
        holding = self.cluster.tenants[tenant]
        found = explain_with(self.without(tenant).decider, holding.ask)
        now = self._indices(found.placement) if found.placement is not None else ()
        return replace(found, held=self._indices(holding.placement), now=now, node=self.node)

    def reserve(self, tenant: TenantName, plan: Plan, request: GpuRequest, *, parked: bool = False) -> None:
        """Write a plan into the ledger, all of it or nothing; where it is `parked` as far as it keeps it then.

        Raises:
            LedgerError: the tenant holds something already, or a slice does not fit.
        """
        placement = Placement(self.node, (_away(plan, request) if parked else plan).slices)
        self.decider.commit(tenant, placement, self.ask(request))
        if parked:
            self.parked[tenant] = plan

    def has_room(self, request: GpuRequest) -> bool:
        """Whether a request that waited would be placed now."""
        try:
            self.plan(request, again=True)
        except NoRoom:
            return False
        return True

    def plan_on(self, gpus: Sequence[GpuUuid], request: GpuRequest) -> Plan:
        """A plan on these GPUs, as `plan`, for a tenant of theirs that is not in this ledger and asks for another size.

        Raises:
            NeverFits: as `plan`.
            NoRoom: it does not fit; the text says what is missing, and the smallest change that would help.
        """
        found = self.explain(replace(request, gpu=",".join(gpus)))
        if found.placement is None:
            raise NoRoom(f"{shortfall(found.ask, found.verdicts[0])}. {found.ways[0]}")
        for piece in found.placement.slices:
            self._check_return(piece, request)
        return Plan(found.placement.slices)

    def resize(self, tenant: TenantName, plan: Plan, request: GpuRequest) -> None:
        """Write another plan of a tenant into the ledger in place of the one it has; all of it or nothing.

        Raises:
            LedgerError: a slice does not fit.
        """
        ask, held = self.ask(request), self.cluster.tenants[tenant]
        self.cluster.release(tenant)
        try:
            self.cluster.reserve(tenant, Placement(self.node, plan.slices), ask)
        except LedgerError:
            self.cluster.reserve(tenant, held.placement, held.ask)
            raise

    def begin_move(self, tenant: TenantName, gpu: str) -> GpuUuid:
        """Reserve what a tenant has a second time, on a GPU by its index or UUID, decided as if it came there now.

        Raises:
            NeverFits: it may never be there, as it is not movable, is tied to its GPU, or that is of another model.
            NoRoom: it has no room there, is parked, or is being moved.
        """
        request, held = self.request_of(tenant), self.plans[tenant].slices[0]
        if not request.movable:
            raise NeverFits(f'"{tenant}" is not movable; start it so: aliquot run --movable, or {MOVABLE}: "true"')
        to = GpuUuid(self.ask(replace(request, gpu=gpu, model="")).request.gpu)
        models = {device.uuid: device.model for device in self.devices}
        if to not in models or to == held.gpu:
            raise NeverFits(
                f'"{tenant}" is on GPU {gpu} already' if to in models else f"a move is to one GPU, not {gpu}"
            )
        if models[to] != models[held.gpu]:
            raise NeverFits(
                f'"{tenant}" is on {models[held.gpu]}, and is restored on no other model; GPU {gpu} is {models[to]}'
            )
        tied = request.gpu_id or request.labels.affinity
        if tied or self.without_gpus(request, models.keys() - {to}) is None:
            raise NeverFits(f'"{tenant}" is tied to its GPU by "{tied or request.gpu}"; start it anew without')
        if tenant in self.parked or self.is_moving(tenant):
            parked = f"parked; bring it back first: aliquot unpark {tenant}"
            raise NoRoom(f'"{tenant}" is {parked if tenant in self.parked else "being moved"}')
        with self.cluster.trial():
            self.cluster.release(tenant)
            self.plan_on([to], request)
        second = Slice(to, held.request_milli, held.limit_milli, held.memory_mib)
        try:
            self.reserve(_coming(tenant), Plan((second,)), request)
        except LedgerError as error:
            raise NoRoom(f'"{tenant}" has no room on GPU {gpu}: {error}') from None
        return to

    def change_gpu(self, tenant: TenantName) -> None:
        """Exchange a tenant's place and its second one, which are of the same size."""
        request, place, second = self.request_of(tenant), self.plans[tenant], self.plans[_coming(tenant)]
        self.end_move(tenant)
        self.resize(tenant, second, request)
        self.reserve(_coming(tenant), place, request)

    def end_move(self, tenant: TenantName) -> None:
        """Release a tenant's second place; that there is none is no error."""
        self.release(_coming(tenant))

    def moves_for(self, request: GpuRequest) -> list[tuple[TenantName, int]]:
        """The fewest moves, one after another, after which a request has room: tenants and the indices of their GPUs.

        None where it takes more than `MAX_MOVES`, or more than `MAX_TRIALS` are to be tried.
        """
        trials = iter(range(MAX_TRIALS))
        found = (self.copy()._moves(request, count, trials) for count in range(1, MAX_MOVES + 1))
        return next(filter(None, found), [])

    def _moves(self, request: GpuRequest, count: int, trials: Iterator[int]) -> list[tuple[TenantName, int]]:
        """So many moves; none where there are none, or no trials left."""
        names = [name for name in self.plans if self.request_of(name).movable]
        for name, device in product(names, self.devices):
            with self.cluster.trial():
                try:
                    self.begin_move(name, device.uuid)
                except (NoRoom, NeverFits):
                    continue
                if next(trials, None) is None:
                    return []
                self.change_gpu(name)
                self.end_move(name)
                rest = self._moves(request, count - 1, trials) if count > 1 else []
                if rest or (count == 1 and self.has_room(request)):
                    return [(name, device.index), *rest]
        return []

    def is_moving(self, tenant: TenantName) -> bool:
        """Whether a tenant has a second place."""
        return _coming(tenant) in self.cluster.tenants

    def park(self, tenant: TenantName) -> None:
        """Free a tenant's memory for others; its request of time stays its own."""
        plan, request = self.plans[tenant], self.request_of(tenant)
        self.resize(tenant, _away(plan, request), request)
        self.parked[tenant] = plan

    def unpark(self, tenant: TenantName) -> None:
        """Reserve the memory of a parked tenant again.

        Raises:
            LedgerError: others hold too much of it now, or were promised to find theirs again.
        """
        plan, request = self.parked[tenant], self.request_of(tenant)
        try:
            for piece in plan.slices if not request.park_after_s else ():
                self._check_return(piece, request)
        except NoRoom as error:
            raise LedgerError(str(error)) from None
        self.resize(tenant, plan, request)
        del self.parked[tenant]

    def request_of(self, tenant: TenantName) -> GpuRequest:
        """The request by which a tenant was placed."""
        return self.cluster.tenants[tenant].ask.request

    def release(self, tenant: TenantName) -> None:
        """Remove a tenant from the ledger; a missing one is no error."""
        self.decider.release(tenant)
        self.parked.pop(tenant, None)

    def copy(self) -> MachineLedger:
        """A copy of the ledger, to try things in; its policy starts fresh."""
        copy = self.empty()
        copy.cluster = self.cluster.copy()
        copy.decider = Decider(copy.cluster, copy.decider.policy)
        copy.parked = {**self.parked}
        return copy

    def without(self, tenant: TenantName) -> MachineLedger:
        """A copy in which a tenant has left."""
        copy = self.copy()
        copy.release(tenant)
        return copy

    def empty(self) -> MachineLedger:
        """The ledger of the same machine without tenants."""
        return MachineLedger(self.devices, topology=self.spec.topology, by=self._by, node=self.node)

    def _indices(self, placement: Placement) -> tuple[int, ...]:
        index = {device.uuid: device.index for device in self.devices}
        return tuple(index[piece.gpu] for piece in placement.slices)

    def nearest(self, request: GpuRequest) -> set[GpuUuid]:
        """The GPUs on which a request that has no room lacks the least time."""
        free = self.cluster.free_milli[self.cluster.node_index(self.node)]
        devices = sorted(self._named(request), key=lambda device: -free[self.devices.index(device)])
        return {device.uuid for device in devices[: -(-request.request_milli // MILLI)]}

    def without_gpus(self, request: GpuRequest, kept: AbstractSet[GpuUuid]) -> GpuRequest | None:
        """The request on the GPUs that it may have but these; None where it may have no other.

        Raises:
            NeverFits: it names no GPU that is here.
        """
        left = [device.uuid for device in self._named(request) if device.uuid not in kept]
        return replace(request, gpu=",".join(left)) if left else None

    def _named(self, request: GpuRequest) -> list[Device]:
        devices = self.devices
        if request.gpu:
            words = [word.strip() for word in request.gpu.split(",")]
            found = [device for device in devices if {str(device.index), device.uuid} & {*words}]
            missing = [word for word in words if not any(word in (str(d.index), d.uuid) for d in devices)]
            if missing:
                known = ", ".join(f"{device.index}" for device in devices)
                raise NeverFits(f'there is no GPU "{missing[0]}" here; there are GPU {known} (or their UUIDs)')
            devices = found
        if request.model:
            models = [model.strip() for model in request.model.split("|")]
            fitting = [device for device in devices if any(model_matches(model, device.model) for model in models)]
            if not fitting:
                there = ", ".join(sorted({device.model for device in devices}))
                raise NeverFits(f'no GPU of model "{request.model}" here; there is {there}')
            devices = fitting
        return devices


def _coming(tenant: TenantName) -> TenantName:
    """The name in the ledger of a tenant's second place; no tenant has such a name."""
    return TenantName(f"{tenant} (moving)")


def _away(plan: Plan, request: GpuRequest) -> Plan:
    """A plan without its memory; all of it, where it is parked for what was lent to it beyond its guarantee."""
    if request.memory_limit is not None and not request.park_after_s:
        return plan
    return Plan(tuple(Slice(piece.gpu, piece.request_milli, piece.limit_milli, 0) for piece in plan.slices))

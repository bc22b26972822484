"""The ledger of the plain placement, and what fits into it: everything counted anew from the list of tenants."""

from dataclasses import dataclass, field

from aliquot.placement.asks import Ask, model_matches
from aliquot.placement.cluster import NodeSpec, Placement
from aliquot.topology import best_set, set_cost


@dataclass
class PlainLedger:
    """All nodes, and who holds what: tenant -> (node, [(gpu, milli, mib)], ask)."""

    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    cordoned: set[str] = field(default_factory=set)
    held: dict[str, tuple[str, list[tuple[int, int, int]], Ask]] = field(default_factory=dict)

    def reserve(self, tenant: str, placement: Placement, ask: Ask) -> None:
        uuids = [gpu.uuid for gpu in self.nodes[placement.node].gpus]
        pieces = [(uuids.index(s.gpu), s.request_milli, s.memory_mib) for s in placement.slices]
        self.held[tenant] = (placement.node, pieces, ask)

    def fail(self, node: str) -> None:
        """A node is gone with all on it."""
        del self.nodes[node]
        self.cordoned.discard(node)
        self.held = {tenant: held for tenant, held in self.held.items() if held[0] != node}

    def on(self, node: str, gpu: int) -> list[tuple[int, int, Ask]]:
        """(milli, mib, ask) of everybody on a device."""
        return [(m, b, ask) for n, pieces, ask in self.held.values() if n == node for g, m, b in pieces if g == gpu]

    def free(self, node: str) -> list[int]:
        """Milli-GPU left on each device."""
        return [1000 - sum(m for m, _, _ in self.on(node, g)) for g in range(len(self.nodes[node].gpus))]

    def free_mib(self, node: str) -> list[int]:
        """MiB left on each device."""
        return [d.memory_mib - sum(b for _, b, _ in self.on(node, g)) for g, d in enumerate(self.nodes[node].gpus)]

    def cpu(self, node: str) -> int:
        return self.nodes[node].cpu_milli - sum(ask.cpu_milli for n, _, ask in self.held.values() if n == node)

    def memory(self, node: str) -> int:
        """Host memory left."""
        return self.nodes[node].memory_mib - sum(ask.memory_mib for n, _, ask in self.held.values() if n == node)

    def where(self, has) -> set[tuple[str, int]]:
        """Devices with a resident of some kind."""
        return {(n, g) for n, pieces, ask in self.held.values() for g, _, _ in pieces if has(ask)}


def allowed(ledger: PlainLedger, ask: Ask, node: str) -> list[int]:
    """Devices that model, name and labels leave; of several models the first one, by memory, that is enough."""
    found, gpus = _allowed(ledger, ask, node), ledger.nodes[node].gpus
    ordered = sorted(found, key=lambda g: (gpus[g].memory_mib, gpus[g].model))
    models = list(dict.fromkeys(gpus[g].model for g in ordered))
    if ask.whole + (ask.rest_milli > 0) < 2 or ask.mixed or len({gpu.model for gpu in gpus}) < 2:
        return found
    kinds = [[g for g in found if gpus[g].model == model] for model in models]
    return next((kind for kind in kinds if enough(ledger, ask, node, kind)), [])


def _allowed(ledger: PlainLedger, ask: Ask, node: str) -> list[int]:
    labels = ask.labels
    pinned = ledger.where(lambda a: labels.affinity and a.labels.affinity == labels.affinity)
    named = ledger.where(lambda a: ask.gpu_id and a.gpu_id == ask.gpu_id)
    found = []
    for g, device in enumerate(ledger.nodes[node].gpus):
        here = [a for _, _, a in ledger.on(node, g)]
        if ask.models and not any(model_matches(model, device.model) for model in ask.models):
            continue
        if ask.gpu_uuid and device.uuid not in ask.gpu_uuid.split(","):
            continue
        if (pinned and (node, g) not in pinned) or (named and (node, g) not in named):
            continue
        if any(a.labels.exclusion != labels.exclusion for a in here):
            continue
        if labels.anti_affinity and any(a.labels.anti_affinity == labels.anti_affinity for a in here):
            continue
        if ask.gpu_id and {a.gpu_id for a in here} - {"", ask.gpu_id}:
            continue
        found.append(g)
    return found


def needs_mib(ask: Ask, size_mib: int) -> int:
    """MiB of the shared or only device."""
    if ask.gpu_mib:
        return ask.gpu_mib
    if ask.gpu_mem_ppm:
        return size_mib * ask.gpu_mem_ppm // 1_000_000
    return size_mib * (ask.rest_milli or 1000) // 1000


def holds(ledger: PlainLedger, ask: Ask, node: str, gpus: list[int]) -> tuple[list[int], list[int]]:
    """Which of these devices can be given whole, and which hold the rest."""
    free, free_mib, spec = ledger.free(node), ledger.free_mib(node), ledger.nodes[node]
    whole = [g for g in gpus if free[g] == 1000]
    if ask.whole + (ask.rest_milli > 0) == 1:
        whole = [g for g in whole if ask.gpu_mib <= spec.gpus[g].memory_mib]
    rest = [g for g in gpus if free[g] >= ask.rest_milli and free_mib[g] >= needs_mib(ask, spec.gpus[g].memory_mib)]
    return whole, rest if ask.rest_milli else []


def fits(ledger: PlainLedger, ask: Ask, node: str) -> bool:
    """Whether a node can take the ask now."""
    if node in ledger.cordoned or ledger.cpu(node) < ask.cpu_milli or ledger.memory(node) < ask.memory_mib:
        return False
    if not ask.milli:
        return True
    return enough(ledger, ask, node, allowed(ledger, ask, node))


def enough(ledger: PlainLedger, ask: Ask, node: str, gpus: list[int]) -> bool:
    """Whether these devices have room for the ask."""
    whole, rest = holds(ledger, ask, node, gpus)
    if not ask.rest_milli:
        return len(whole) >= ask.whole
    return any(len([w for w in whole if w != g]) >= ask.whole for g in rest)


def linked(ledger: PlainLedger, node: str, idle: list[int], count: int) -> tuple[int, ...]:
    """So many idle devices close to each other."""
    topology = ledger.nodes[node].topology
    return tuple(sorted(idle)[:count]) if topology is None else best_set(topology, idle, count)


def common_choice(ledger: PlainLedger, ask: Ask, node: str, gpus: list[int], prefers) -> tuple[int, ...]:
    """Whole devices by links, the rest near them, of equals as the policy prefers."""
    whole, rest = holds(ledger, ask, node, gpus)
    if not ask.milli:
        return ()
    if not ask.rest_milli:
        return linked(ledger, node, whole, ask.whole)
    topology = ledger.nodes[node].topology
    options = []
    for g in rest:
        others = [w for w in whole if w != g]
        if len(others) >= ask.whole:
            chosen = linked(ledger, node, others, ask.whole) if ask.whole else ()
            cost = set_cost(topology, (*chosen, g)) if topology else 0
            options.append((cost, prefers(ledger, node, g), g, chosen))
    best = min(options)
    return (*best[3], best[2])


def fullest(ledger: PlainLedger, node: str, g: int) -> tuple[int, ...]:
    """The published policies' choice."""
    return (ledger.free(node)[g],)


def by_memory_too(ledger: PlainLedger, node: str, g: int) -> tuple[int, ...]:
    """Least compute left, then least memory."""
    return ledger.free(node)[g], ledger.free_mib(node)[g]


def emptiest(ledger: PlainLedger, node: str, g: int) -> tuple[int, ...]:
    """Most compute left, then most memory."""
    return -ledger.free(node)[g], -ledger.free_mib(node)[g]

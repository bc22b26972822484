"""Placement in plain, slow Python: counts everything anew for every decision, and shares no code with the columns.

The oracle of the production core. Only the choice of linked GPUs is taken from `aliquot.topology`, which has oracles
of its own.
"""

from abc import abstractmethod
from math import exp

from plain_ledger import PlainLedger, allowed, by_memory_too, common_choice, emptiest, fits, fullest, holds, linked

from aliquot.placement.asks import Ask, model_matches
from aliquot.topology import link_cost, set_cost


class Oracle:
    """One policy in plain Python: a score for every fitting node, then devices."""

    prefers = staticmethod(fullest)

    @abstractmethod
    def score(self, ledger: PlainLedger, ask: Ask, node: str) -> object:
        """Higher is better. Not needed where `scores` sees all nodes at once."""

    def scores(self, ledger: PlainLedger, ask: Ask, nodes: list[str]) -> dict[str, object]:
        """All fitting nodes at once."""
        return {node: self.score(ledger, ask, node) for node in nodes}

    def choose(self, ledger: PlainLedger, ask: Ask, node: str) -> tuple[int, ...]:
        return common_choice(ledger, ask, node, allowed(ledger, ask, node), self.prefers)

    def decide(self, ledger: PlainLedger, ask: Ask) -> tuple[str, tuple[int, ...]] | None:
        """Node and devices, or None."""
        nodes = [node for node in ledger.nodes if fits(ledger, ask, node)]
        if not nodes:
            return None
        scores = self.scores(ledger, ask, nodes)
        best = max(scores.values())
        node = min((n for n in nodes if scores[n] == best), key=lambda n: ledger.nodes[n].rank)
        return node, self.choose(ledger, ask, node)


def by_model(ledger: PlainLedger, ask: Ask, node: str) -> list[int]:
    """Devices of an allowed model, which is all that remembered scores know of."""
    devices = enumerate(ledger.nodes[node].gpus)
    return [g for g, d in devices if not ask.models or any(model_matches(m, d.model) for m in ask.models)]


class Binpack(Oracle):
    """See the policy."""

    prefers = staticmethod(by_memory_too)

    def score(self, ledger, ask, node):
        """Least left on the best card."""
        if ask.whole or not ask.milli:
            return (-sum(ledger.free(node)), 0)
        free, mib = ledger.free(node), ledger.free_mib(node)
        return max((-free[g], -mib[g]) for g in holds(ledger, ask, node, by_model(ledger, ask, node))[1])


class Spread(Oracle):
    """See the policy."""

    prefers = staticmethod(emptiest)

    def score(self, ledger, ask, node):
        """Most left on the best card."""
        if ask.whole or not ask.milli:
            return (sum(ledger.free(node)), 0)
        free, mib = ledger.free(node), ledger.free_mib(node)
        return max((free[g], mib[g]) for g in holds(ledger, ask, node, by_model(ledger, ask, node))[1])


class DotProduct(Oracle):
    """See the policy."""

    def score(self, ledger, ask, node):
        """100 x (1 - product / 2)."""
        product = 0.0
        product += (ledger.cpu(node) / 128000.0) * (ask.cpu_milli / 128000.0)
        product += (sum(ledger.free(node)) / 8000.0) * (ask.milli / 8000.0)
        return int(100.0 * (1.0 - product / 2.0))


class BestFit(Oracle):
    """See the policy."""

    def scores(self, ledger, ask, nodes):
        """Stretched over all that fit."""
        raw = {}
        for node in nodes:
            left = 0.0
            left += (ledger.cpu(node) - ask.cpu_milli) / 128000.0 * 0.5
            left += (sum(ledger.free(node)) - ask.milli) / 8000.0 * 0.5
            raw[node] = int((1.0 - left) * 100.0)
        least, most = min(raw.values()), max(raw.values())
        return {node: (value - least) * 100 // (most - least) if most > least else 0 for node, value in raw.items()}


class Clustering(Oracle):
    """See the policy."""

    def score(self, ledger, ask, node):
        if not ask.milli:
            return 0

        def kind(a):
            return a.devices if a.whole else 0

        kinds = {kind(a) for n, _, a in ledger.held.values() if n == node and a.milli}
        used = int(25 * (8000 - sum(ledger.free(node))) / 8000)
        bonus = 25 if not kinds else 0 if kind(ask) not in kinds else 75 if len(kinds) == 1 else 50
        return used + bonus


class Packing(Oracle):
    """See the policy."""

    def score(self, ledger, ask, node):
        """Three bands."""
        free = ledger.free(node)
        idle = free.count(1000)
        if not ask.milli:
            return 0
        if idle == len(free):
            return max(33 - idle, idle)
        rest = holds(ledger, ask, node, by_model(ledger, ask, node))[1]
        busy = sorted(free[g] for g in rest if free[g] < 1000)
        needed = ask.whole + (ask.rest_milli > 0 and not busy)
        if needed:
            return max(50 - needed, 33)
        return max(100 - busy[0] * 100 // 1000 // 10, 50)


class Gaia(Oracle):
    """See the policy."""

    def score(self, ledger, ask, node):
        """Fragment, Singular, Link."""
        free, spec = ledger.free(node), ledger.nodes[node]
        idle = free.count(1000)
        gpus = by_model(ledger, ask, node)
        whole, rest = holds(ledger, ask, node, gpus)
        if not ask.milli:
            return (0, -sum(free))
        if ask.devices > 1:
            if spec.topology is None:
                return (-link_cost("SYS") * ask.devices * (ask.devices - 1) // 2, -idle)
            chosen = (
                common_choice(ledger, ask, node, gpus, fullest)
                if ask.rest_milli
                else linked(ledger, node, whole, ask.whole)
            )
            return (-set_cost(spec.topology, chosen), -idle)
        partly = [free[g] for g in rest if free[g] < 1000]
        if ask.rest_milli and partly:
            return (2, -min(partly))
        return (int(idle < len(free)), -idle)

    def choose(self, ledger, ask, node):
        if ask.devices != 1:
            return super().choose(ledger, ask, node)
        free, topology = ledger.free(node), ledger.nodes[node].topology
        whole, rest = holds(ledger, ask, node, allowed(ledger, ask, node))
        partly = [g for g in rest if free[g] < 1000]
        if partly:
            return (min(partly, key=lambda g: (free[g], g)),)
        idle = [g for g in (rest or whole) if free[g] == 1000]
        if topology is None:
            return (idle[0],)
        access = [min((c for o, c in enumerate(row) if o != g), default=0) for g, row in enumerate(topology.cost)]
        if ask.whole:  # Algorithm 3, line 2: idle, and its cousins have nothing left
            cousins = {g: [o for o in range(len(free)) if o != g and topology.cost[g][o] == access[g]] for g in idle}
            idle = [g for g in idle if cousins[g] and sum(free[o] for o in cousins[g]) == 0] or idle
        return (min(idle, key=lambda g: (access[g], g)),)


class KubeShare(Oracle):
    """See the policy."""

    def value(self, ledger, ask, node, g):
        """What a device is worth."""
        free, mib = ledger.free(node)[g], ledger.free_mib(node)[g]
        first = ask.labels.affinity and not ledger.where(lambda a: a.labels.affinity == ask.labels.affinity)
        if first:
            return (1, 0, 0) if free == 1000 else (0, free, mib)
        if free == 1000:
            return (0, 0, 0)
        if any(a.labels.affinity for _, _, a in ledger.on(node, g)):
            return (1, free, mib)
        return (2, -free, -mib)

    def score(self, ledger, ask, node):
        """The best device that the labels leave."""
        if ask.whole or not ask.milli:
            return (-sum(ledger.free(node)),)
        rest = holds(ledger, ask, node, allowed(ledger, ask, node))[1]
        return max(self.value(ledger, ask, node, g) for g in rest)

    def choose(self, ledger, ask, node):
        """The best device."""
        if ask.whole or not ask.milli:
            return super().choose(ledger, ask, node)
        rest = holds(ledger, ask, node, allowed(ledger, ask, node))[1]
        return (max(rest, key=lambda g: (self.value(ledger, ask, node, g), -g)),)


class Fgd(Oracle):
    """See the policy; the target workload is given."""

    def __init__(self, target):
        self.target = target

    def amount(self, cpu, left, models):
        """Idle milli-GPU that the next pod cannot use, summed class by class."""
        sums = dict.fromkeys(("q1", "q2", "q4", "xl", "xr", "na"), 0.0)
        idle = sum(left)
        for shape, share in self.target:
            milli = 1000 if shape.whole else shape.rest_milli
            enough = sum(x >= milli for x in left) >= shape.devices
            has_cpu = cpu >= shape.cpu_milli
            if not shape.devices:
                sums["xl" if has_cpu else "xr"] += share * float(idle)
            elif shape.models and not any(model_matches(m, model) for m in shape.models for model in models):
                sums["na"] += share * float(idle)
            elif enough and has_cpu:
                sums["q2"] += share * float(sum(x for x in left if x < milli))
            else:
                sums["q4" if enough else "q2" if has_cpu else "q1"] += share * float(idle)
        return ((((sums["q1"] + sums["q2"]) + sums["q4"]) + sums["xl"]) + sums["xr"]) + sums["na"]

    def values(self, ledger, ask, node, gpus):
        """(score, device) of every way to place it."""
        free, models = ledger.free(node), {d.model for d in ledger.nodes[node].gpus}
        before = self.amount(ledger.cpu(node), free, models)
        whole, rest = holds(ledger, ask, node, gpus)
        for g in whole[: ask.whole]:
            free[g] = 0
        options = [-1] if not ask.rest_milli else [g for g in rest if g not in whole[: ask.whole]]
        for g in options:
            after = [x - ask.rest_milli * (i == g) for i, x in enumerate(free)]
            fall = before - self.amount(ledger.cpu(node) - ask.cpu_milli, after, models)
            yield int(100.0 * (1.0 / (1.0 + exp(-(fall / 1000.0))))), g

    def score(self, ledger, ask, node):
        return max((score for score, _ in self.values(ledger, ask, node, by_model(ledger, ask, node))), default=-1)

    def choose(self, ledger, ask, node):
        """The device of the largest, the first of equals."""
        if ask.whole or not ask.milli:
            return super().choose(ledger, ask, node)
        values = self.values(ledger, ask, node, allowed(ledger, ask, node))
        return (max(values, key=lambda value: (value[0], -value[1]))[1],)

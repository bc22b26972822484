"""Quota by namespace and model: how much of which GPUs a namespace may hold at once.

Namespaces of one cohort lend each other what is nominal for them and not held: a namespace may hold more than its
nominal quota, up to its own bound, while all of the cohort together hold no more than the sum of their nominal quotas.
So one that asks within its nominal quota is refused only while others borrow; their newest pods are then evicted
(`scheduler.extender.preempt`). The words are those of Kueue's ClusterQueue, the rule that of scheduler-plugins'
ElasticQuota, where `gpus` here is `max` there and `nominalGpus` `min`.

Pure: asked while filtering, so that a person reads why a pod waits, and once more where the placement is committed, so
that nothing slips between the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from aliquot.model.errors import AliquotError
from aliquot.model.ids import split_key
from aliquot.model.quantities import MILLI
from aliquot.model.requests import Labels, Slice
from aliquot.placement.asks import Ask, model_matches
from aliquot.placement.cluster import Cluster, Placement
from aliquot.placement.codes import QuotaExcess
from aliquot.placement.sentences import over_quota

Usage = Mapping[str, tuple[int, int]]
"""Model -> (milli-GPU, MiB) that a namespace holds."""
Bound = tuple[int | None, int | None]
"""Milli-GPU and MiB; None is no bound."""


class QuotaExceeded(AliquotError):
    """A placement would take a namespace over its quota."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that a namespace may hold of GPUs that answer to a model, all models when it is empty.

    `milli` in milli-GPU, `memory_mib` in MiB of GPU memory; None is no bound. `name` is that of its object.
    `forbids` are the kinds of labels that its pods may not carry: affinity, antiAffinity, exclusion. `nominal` is what
    it lends to its `cohort` while it holds less. What bounds a whole cohort has the cohort's name for a namespace.
    """

    namespace: str
    model: str = ""
    milli: int | None = None
    memory_mib: int | None = None
    name: str = ""
    forbids: tuple[str, ...] = ()
    cohort: str = ""
    nominal: Bound = (None, None)
    kind: str = "namespace"

    def covers(self, model: str) -> bool:
        """Whether it counts GPUs of that model."""
        return not self.model or model_matches(self.model, model)

    def counted(self, *usages: Usage) -> tuple[int, int]:
        """What of these, taken together, it counts: (milli-GPU, MiB)."""
        amounts = [amount for used in usages for model, amount in used.items() if self.covers(model)]
        return sum(milli for milli, _ in amounts), sum(mib for _, mib in amounts)

    def excess(self, usages: Iterable[Usage], more: Usage, *, whole: bool) -> QuotaExcess | None:
        """What would be too much with `more` on top of what is held already; None when nothing.

        `whole` is whether GPUs of `more` are counted whole, though less of them was asked for.
        """
        for held, asked, allowed, memory in zip(
            self.counted(*usages), self.counted(more), (self.milli, self.memory_mib), (False, True), strict=True
        ):
            if asked and allowed is not None and held + asked > allowed:
                return QuotaExcess(
                    self.namespace, self.model, held, allowed, asked, memory, self.name, whole, kind=self.kind
                )
        return None

    def borrows(self, usage: Usage) -> bool:
        """Whether a namespace that holds this has a part of it from its cohort."""
        most = zip(self.counted(usage), self.nominal, strict=True)
        return any(nominal is not None and held > nominal for held, nominal in most)

    def forbidden(self, labels: Labels) -> QuotaExcess | None:
        """The label of these that it forbids, if any."""
        # Equal parts of one container have a label of our own, which has a slash.
        own = "" if "/" in labels.anti_affinity else labels.anti_affinity
        carried = {"affinity": labels.affinity, "antiAffinity": own, "exclusion": labels.exclusion}
        label = next((label for label in self.forbids if carried[label]), "")
        return QuotaExcess(self.namespace, "", 0, 0, 0, quota=self.name, label=label) if label else None


class Quotas:
    """All quotas of a cluster."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._by_namespace: dict[str, list[Quota]] = {}
        self._cohorts: dict[tuple[str, str], list[Quota]] = {}
        for quota in quotas:
            self._by_namespace.setdefault(quota.namespace, []).append(quota)
            if quota.cohort:
                self._cohorts.setdefault((quota.cohort, quota.model), []).append(quota)

    def nominal(self, namespace: str) -> Quotas | None:
        """The same, where the namespace has no more than its nominal quotas; None where it has none."""
        if not any(quota.cohort for quota in self._by_namespace.get(namespace, ())):
            return None
        made = Quotas()
        within = {
            namespace: [
                replace(quota, milli=quota.nominal[0], memory_mib=quota.nominal[1]) if quota.cohort else quota
                for quota in self._by_namespace[namespace]
            ]
        }
        made._cohorts, made._by_namespace = self._cohorts, self._by_namespace | within
        return made

    def borrows(self, cluster: Cluster, namespace: str, lender: str, models: Collection[str]) -> bool:
        """Whether a namespace borrows GPUs of one of these models (the cluster's names) in a cohort of the lender's."""
        usage = cluster.usage(namespace)
        return any(
            member.namespace == namespace and member.borrows(usage) and any(map(member.covers, models))
            for quota in self._by_namespace.get(lender, ())
            for member in self._cohorts.get((quota.cohort, quota.model), ())
        )

    def _bounds(self, cluster: Cluster, namespace: str) -> Iterator[tuple[Quota, list[Usage]]]:
        """What bounds a namespace, and the holdings that count: its own, then those of all of each cohort of its."""
        for quota in self._by_namespace.get(namespace, ()):
            yield quota, [cluster.usage(namespace)]
            members = self._cohorts.get((quota.cohort, quota.model), ())
            for part in range(2):
                # One that has no nominal quota is outside the cohort; of two in one namespace the smaller one counts.
                given = [(member.namespace, most) for member in members if (most := member.nominal[part]) is not None]
                nominal = dict(sorted(given, key=itemgetter(1), reverse=True))
                if namespace in nominal:
                    lent = sum(nominal.values())
                    milli, mib = (None, lent) if part else (lent, None)
                    whole = Quota(quota.cohort, quota.model, milli, mib, kind="cohort")
                    yield whole, [cluster.usage(member) for member in nominal]

    def closed(self, cluster: Cluster, namespace: str, *asks: Ask) -> dict[str, QuotaExcess]:
        """Models of which the namespace may not have what is asked, by the cluster's own names for them, and why.

        A model is closed when the asks do not fit into the quota with all their devices of that model.
        """
        bounds = list(self._bounds(cluster, namespace))
        asks = tuple(ask for ask in asks if ask.devices)
        if not bounds or not asks:
            return {}
        forbidden = (quota.forbidden(ask.request.labels) for quota, _ in bounds for ask in asks)
        if excess := next(filter(None, forbidden), None):
            return dict.fromkeys(cluster.models, excess)
        found: dict[str, QuotaExcess] = {}
        whole = any(ask.request.labels.exclusion and ask.milli % MILLI for ask in asks)
        for model, size_mib in zip(cluster.models, cluster.model_mib, strict=True):
            each = [_of_model(cluster, namespace, ask, model, size_mib) for ask in asks]
            more = {model: (sum(milli for milli, _ in each), sum(mib for _, mib in each))}
            if excess := next(filter(None, (quota.excess(held, more, whole=whole) for quota, held in bounds)), None):
                found[model] = excess
        return found

    def require(self, cluster: Cluster, tenant: str, placement: Placement, ask: Ask) -> None:
        """Let a placement pass that keeps its tenant's namespace within quota.

        Raises:
            QuotaExceeded: it does not.
        """
        namespace = split_key(tenant)[0]
        if namespace not in self._by_namespace:
            return
        more = added(cluster, namespace, placement.slices, exclusive=bool(ask.request.labels.exclusion))
        whole = bool(ask.request.labels.exclusion and ask.milli % MILLI)
        for quota, held in self._bounds(cluster, namespace):
            if excess := quota.excess(held, more, whole=whole):
                raise QuotaExceeded(f"{over_quota(excess)}; ask for less, or for a higher quota")


NO_QUOTAS: Final = Quotas()


def added(cluster: Cluster, namespace: str, slices: Iterable[Slice], *, exclusive: bool) -> dict[str, tuple[int, int]]:
    """What slices add to a namespace, (milli-GPU, MiB) by model; of an exclusive tenant its GPUs count whole."""
    more: dict[str, tuple[int, int]] = {}
    for piece in slices:
        cell = cluster.uuids[piece.gpu]
        model = cluster.models[cluster.model.item(*cell)]
        milli, mib = piece.request_milli, piece.memory_mib
        if exclusive:
            first = not cluster.holds(namespace, *cell)
            milli, mib = first * MILLI, first * cluster.size_mib.item(*cell)
        before_milli, before_mib = more.get(model, (0, 0))
        more[model] = (before_milli + milli, before_mib + mib)
    return more


def _of_model(cluster: Cluster, namespace: str, ask: Ask, model: str, size_mib: int) -> tuple[int, int]:
    """What an ask adds on devices of that model: (milli-GPU, MiB); whole ones where it keeps others off them.

    On a device that the namespace has to itself already it adds nothing; whether it gets that one shows at the commit.
    """
    label = ask.request.labels.exclusion
    if not label:
        return ask.milli, ask.least_memory(size_mib)
    own = any(
        cluster.models[cluster.model.item(*cell)] == model and cluster.holds(namespace, *cell)
        for cell in cluster.labels.exclusion.get(label, ())
    )
    return (0, 0) if own else (ask.devices * MILLI, ask.devices * size_mib)

"""Quota by namespace and model: how much of which GPUs a namespace may hold at once.

Pure: asked while filtering, so that a person reads why a pod waits, and once more where the placement is committed, so
that nothing slips between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aliquot.model.errors import AliquotError
from aliquot.model.ids import split_key
from aliquot.model.quantities import format_mib, format_milli
from aliquot.placement.asks import Ask, model_matches
from aliquot.placement.cluster import Cluster, Placement


class QuotaExceeded(AliquotError):
    """A placement would take a namespace over its quota."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that a namespace may hold of GPUs that answer to a model, all models when it is empty.

    `milli` in milli-GPU, `memory_mib` in MiB of GPU memory; None is no bound.
    """

    namespace: str
    model: str = ""
    milli: int | None = None
    memory_mib: int | None = None

    def covers(self, model: str) -> bool:
        """Whether it counts GPUs of that model."""
        return not self.model or model_matches(self.model, model)

    def counted(self, used: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """What of (milli-GPU, MiB) by model it counts."""
        amounts = [amount for model, amount in used.items() if self.covers(model)]
        return sum(milli for milli, _ in amounts), sum(mib for _, mib in amounts)

    def excess(self, used: Mapping[str, tuple[int, int]], more: Mapping[str, tuple[int, int]]) -> str:
        """What would be too much with `more` on top of `used`, as a sentence; empty when nothing.

        Both are (milli-GPU, MiB) by model.
        """
        have, asked = self.counted(used), self.counted(more)
        of = f" of {self.model}" if self.model else ""
        if asked[0] and self.milli is not None and have[0] + asked[0] > self.milli:
            return (
                f'namespace "{self.namespace}" holds {format_milli(have[0])}{of} GPUs of {format_milli(self.milli)} '
                f"it may have, {format_milli(asked[0])} more were asked"
            )
        if asked[1] and self.memory_mib is not None and have[1] + asked[1] > self.memory_mib:
            return (
                f'namespace "{self.namespace}" holds {format_mib(have[1])}{of} GPU memory of '
                f"{format_mib(self.memory_mib)} it may have, {format_mib(asked[1])} more were asked"
            )
        return ""


class Quotas:
    """All quotas of a cluster."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._by_namespace: dict[str, list[Quota]] = {}
        for quota in quotas:
            self._by_namespace.setdefault(quota.namespace, []).append(quota)

    def closed(self, cluster: Cluster, namespace: str, ask: Ask) -> tuple[str, ...]:
        """Models of which the namespace may not have what is asked, by the cluster's own names for them."""
        return tuple(self.closed_reasons(cluster, namespace, ask))

    def closed_reasons(self, cluster: Cluster, namespace: str, ask: Ask) -> dict[str, str]:
        """The same models, each with the sentence that says why; [model -> sentence].

        A model is closed when the ask does not fit into the quota with all its devices of that model.
        """
        quotas = self._by_namespace.get(namespace)
        if quotas is None or not ask.devices:
            return {}
        used, found = cluster.usage(namespace), {}
        for model, size_mib in zip(cluster.models, cluster.model_mib, strict=True):
            more = {model: (ask.milli, ask.least_memory(size_mib))}
            sentences = filter(None, (quota.excess(used, more) for quota in quotas))
            if sentence := next(sentences, ""):
                found[model] = sentence
        return found

    def require(self, cluster: Cluster, tenant: str, placement: Placement) -> None:
        """Let a placement pass that keeps its tenant's namespace within quota.

        Raises:
            QuotaExceeded: it does not.
        """
        namespace = split_key(tenant)[0]
        quotas = self._by_namespace.get(namespace)
        if quotas is None:
            return
        more: dict[str, tuple[int, int]] = {}
        for piece in placement.slices:
            model = cluster.models[cluster.model.item(*cluster.uuids[piece.gpu])]
            milli, memory_mib = more.get(model, (0, 0))
            more[model] = (milli + piece.request_milli, memory_mib + piece.memory_mib)
        used = cluster.usage(namespace)
        for quota in quotas:
            if reason := quota.excess(used, more):
                raise QuotaExceeded(f"{reason}; ask for less, or for a higher quota")

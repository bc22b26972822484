"""The scheduler's books behind the port that the operator and the pool use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aliquot.kube.requests import PodAsk
from aliquot.placement.ledger import ledger_gpu, ledger_gpus
from aliquot.placement.sentences import text_of
from aliquot.scheduler.books import CLOSED, Books
from aliquot.scheduler.look import verdicts
from aliquot.status.gpus import Gpu


class BooksLedger:
    """A Ledger over the books of this process."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def gpu(self, uuid: str) -> Gpu | None:
        """A device by its UUID; None when no node has it."""
        cell = self._books.cluster.uuids.get(uuid)
        return None if cell is None else ledger_gpu(self._books.cluster, *cell, closed)

    def gpus(self, node: str = "") -> Iterable[Gpu]:
        """All devices, or those of a node, in the order of the books."""
        cluster = self._books.cluster
        if node and node not in cluster.index:
            return
        for name in [node] if node else [spec.name for spec in cluster.nodes]:
            yield from ledger_gpus(cluster, name, closed)

    def why_not(self, node: str) -> str:
        """Why a node takes no pods that ask for GPUs; empty when it may."""
        books = self._books
        return "" if node in books.cluster.index else text_of(books.absent(node))

    def fits(self, ask: PodAsk, nodes: Iterable[str]) -> tuple[bool, str]:
        """Whether the pod fits on one of these nodes now; if not, the commonest reason."""
        names = list(nodes) or [spec.name for spec in self._books.cluster.nodes]
        found = verdicts(self._books, ask, names)
        if found.fitting:
            return True, ""
        texts = Counter([*found.failed.values(), *found.never.values()])
        return False, texts.most_common(1)[0][0] if texts else "no node has GPUs"

    def close(self, uuid: str) -> bool:
        """Accept no new tenant on the device; False if it has one."""
        return self._books.close(uuid)

    def reopen(self, uuid: str) -> None:
        """Undo `close`."""
        self._books.reopen(uuid)


def closed(tenant: str) -> bool:
    """Whether a tenant only keeps others off a device."""
    return tenant.startswith(CLOSED)

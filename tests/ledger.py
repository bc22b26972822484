"""The invariants of placement's ledger, recounted from the tenants."""

from aliquot.model.ids import split_key
from aliquot.model.quantities import MILLI
from aliquot.placement.cluster import Cluster
from aliquot.placement.entries import GONE, LabelIndex, kind_of


def check(cluster: Cluster) -> None:
    """Recount everything from the tenants; AssertionError unless ledger, columns and labels agree."""

    labels = LabelIndex()
    totals: dict[tuple[str, int], list[int]] = {}
    for number, node in enumerate(cluster.rows):
        if node is None:
            assert cluster.cpu_free[number] == GONE and not cluster.open[number]
            continue
        cluster.recount(number, range(len(node.residents)))
        held = [cluster.tenants[tenant].ask for tenant in node.tenants]
        assert cluster.cpu_free[number] == node.spec.cpu_milli - sum(ask.cpu_milli for ask in held)
        assert cluster.memory_free[number] == node.spec.memory_mib - sum(ask.memory_mib for ask in held)
        assert cluster.kinds[number] == sum({1 << kind_of(ask) for ask in held if ask.devices})
        row = cluster.free_milli[number, : len(node.residents)]
        assert cluster.free_total[number] == row.sum() and cluster.idle_count[number] == (row == MILLI).sum()
        for g, residents in enumerate(node.residents):
            closed: set[str] = set()
            for tenant, resident in residents.items():
                assert resident.piece in cluster.tenants[tenant].placement.slices
                labels.add((number, g), resident.labels, resident.gpu_id)
                namespace = split_key(tenant)[0]
                used = totals.setdefault((namespace, cluster.model.item(number, g)), [0, 0])
                if not resident.labels.exclusion:
                    used[0] += resident.piece.request_milli
                    used[1] += resident.piece.memory_mib
                elif namespace not in closed:
                    closed.add(namespace)
                    used[0] += MILLI
                    used[1] += cluster.size_mib.item(number, g)
    listed = sum(len(residents) for node in cluster.rows if node for residents in node.residents)
    assert listed == sum(len(holding.cells) for holding in cluster.tenants.values())
    assert labels == cluster.labels
    reserved = {(name, model): used for name, models in cluster.used.items() for model, used in models.items()}
    assert totals == {key: used for key, used in reserved.items() if used != [0, 0]}

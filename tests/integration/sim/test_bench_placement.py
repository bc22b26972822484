"""`aliquot bench placement`: the figures it gives."""

from aliquot_lab.bench.placement import placement


def test_the_figures_have_their_fields():
    """For each policy: seconds of an openb run, and p50 and p99 of a decision for each size of cluster."""
    figures = placement(("packing",), decisions=20, sizes=((20, 60), (40, 60)))

    assert ["packing"] == [row["policy"] for row in figures["openb"]]
    assert figures["openb"][0]["seconds"] > 0
    assert [(20, 8, 60), (40, 8, 60)] == [
        (row["nodes"], row["gpus_per_node"], row["pods"]) for row in figures["decision"]
    ]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in figures["decision"])

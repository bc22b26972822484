"""Clusters to simulate: tables, profiles, and the ledger of a live cluster."""

import json
from pathlib import Path

import pytest

from aliquot.model.errors import UserError
from aliquot.placement.cluster import Cluster
from aliquot.placement.saved import dump
from aliquot_lab.sim.clusters import ranked, read_cluster

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "sim"


def test_a_table_gives_its_nodes():
    """Every line is a node with its GPUs, CPU and memory."""
    nodes = read_cluster(str(EXAMPLES / "nodes.csv"))

    assert [8, 8, 2, 2, 2] == [len(node.gpus) for node in nodes]
    assert ("A100", 96_000) == (nodes[0].gpus[0].model, nodes[0].cpu_milli)


def test_profiles_give_machines_with_their_links():
    """`v100x4*8` are eight machines of four V100, linked as such a machine is."""
    nodes = read_cluster("v100x4*8,t4")

    assert [4] * 8 + [1] == [len(node.gpus) for node in nodes]
    assert nodes[0].topology is not None
    assert 4 == nodes[0].topology.count
    assert 9 == len({node.name for node in nodes})


def test_the_ledger_of_a_live_cluster_gives_its_nodes(tmp_path):
    """What a cluster writes down is read back, nodes and links, without who runs there."""
    nodes = ranked(read_cluster("v100x4*2"))
    (tmp_path / "cluster.json").write_text(json.dumps(dump(Cluster(nodes))))

    assert nodes == read_cluster(str(tmp_path / "cluster.json"))


@pytest.mark.parametrize("text", ["v100x4*0", "v100x99", "gtx*2", "./nowhere", "v100*2*2"])
def test_anything_else_is_refused(text: str):
    """What is neither a file nor a list of profiles is one sentence."""
    with pytest.raises(UserError, match="--nodes"):
        read_cluster(text)


def test_a_broken_dump_is_refused(tmp_path):
    """A file that is not a dump of a cluster is told by its name."""
    (tmp_path / "cluster.json").write_text("{}")

    with pytest.raises(UserError, match=r"cluster\.json: is not a dump"):
        read_cluster(str(tmp_path / "cluster.json"))

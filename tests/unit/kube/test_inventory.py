"""What a node says about its devices, read by the scheduler."""

import pytest

from aliquot.kube.inventory import BadInventory, Inventory, read_inventory, write_inventory
from aliquot.kube.names import GPUS
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.topology.machine import Topology

DEVICES = tuple(Device(i, GpuUuid(f"GPU-{i}"), "Tesla V100-SXM2-16GB", 16384) for i in range(2))
PAIR = Topology.of([["X", "NV1"], ["NV1", "X"]], numa=[0, 1], cores=[[0, 1, 2], [8]])


@pytest.mark.parametrize("topology", [None, PAIR])
def test_what_is_written_is_read_back(topology: Topology | None):
    """Devices, health, links, NUMA nodes and cores survive the annotation."""
    inventory = Inventory(DEVICES, topology, {"GPU-1": "XID 79"})

    assert inventory == read_inventory({GPUS: write_inventory(inventory)})


def test_a_node_that_says_nothing_has_no_inventory():
    """A node without the annotation is not managed, which is no error."""
    assert read_inventory({}) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read"),
        ('{"v":2,"devices":[]}', "is of version 2, this program reads version 1; upgrade it"),
        (
            '{"devices":[{"index":0,"uuid":"a","model":"m","memory_mib":1},{"index":1,"uuid":"a","model":"m","memory_mib":1}]}',
            "has two devices of one UUID",
        ),
        ('{"devices":[{"index":0,"uuid":"a","model":"m","memory_mib":0}]}', "or one without memory"),
        ('{"devices":[],"links":[["X"]]}', "for another number of devices than 0"),
        ('{"devices":[{"index":0,"uuid":"a","model":"m","memory_mib":1}],"links":[["NV1"]]}', "row GPU0, column GPU0"),
        (
            '{"devices":[{"index":0,"uuid":"a","model":"m","memory_mib":1}],"links":[["X"]],"cores":["x"]}',
            "invalid literal",
        ),
    ],
)
def test_an_inventory_that_can_not_be_read_is_refused(text: str, sentence: str):
    """The message names the annotation and what is wrong in it."""
    with pytest.raises(BadInventory) as caught:
        read_inventory({GPUS: text})

    assert f'metadata.annotations["{GPUS}"]' in str(caught.value)
    assert sentence in str(caught.value)

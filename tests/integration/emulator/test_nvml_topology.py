"""The machine that NVML describes is the machine that was emulated."""

import pytest

from aliquot.driver.discovery import gpu_topology, list_gpus
from aliquot.driver.emulation import parse_spec, profile_topology


@pytest.mark.parametrize("spec", ["v100x8", "v100x16", "a100x16", "a100-80gx8", "h100x4", "t4x8", "v100x3", "t4"])
def test_nvml_tells_the_topology_of_the_profile(clients, spec):
    """Links through a switch or direct, PCIe levels, NUMA nodes and cores come back as the profile has them."""
    found = gpu_topology(list_gpus(clients(spec).machine.libnvml))

    assert profile_topology(*parse_spec(spec)) == found


def test_two_boards_are_far_apart(clients):
    """Sixteen GPUs of an eight-GPU board are two boards, each whole, with SYS between them."""
    found = gpu_topology(list_gpus(clients("h100x16").machine.libnvml))

    assert ("NV18", "SYS", "NV18") == (found.links[0][7], found.links[7][8], found.links[8][15])

"""How CUDA's variables name the GPUs of a tenant, and which CPU cores near a GPU are chosen for it."""

import os

import msgspec
import pytest

from aliquot.driver.gpu import Gpu, TooManyCores, cuda_variables, least_used, nearest_cores

# Indices that are not in the order of the addresses, as after an address was given to another slot.
GPUS = [
    Gpu(0, "GPU-a", "NVIDIA H100", 81559, pci="00000000:1B:00.0"),
    Gpu(1, "GPU-b", "NVIDIA H100", 81559, pci="00000000:0A:00.0"),
    Gpu(2, "GPU-c", "NVIDIA H100", 81559, pci="00000001:05:00.0"),
]


def devices(given: list[str], seen: list[Gpu]) -> str:
    """CUDA_VISIBLE_DEVICES alone."""
    return cuda_variables(given, seen)["CUDA_VISIBLE_DEVICES"]


def test_numbers_follow_the_pci_addresses_of_the_gpus_that_are_seen():
    """A GPU's number is its place by PCI address among all that the program can open, and CUDA is told that order."""
    assert {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} == cuda_variables(["GPU-a"], GPUS)
    assert "2,0" == devices(["GPU-c", "GPU-b"], GPUS)
    assert "0" == devices(["GPU-c"], [GPUS[2]])


def test_without_addresses_the_index_is_the_number():
    """GPUs whose PCI addresses are not known are numbered by index."""
    assert "1" == devices(["GPU-b"], [msgspec.structs.replace(gpu, pci="") for gpu in GPUS])


def test_uuids_stand_where_the_numbers_are_not_certain():
    """Beside a GPU in MIG mode, and where a GPU is not among those that are seen, the UUIDs are given."""
    mig = [*GPUS[:2], msgspec.structs.replace(GPUS[2], mig=True)]

    assert {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"} == cuda_variables(["GPU-b", "GPU-a"], mig)
    assert {"CUDA_VISIBLE_DEVICES": "GPU-a"} == cuda_variables(["GPU-a"], [])
    assert "GPU-c" == devices(["GPU-c"], GPUS[:2])


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may use cores 0 to 7."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def test_the_least_used_cores_come_first():
    """Of equals the lower number."""
    assert (2, 0) == least_used([0, 1, 2, 3], 2, {0: 1, 1: 2, 3: 5})


@pytest.mark.usefixtures("allowed")
def test_near_cores_come_before_unused_ones():
    """A core that is near and used is taken before one that is far and not; far ones only fill up."""
    assert "4-5" == nearest_cores(2, [4, 5], {4: 3, 5: 3})
    assert "1,4-5" == nearest_cores(3, [4, 5], {0: 1})


@pytest.mark.usefixtures("allowed")
def test_more_cores_than_there_are_is_refused():
    """The sentence names how many there are."""
    with pytest.raises(TooManyCores, match="may use 8 CPU cores"):
        nearest_cores(9)

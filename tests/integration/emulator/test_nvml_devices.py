"""Device nodes, lost GPUs and MIG mode, as the emulated NVML tells them."""

from pathlib import Path

import pytest

from aliquot.cli.doctor import examine
from aliquot.driver import emulation
from aliquot.driver.discovery import DriverLibraries, NoDriver, find_gpus, gpu_topology
from aliquot.node.machine import real_machine

SAMPLES = """
import pathlib
from aliquot.arbiter.measure import _nvml_sampler
folder = pathlib.Path(os.environ["LD_LIBRARY_PATH"])
sample = _nvml_sampler(folder / "libnvidia-ml.so.1")
counts = [len(sample()[1])]
(folder / "faults").write_text("lost 1\\n")
counts += [len(sample()[1]), len(sample()[1])]
(folder / "faults").unlink()
answer([*counts, len(sample()[1])])
"""


def test_index_and_minor_number_may_differ(clients):
    """Eight A100 have their device nodes in another order than NVML has the GPUs; four V100 have not."""
    assert [2, 3, 0, 1, 6, 7, 4, 5] == [gpu.minor for gpu in find_gpus(clients("a100x8").machine.libnvml).gpus]
    assert [0, 1, 2, 3] == [gpu.minor for gpu in find_gpus(clients("v100x4").machine.libnvml).gpus]


def test_a_lost_gpu_takes_no_other_along(clients):
    """The others keep their indices and the links among them; the lost one is named with what it says."""
    machine = clients("v100x4").machine
    whole = gpu_topology(find_gpus(machine.libnvml).gpus)
    (machine.directory / "faults").write_text("lost 1\n")

    found = find_gpus(machine.libnvml)

    assert ["GPU 1: GPU is lost"] == found.silent
    assert [0, 2, 3] == [gpu.index for gpu in found.gpus]
    assert [[whole.links[i][j] for j in (0, 2, 3)] for i in (0, 2, 3)] == [gpu.links for gpu in found.gpus]


def test_a_gpu_in_mig_mode_is_told(clients):
    """MIG mode is read of each GPU."""
    assert [False, True] == [gpu.mig for gpu in find_gpus(clients("a100x2", "mig=1 1").machine.libnvml).gpus]


@pytest.mark.parametrize("missing", ["nvidia-uvm", "nvidia2"])
def test_an_agent_does_not_start_where_a_device_node_is_missing(clients, tmp_path: Path, missing: str):
    """The node is named, with the command that makes it."""
    machine = clients("a100x8").machine
    nodes = emulation.make_nodes(tmp_path, "a100x8")
    assert 8 == len(real_machine(machine.libcuda, machine.libnvml, nodes, tmp_path).gpus)
    (nodes / missing).unlink()

    with pytest.raises(NoDriver, match=f"{nodes / missing}: no such device node.*nvidia-modprobe -u -c=0"):
        real_machine(machine.libcuda, machine.libnvml, nodes, tmp_path)


def test_the_arbiter_goes_on_measuring_the_other_gpus(clients):
    """A lost GPU leaves the samples of the others, and has its own again when it answers."""
    assert [3, 2, 2, 3] == clients("v100x3").run(SAMPLES)


def test_the_doctor_names_gpus_that_are_not_shared(clients, monkeypatch: pytest.MonkeyPatch):
    """One that is lost is a fault of its own beside those that are well; one in MIG mode is noted."""
    machine = clients("a100x3", "mig=2 1").machine
    (machine.directory / "faults").write_text("lost 0\n")
    libraries = DriverLibraries(machine.libcuda, machine.libnvml)
    monkeypatch.setattr("aliquot.driver.discovery.find_driver", lambda: libraries)

    told = {(finding.what, finding.state): finding.found for finding in examine()}

    assert "does not answer: GPU is lost" == told["GPU 0", "fault"]
    assert ("GPU 1", "ok") in told
    assert "is in MIG mode, and is not shared" == told["GPU 2", "note"]

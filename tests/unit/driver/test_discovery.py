"""What is made of drivers with GPUs whose device nodes are numbered otherwise, or that do not answer."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from aliquot.driver.discovery import read_gpu
from aliquot.driver.gpu import Gpu


class NotSupported(Exception):
    """As pynvml's own error."""


def described(proc: Path, **answers: object) -> Gpu:
    """A GPU whose driver has only these answers besides those that every driver has."""

    def refuse(*_: object) -> None:
        raise NotSupported

    functions = {
        "nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId="00000000:07:00.0"),
        "nvmlDeviceGetUUID": lambda _: "GPU-1",
        "nvmlDeviceGetName": lambda _: "A100",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=40 << 30),
        "nvmlDeviceGetMinorNumber": refuse,
        "nvmlDeviceGetMigMode": refuse,
        "nvmlDeviceGetCudaComputeCapability": lambda _: (8, 0),
        "nvmlSystemGetCudaDriverVersion_v2": refuse,
        "NVML_DEVICE_MIG_ENABLE": 1,
        "NVMLError": NotSupported,
    }
    return read_gpu(SimpleNamespace(**functions | answers), "handle", index=0, driver="", proc=proc)


def test_the_device_node_is_numbered_by_the_drivers_minor_number(tmp_path: Path):
    """A GPU's device node has the minor number that NVML gives."""
    assert 2 == described(tmp_path, nvmlDeviceGetMinorNumber=lambda _: 2).minor


@pytest.mark.parametrize(
    ("text", "minor"),
    [("Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\n", 3), ("Model: A100\n", None), (None, None)],
)
def test_the_kernel_modules_files_stand_in_for_nvml(tmp_path: Path, text: str | None, minor: int | None):
    """Where NVML does not tell the minor number, the file of the GPU at that PCI address does."""
    if text is not None:
        (tmp_path / "0000:07:00.0").mkdir()
        (tmp_path / "0000:07:00.0" / "information").write_text(text)

    assert minor == described(tmp_path).minor


@pytest.mark.parametrize(("answer", "mig"), [([1, 1], True), ([0, 1], False), (None, False)])
def test_a_gpu_in_mig_mode_is_known(tmp_path: Path, answer: list[int] | None, mig: bool):
    """MIG mode is the current one, not the pending one; a GPU that knows no MIG is not in it."""
    answers = {} if answer is None else {"nvmlDeviceGetMigMode": lambda _: answer}

    assert mig == described(tmp_path, **answers).mig


def test_the_versions_of_a_gpu_are_those_that_its_driver_says(tmp_path: Path):
    """Compute capability and CUDA's version are texts, empty where the driver does not answer."""
    cuda = {"nvmlSystemGetCudaDriverVersion_v2": lambda: 12080}

    assert ("8.0", "") == (described(tmp_path).capability, described(tmp_path).cuda)
    assert "12.8" == described(tmp_path, **cuda).cuda

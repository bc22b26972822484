"""What is made of drivers with GPUs whose device nodes are numbered otherwise, or that do not answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aliquot.driver import discovery


class NotSupported(Exception):
    """As pynvml's own error."""


def nvml(**answers):
    """pynvml, of which only these functions work."""

    def refuse(*_):
        raise NotSupported

    functions = {"nvmlDeviceGetMinorNumber": refuse, "nvmlDeviceGetMigMode": refuse, "NVML_DEVICE_MIG_ENABLE": 1}
    return SimpleNamespace(**functions | answers, NVMLError=NotSupported)


def test_the_device_node_is_numbered_by_the_drivers_minor_number():
    """A GPU's device node has the minor number that NVML gives."""
    assert 2 == discovery._minor(nvml(nvmlDeviceGetMinorNumber=lambda _: 2), "handle", "00000000:07:00.0")


@pytest.mark.parametrize(
    ("text", "minor"),
    [("Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\n", 3), ("Model: A100\n", None), (None, None)],
)
def test_the_kernel_modules_files_stand_in_for_nvml(tmp_path, monkeypatch, text, minor):
    """Where NVML does not tell the minor number, the file of the GPU at that PCI address does."""
    monkeypatch.setattr(discovery, "PROC", tmp_path)
    if text is not None:
        (tmp_path / "0000:07:00.0").mkdir()
        (tmp_path / "0000:07:00.0" / "information").write_text(text)

    assert minor == discovery._minor(nvml(), "handle", "00000000:07:00.0")


@pytest.mark.parametrize(("answer", "mig"), [([1, 1], True), ([0, 1], False), (None, False)])
def test_a_gpu_in_mig_mode_is_known(answer, mig):
    """MIG mode is the current one, not the pending one; a GPU that knows no MIG is not in it."""
    answers = {} if answer is None else {"nvmlDeviceGetMigMode": lambda _: answer}

    assert mig == discovery._mig(nvml(**answers), "handle")

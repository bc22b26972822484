"""Examples that need no framework: numba, and a Jupyter kernel whose command begins with `aliquot run`."""

import json
import os
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpuruns import Room
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from waiting import eventually

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CELL = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
free, total, context = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
assert 0 == cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context)
assert 0 == cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(total.value >> 20)
"""
SLEEP = """
import pathlib, time
try:
    pathlib.Path({mark!r}).touch()
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.3)
    print("woken")
"""
SOON_S = 60


@pytest.fixture
def room() -> Iterator[Room]:
    """One emulated H100."""
    one = Room("h100")
    yield one
    one.close()


def test_a_kernel_of_numba_runs_under_a_share(room: Room):
    """The program sees its share's memory; on an emulated GPU none of its elements is right."""
    share = ("--gpu-request", ".3", "--gpu-mem", "1Gi")
    run = room.start(
        "substitute", [sys.executable, "-W", "ignore", EXAMPLES / "programs" / "numba_saxpy.py"], share=share
    )
    facts = run.facts(timeout_s=SOON_S)

    assert 1024 == facts["total_mib"]
    assert 0 < facts["used_mib"] <= 1024


def said(client: Any, message: str) -> str:
    """What a cell printed, once it has ended."""
    text, until_s = "", time.monotonic() + SOON_S
    while time.monotonic() < until_s:
        try:
            part = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if part["parent_header"].get("msg_id") != message:
            continue
        if part["msg_type"] == "stream":
            text += part["content"]["text"]
        elif part["msg_type"] == "error":
            pytest.fail("\n".join(part["content"]["traceback"]))
        elif part["msg_type"] == "status" and part["content"]["execution_state"] == "idle":
            return text
    pytest.fail("the cell did not end")


def test_a_jupyter_kernel_has_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The kernelspec of the examples starts a kernel whose cells see 4 GiB; it is interrupted once, and ends."""
    spec = json.loads((EXAMPLES / "jupyter" / "kernel.json").read_text())
    at = spec["argv"].index("run") + 1
    spec["argv"] = [sys.executable, "-m", "aliquot.cli", "run", "--emulate", "h100", *spec["argv"][at:]]
    spec["argv"][spec["argv"].index("python3")] = sys.executable
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "kernel.json").write_text(json.dumps(spec))
    runtime = Room("h100")  # for its short folder
    monkeypatch.setenv("ALIQUOT_RUNTIME_DIR", str(runtime.runtime))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    manager = KernelManager(kernel_name="share", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(tmp_path)]))
    try:
        manager.start_kernel(env=dict(os.environ))
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=SOON_S)
        assert "4096\n" == said(client, client.execute(CELL))
        # A file, for ipykernel may lose an interrupt that comes while a cell prints.
        mark = tmp_path / "sleeps"
        sleeping = client.execute(SLEEP.format(mark=str(mark)))
        eventually(mark.exists, "the cell that sleeps", timeout_s=SOON_S)
        manager.interrupt_kernel()
        assert "woken\n" == said(client, sleeping)
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=False)
        runtime.close()
    assert not manager.is_alive()

"""What the display tells of a container is what its program did, asked of the real arbiter."""

from __future__ import annotations

import os
import subprocess
import sys

from conftest import Room
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from aliquot.node.telling.server import application
from aliquot.node.telling.wiring import sources_of

PROGRAM = """
import ctypes
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
assert 0 == cuda.cuInit(0)
assert 0 == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert 0 == cuda.cuCtxSetCurrent(context)
ptx = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry spin_ns(.param .u64 ns) { ret; }\\0"
module, function, time_ns = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(200_000_000)
assert 0 == cuda.cuModuleLoadData(ctypes.byref(module), ptx)
assert 0 == cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin_ns")
assert 2 == cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30))
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(time_ns))
assert 0 == cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
assert 0 == cuda.cuCtxSynchronize()
"""


def told(client: TestClient, name: str) -> float:
    """The one value of a metric on the first GPU."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    (value,) = [s.value for f in families for s in f.samples if s.name == name and s.labels.get("gpu", "0") == "0"]
    return value


def test_what_a_program_did_is_told_under_its_containers_name(room: Room):
    """Charged time, grants and the allocation that was refused; the graph and the JSON name the container."""
    client = TestClient(application(sources_of(room.seating, room.folder)))
    assert 0 == told(client, "aliquot_container_gpu_oom_total")

    env = os.environ | {"LD_LIBRARY_PATH": str(room.library.parent)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=env, check=True, timeout=60)

    assert 1 == told(client, "aliquot_container_gpu_oom_total")
    assert told(client, "aliquot_container_gpu_charged_seconds_total") >= 0.2
    assert told(client, "aliquot_container_gpu_handovers_total") >= 1
    assert 256 << 20 == told(client, "aliquot_container_gpu_memory_limit_bytes")
    assert "team/train/main  0.30 used" in client.get("/graph").text
    assert {"uid-a": {"main": [0]}} == client.get("/node.json").json()["pods"]


def test_a_dead_arbiter_is_told_by_every_page(room: Room):
    """The pages answer, and say that the arbiter does not."""
    client = TestClient(application(sources_of(room.seating, room.folder)))
    room.kill_arbiter()

    assert 0 == told(client, "aliquot_node_arbiter_up")
    assert "The arbiter does not answer" in client.get("/graph").text
    assert client.get("/node.json").json()["arbiter_answers"] is False

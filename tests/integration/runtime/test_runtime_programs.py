"""Unmodified programs on the CUDA runtime library, alone on the emulated driver and as tenants under the hook."""

import os
import sys
from importlib.metadata import files
from pathlib import Path

import pytest
from gpuruns import WAYS, Room

PROGRAMS = Path(__file__).with_name("programs")
SHARE = ("--gpu-request", ".3", "--gpu-limit", ".6", "--gpu-mem", "4Gi")
H100_MIB = 81559
BLOCK_MIB = 256
MAX_OVERHEAD_MIB = 600  # of a context and of what is loaded into it


def check(facts: dict, way: str, launches: int, moves: int = 0) -> None:
    """What every program sees: the memory of its own, all of it, and a driver that was given every launch.

    `moves` are fills and copies within the GPU, which are gated as launches are.
    """
    total = H100_MIB if way == "alone" else 4096

    assert (1, total, 1) == (facts["devices"], facts["total_mib"], facts["same"])
    assert "cudaErrorMemoryAllocation" == facts["refused"]
    assert total - MAX_OVERHEAD_MIB - BLOCK_MIB < facts["blocks"] * BLOCK_MIB <= total
    assert (launches, None if way == "alone" else launches + moves) == (facts["emulator"], facts["gate"])


def libcudart(package: str) -> Path:
    """The library of an installed wheel."""
    return next(Path(f.locate()) for f in files(package) or () if f.name.startswith("libcudart.so."))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cudart", ["static", "shared"])
def test_a_program_of_nvcc(room: Room, compiled, cudart, way):
    """A program that nvcc compiled runs each part of the runtime interface, with the library inside it or beside it."""
    facts = room.start(way, [compiled("everything", cudart)], share=SHARE).facts()

    check(facts, way, launches=10 + 3 + 1, moves=3)
    assert facts["property_mib"] == facts["total_mib"]


@pytest.mark.parametrize("way", WAYS)
def test_the_runtime_of_cuda_bindings(room: Room, way):
    """cuda-bindings' runtime and NVRTC compile, launch, fill the memory and reset the device."""
    pytest.importorskip("cuda.bindings.nvrtc")
    facts = room.start(way, [sys.executable, PROGRAMS / "bindings.py"], share=SHARE).facts()

    check(facts, way, launches=11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("package", ["nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"])
def test_the_runtime_library_itself(room: Room, package, way):
    """libcudart of CUDA 12 and of CUDA 13 start, and all kinds of memory, events, capture and reset work."""
    program = [sys.executable, PROGRAMS / "cudart.py", libcudart(package)]
    facts = room.start(way, program, share=SHARE).facts()

    check(facts, way, launches=11 + 1)
    assert 1 == facts["timed"]


def test_a_value_kept_in_a_context_is_ended_with_it(room: Room):
    """Context-local storage answers with what was put, says when nothing was, and calls the end function once."""
    code = """
import ctypes, json, uuid
cuda = ctypes.CDLL("libcuda.so.1")
table, context = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
found = cuda.cuGetExportTable(ctypes.byref(table), uuid.UUID("c693336e-1121-df11-a8c3-68f355d89593").bytes)
end_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
word = ctypes.c_void_p
put = ctypes.CFUNCTYPE(ctypes.c_int, word, word, word, end_type)(table[0])
drop = ctypes.CFUNCTYPE(ctypes.c_int, word, word)(table[1])
get = ctypes.CFUNCTYPE(ctypes.c_int, word, word, word)(table[2])
ended, value = [], word()
end = end_type(lambda context, key, value: ended.append([key, value]))
absent = get(ctypes.addressof(value), context, 1)
put(context, 1, 11, end); put(context, 1, 12, end); put(context, 2, 21, end); drop(context, 2)
kept = get(ctypes.addressof(value), context, 1), value.value
cuda.cuDevicePrimaryCtxRelease_v2(0)
print(json.dumps({"found": found, "absent": absent, "kept": kept, "ended": ended, "last": table[3]}))
"""
    facts = room.start("alone", [sys.executable, "-c", code]).facts()

    assert {"found": 0, "absent": 400, "kept": [0, 12], "ended": [[1, 12]], "last": None} == facts


def test_the_handle_of_the_primary_context_takes_no_memory(room: Room):
    """The runtime's question for a primary context's handle neither makes the context nor keeps it."""
    code = """
import ctypes, json, uuid
cuda = ctypes.CDLL("libcuda.so.1")
table, handle, context = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p(), ctypes.c_void_p()
active, flags = ctypes.c_int(), ctypes.c_uint()
cuda.cuInit(0)
cuda.cuGetExportTable(ctypes.byref(table), uuid.UUID("6bd5fb6c-5bf4-e74a-8987-d93912fd9df9").bytes)
ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(table[2])
asked = ask(ctypes.addressof(handle), 0)
states = []
def look():
    cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)); states.append(active.value)
look(); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); look(); cuda.cuDevicePrimaryCtxRelease_v2(0); look()
same, bad = handle.value == context.value, ask(ctypes.addressof(handle), 9)
print(json.dumps({"asked": asked, "same": same, "states": states, "bad": bad}))
"""
    facts = room.start("alone", [sys.executable, "-c", code]).facts()

    assert {"asked": 0, "same": True, "states": [0, 1, 0], "bad": 101} == facts


@pytest.fixture(autouse=True)
def _programs_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(PROGRAMS), os.environ.get("PYTHONPATH")])))

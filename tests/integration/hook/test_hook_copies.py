"""Copies, fills and what else goes into a stream: what stays within the GPU's memory is gated, the rest is not."""

import re
import tomllib
from pathlib import Path

import pytest

from aliquot.arbiter.abi import MessageType

SYMBOLS = Path(__file__).resolve().parents[3] / "native" / "symbols"
MOVES = re.compile(r"cu(Launch|GraphLaunch|GraphUpload|Memcpy|Memset|Mem\w*(Decompress|Prefetch|Discard))")

SCENE = """
import ctypes as c
cuda = Cuda(); L = cuda.lib; N = 8 << 20; size, u64, u32 = c.c_size_t, c.c_uint64, c.c_uint
p, q, m, h, s = u64(), u64(), u64(), c.c_void_p(), c.c_void_p()
for at in (p, q): assert L.cuMemAlloc_v2(c.byref(at), size(N)) == 0
assert L.cuMemAllocManaged(c.byref(m), size(N), 1) == 0
assert L.cuMemHostAlloc(c.byref(h), size(N), 0) == 0
L.cuStreamCreate(c.byref(s), 1)
HOST, DEVICE, UNIFIED = 1, 2, 4
def box(src, src_type, dst, dst_type):
    end = lambda at, kind: [0, 0, kind, at.value if kind == HOST else 0, 0 if kind == HOST else at.value, 0, 4096]
    return (u64 * 16)(*end(src, src_type), *end(dst, dst_type), 4096, 2048)
def box3(src, src_context, dst, dst_context):
    end = lambda at, of: [0, 0, 0, 0, DEVICE, 0, at.value, 0, of.value, 4096, 2048]
    return (u64 * 25)(*end(src, src_context), *end(dst, dst_context), 4096, 2048, 1)
class Location(c.Structure): _fields_ = [("type", c.c_int), ("id", c.c_int)]
done = c.CFUNCTYPE(None, c.c_void_p)(lambda _: None)
def one(*values): return [(u64 * 1)(v.value if hasattr(v, "value") else v) for v in values]
"""
GATED = {
    "fill": "L.cuMemsetD8_v2(p, 1, size(N))",
    "fill-thread": "L.cuMemsetD32_v2_ptds(p, 1, size(N >> 2))",
    "fill-async": "L.cuMemsetD32Async(p, 1, size(N >> 2), s)",
    "fill-2d": "L.cuMemsetD2D16Async(p, size(4096), 1, size(2048), size(2048), s)",
    "device-to-device": "L.cuMemcpyDtoD_v2(q, p, size(N))",
    "device-to-device-async": "L.cuMemcpyDtoDAsync_v2(q, p, size(N), s)",
    "unified": "L.cuMemcpy(q, p, size(N))",
    "unified-async": "L.cuMemcpyAsync(q, p, size(N), s)",
    "batch": "L.cuMemcpyBatchAsync_v2(*one(q, p, N), size(1), None, None, size(0), s)",
    "peer": "L.cuMemcpyPeer(q, cuda.ctx, p, cuda.ctx, size(N))",
    "peer-async": "L.cuMemcpyPeerAsync(q, cuda.ctx, p, cuda.ctx, size(N), s)",
    "peer-3d": "L.cuMemcpy3DPeerAsync(box3(p, cuda.ctx, q, cuda.ctx), s)",
    "2d": "L.cuMemcpy2DAsync_v2(box(p, DEVICE, q, DEVICE), s)",
    "2d-unified": "L.cuMemcpy2DAsync_v2(box(p, UNIFIED, q, UNIFIED), s)",
}
FREE = {
    "to-device": "L.cuMemcpyHtoD_v2(p, h, size(N))",
    "to-device-async": "L.cuMemcpyHtoDAsync_v2(p, h, size(N), s)",
    "to-host-async": "L.cuMemcpyDtoHAsync_v2(h, p, size(N), s)",
    "unified-to-host": "L.cuMemcpyAsync(u64(h.value), p, size(N), s)",
    "unified-from-host": "L.cuMemcpyAsync(p, u64(h.value), size(N), s)",
    "small": "L.cuMemcpyAsync(q, p, size(4096), s)",
    "batch-from-host": "L.cuMemcpyBatchAsync_v2(*one(p, h, N), size(1), None, None, size(0), s)",
    "2d-from-host": "L.cuMemcpy2DAsync_v2(box(h, HOST, p, DEVICE), s)",
    "host-function": "L.cuLaunchHostFunc(s, done, None)",
    "write-value": "L.cuStreamWriteValue32_v2(s, p, 1, 0)",
    "wait-value": "L.cuStreamWriteValue32_v2(s, p, 1, 0) or L.cuStreamWaitValue32_v2(s, p, 1, 1)",
    "prefetch": "L.cuMemPrefetchAsync(m, size(N), 0, s)",
}


@pytest.mark.parametrize("call", GATED.values(), ids=GATED)
def test_what_moves_a_gpus_memory_within_it_waits_for_the_token(tenant, call):
    """A fill, and a copy from a GPU's memory to its memory, waits for the token by whatever call, and is a launch."""
    scene = tenant(memory_mib=2048)
    program = scene.run(SCENE + f"result = {call}\nsay(result=result, launches=cuda.stats()['launches'])")
    scene.arbiter.wait_for(MessageType.WANT, timeout_s=30)
    scene.arbiter.grant()

    assert {"result": 0, "launches": 1} == program.read()


@pytest.mark.parametrize("call", FREE.values(), ids=FREE)
def test_what_leaves_the_gpus_memory_to_its_holder_goes_without_a_token(tenant, call):
    """Copies from and to the host, host functions, words that a stream writes or waits for: no token is asked for."""
    scene = tenant(memory_mib=2048)
    program = scene.run(SCENE + f"result = {call}\nsay(result=result, synced=L.cuStreamSynchronize(s))")

    assert {"result": 0, "synced": 0} == program.read()
    assert 0 == scene.arbiter.count(MessageType.WANT)


@pytest.mark.parametrize("mode", [0, 2], ids=["global", "relaxed"])
def test_a_fill_that_is_captured_is_not_gated(tenant, mode):
    """Fills and copies into a capturing stream become nodes of its graph, whose launch is gated."""
    scene = tenant(memory_mib=2048)
    program = scene.run(
        SCENE + f"g = c.c_void_p(); begun = L.cuStreamBeginCapture_v2(s, {mode})\n"
        "made = [L.cuMemsetD32Async(p, 1, size(N >> 2), s), L.cuMemcpyAsync(q, p, size(N), s)]\n"
        "say(begun=begun, made=made, ended=L.cuStreamEndCapture(s, c.byref(g)))"
    )

    assert {"begun": 0, "made": [0, 0], "ended": 0} == program.read()
    assert 0 == scene.arbiter.count(MessageType.WANT)


def test_every_function_that_moves_memory_or_launches_is_gated_or_has_its_reason():
    """A function of the driver that by its name launches, copies or fills is intercepted, or `ungated` says why not."""
    hooks = tomllib.loads((SYMBOLS / "hooks.toml").read_text())
    reasons = tuple(hooks["ungated"])
    names = {re.sub(r"_pt[ds][sz]$", "", row.split("\t")[3]) for row in (SYMBOLS / "cuda.tsv").read_text().splitlines()}
    moves = {name for name in names if MOVES.match(name)}

    assert set() == {name for name in moves if name not in hooks and not name.startswith(reasons)}
    assert [] == [reason for reason in reasons if not any(name.startswith(reason) for name in moves)]

"""Graphs: what is captured is neither gated nor disturbed, what is launched is gated."""

import time
import tomllib
from pathlib import Path

import pytest

from aliquot.arbiter.abi import MessageType

CAPTURE = """
cuda = Cuda(); L = cuda.lib; spin = cuda.spin(); stream = ctypes.c_void_p(); L.cuStreamCreate(ctypes.byref(stream), 1)
graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
begun = L.cuStreamBeginCapture_v2(stream, 0)
if begun == 801:
    say(begun=801); sys.exit(0)
launched = cuda.launch(spin, 20_000_000, stream)
during = cuda.stats()
ended = L.cuStreamEndCapture(stream, ctypes.byref(graph))
made = L.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_uint64(0))
say(begun=begun, launched=launched, ended=ended, made=made, captures=during["captures"], launches=during["launches"])
t = time.monotonic_ns(); r = L.cuGraphLaunch(executable, stream); say(r=r, waited_ns=time.monotonic_ns() - t)
wait_line()
"""


@pytest.mark.parametrize("mode", ["library-path", "preload"])
def test_captures_are_free_and_graph_launches_gated(tenant, mode):
    """A launch into a capturing stream goes without a token; the graph's launch waits for one."""
    scene = tenant()
    program = scene.run(CAPTURE, mode=mode)
    facts = program.read()
    if facts["begun"] == 801:
        pytest.skip("the emulated driver has no capture")
    assert facts == {"begun": 0, "launched": 0, "ended": 0, "made": 0, "captures": 1, "launches": 0}
    scene.arbiter.wait_for(MessageType.WANT)
    time.sleep(0.1)
    epoch = scene.arbiter.grant()

    launch = program.read()

    assert launch["r"] == 0
    assert launch["waited_ns"] > 90_000_000
    assert scene.arbiter.wait_for(MessageType.RETURN).a == epoch


def test_every_way_to_begin_a_capture_is_counted():
    """Each function that begins or ends a capture in any version of the driver has a hook that counts."""
    symbols = Path(__file__).parents[3] / "native" / "symbols"
    exported = {line.split("\t")[3] for line in (symbols / "cuda.tsv").read_text().splitlines()[1:] if "\t" in line}
    hooks = tomllib.loads((symbols / "hooks.toml").read_text())
    ways = {name for name in exported if name.startswith(("cuStreamBegin", "cuStreamEnd")) and "apture" in name}

    assert {name.removesuffix("_ptsz") for name in ways} == {name for name in hooks if name in ways}

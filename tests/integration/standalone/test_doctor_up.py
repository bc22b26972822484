"""`aliquot doctor` beside a running engine: who uses a shared GPU without a share is named."""

import subprocess
import sys
from pathlib import Path

from waiting import eventually

from .stage import Aliquot, first_line, serving

CONTEXT = """
import ctypes, sys
cuda, context, count = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for device in range(count.value):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
print("computes", flush=True)
sys.stdin.readline()
"""


def doctor(command: Aliquot) -> dict[str, str]:
    """What -> what was found."""
    told = command.facts("doctor")
    return {finding["what"]: finding["found"] for finding in told["findings"]}


def test_a_program_without_a_share_is_named_and_one_with_is_not(engine: Aliquot, tmp_path: Path):
    """By its process, as soon as NVML was asked."""
    program = tmp_path / "context.py"
    program.write_text(CONTEXT)
    words = ("run", "--gpu-request", ".3", "--gpu-mem", "2Gi", "--", sys.executable, str(program), "libcuda.so.1")
    driver = str(engine.runtime / "emulated" / "libcuda.so.1")
    with (
        engine.start(*words, stdin=subprocess.PIPE) as shares,
        subprocess.Popen(
            [sys.executable, program, driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as strays,
    ):
        assert ["computes\n", "computes\n"] == [first_line(one) for one in (shares, strays)]
        eventually(lambda: "unregistered" in doctor(engine), "the stray is named")
        found = doctor(engine)["unregistered"]
        shares.communicate("\n")
        strays.communicate("\n")

    assert f"processes on shared GPUs that have no share: {strays.pid}" == found


def test_a_history_that_was_put_aside_is_named(aliquot_cli: Aliquot):
    """The doctor says where a damaged history lies, with an engine that found it so and without any."""
    state = aliquot_cli.runtime / "state"
    state.mkdir(parents=True)
    (state / "history-emulated.db").write_bytes(b"no database at all" * 1000)
    before = doctor(aliquot_cli)
    with serving(aliquot_cli, "v100", "--port", "0") as engine:
        page = engine.get("api/v1/hours")["note"]
        beside = doctor(aliquot_cli)["history"]

    assert "history" not in before
    assert beside == page
    assert beside.endswith(f"was damaged and is kept as {state}/history-emulated.db.damaged")
    assert beside == doctor(aliquot_cli)["history"]

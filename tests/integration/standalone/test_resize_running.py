"""`aliquot resize`, and `aliquot apply` of another size: a share changes while its program runs."""

import json
import sys
from pathlib import Path

import pytest
from waiting import eventually

from .stage import Cluster, end, sharepod

HOLDER = """
import ctypes, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
L = ctypes.CDLL("libcuda.so.1"); L.cuInit(0); c = ctypes.c_void_p(); p = ctypes.c_uint64()
assert L.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == L.cuCtxSetCurrent(c) == 0
assert L.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(2 << 30)) == 0
mark = pathlib.Path(sys.argv[1]); mark.write_text("held")
while mark.read_text() != "free": time.sleep(0.02)
assert L.cuMemFree_v2(p) == 0
time.sleep(600)
"""


def size(pod: dict) -> tuple[int, int, int, int]:
    """Request, limit, memory, and what is yet to be freed."""
    return pod["request_milli"], pod["limit_milli"], pod["memory_mib"], pod.get("pending_mib", 0)


def test_a_sharepod_is_resized_while_it_runs(up: Cluster):
    """Its program goes on with the new share; what was not named stays, and `get -o yaml` has what is in force."""
    up.apply(sharepod("a", "sleep 60", limit=0.6, memory="2Gi"))
    before = up.wait_phase("a", "Running")
    done = up.command("resize", "a", "--gpu-request", ".5", "--gpu-mem", "3Gi")
    after = up.pod("a")

    assert "sharepod/a resized: request 0.20 -> 0.50, limit 0.60 -> 0.60, memory 2.0 GiB -> 3.0 GiB\n" == done.stdout
    assert (500, 600, 3072, 0) == size(after)
    assert before["containers"][0]["pid"] == after["containers"][0]["pid"]
    assert "resized: request 0.2 -> 0.50" in after["events"][-1]
    assert "3072Mi" == after["manifest"]["spec"]["gpu"]["memory"]


def test_apply_of_another_size_resizes_in_place(up: Cluster):
    """A SharePod in which only request, limit and memory have changed is configured; any other change is refused."""
    up.apply(sharepod("a", "sleep 60", limit=0.6, memory="2Gi"))
    before = up.wait_phase("a", "Running")
    done = up.apply(sharepod("a", "sleep 60", request=0.4, memory="1Gi"))
    after = up.pod("a")

    assert "sharepod/a configured\n" == done.stdout
    assert (400, 1000, 1024, 0) == size(after)
    assert before["containers"][0]["pid"] == after["containers"][0]["pid"]
    refused = up.apply(sharepod("a", "sleep 61", request=0.3, memory="1Gi"))
    assert (2, "") == (refused.returncode, refused.stdout)
    assert size(up.pod("a")) == size(after)


def test_growth_without_room_is_refused_with_what_would_fit(up: Cluster):
    """What a neighbour holds is not given away; the sentence has the reason and the nearest size."""
    up.apply(sharepod("a", "sleep 60", gpuID="one") + "\n---\n" + sharepod("b", "sleep 60", request=0.6, gpuID="one"))
    up.wait_phase("b", "Running")
    dry = up.command("resize", "a", "--gpu-request", ".4", "--dry-run", "-o", "json")
    refused = up.command("resize", "a", "--gpu-request", ".5")
    applied = up.apply(sharepod("a", "sleep 60", request=0.5, gpuID="one"))

    assert 0 == dry.returncode
    assert 400 == json.loads(dry.stdout)["after"]["request_milli"]
    assert (1, 1) == (refused.returncode, applied.returncode)
    assert "Nearest: ask 0.10 GPU less" in refused.stderr
    assert "Nearest: ask 0.10 GPU less" in applied.stderr
    assert 200 == up.pod("a")["request_milli"]


def test_reduced_memory_is_reserved_until_it_is_freed(up: Cluster, tmp_path: Path):
    """After a shrink a program keeps what it holds, and a newcomer that needs it waits until it is freed."""
    mark = tmp_path / "mark"
    script = f"exec {sys.executable} -c '{HOLDER}' {mark}"
    up.apply(sharepod("a", script, memory="15Gi", gpuID="one"))
    eventually(lambda: mark.exists() and mark.read_text() == "held", "it holds memory", 30)
    done = up.command("resize", "a", "--gpu-mem", "1Gi", "-o", "json")
    held = json.loads(done.stdout)["pending_mib"]
    up.apply(sharepod("b", "sleep 60", memory="14Gi", gpuID="one"))

    assert 1024 < held < 3 * 1024
    assert ("Pending", "Running") == (up.pod("b")["phase"], up.pod("a")["phase"])
    assert "to free)" in up.command("get", "pods").stdout
    assert "has yet to free" in up.command("top", "--once").stdout
    mark.write_text("free")
    up.wait_phase("b", "Running")
    assert (200, 1000, 1024, 0) == size(up.pod("a"))


def test_a_run_is_resized_by_its_name_and_gives_all_back(up: Cluster):
    """A run has the new share until it ends, and then its place is free."""
    run = up.command.start("run", "--name", "r", "--gpu-request", ".2", "--gpu-mem", "2Gi", "--", "sleep", "600")
    eventually(lambda: '"r"' in up.command("get", "tenants", "-o", "json").stdout, "the run has its place")
    done = up.command("resize", "r", "--gpu-request", ".7", "--gpu-limit", ".8")
    (tenant,) = up.command.facts("get", "tenants")

    assert "run/r resized: request 0.20 -> 0.70, limit 1.00 -> 0.80, memory 2.0 GiB -> 2.0 GiB\n" == done.stdout
    assert (700, 800) == (tenant["slices"][0]["request_milli"], tenant["slices"][0]["limit_milli"])
    end(run)
    eventually(lambda: up.command.facts("get", "tenants") == [], "its place is free")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody", "--gpu-request", ".5"], 'there is no sharepod or run "nobody"'),
        (["a"], "resize needs a new size"),
        (["a", "--gpu-limit", ".1"], "--gpu-limit 0.10 is below --gpu-request 0.20"),
        (["a", "--gpu-request", "1"], "below 1"),
        (
            ["a", "--gpu-request", "2"],
            "--gpu-request 2.00 is not below 1: a resize changes a part of one GPU, 0.001 to",
        ),
        (["a", "--gpu-request", "0"], "asks for nothing"),
        (["a", "--gpu-mem", "1"], "less than one CUDA context needs"),
        (["a", "--gpu-mem", "900Gi"], "ask for less"),
    ],
)
def test_a_wrong_size_is_refused_in_a_sentence(up: Cluster, words, said):
    """A name that is not there, or a size that cannot be, ends with status 2 and says what is allowed."""
    up.apply(sharepod("a", "sleep 60", memory="2Gi"))
    up.wait_phase("a", "Running")
    refused = up.command("resize", *words)

    assert (2, "") == (refused.returncode, refused.stdout)
    assert said in refused.stderr
    assert 1 == len(refused.stderr.splitlines())
    assert 200 == up.pod("a")["request_milli"]

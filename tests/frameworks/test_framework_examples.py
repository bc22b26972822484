"""The example programs for PyTorch and JAX, as a person runs them: under a share of an emulated GPU."""

import json
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE
from environments import python
from gpuruns import Room, Run

PROGRAMS = HERE.parents[1] / "examples" / "programs"
START_S = 300  # a busy machine takes that long to import PyTorch
JAX = str(PROGRAMS / "jax_train.py")
# It looks for a device's file before it asks the driver, and an emulated GPU has none; see docs/compatibility.md.
DEVICE_FILE = "from jax._src import hardware_utils; hardware_utils._NVIDIA_GPU_DEVICES = ['/dev/null']"
CONTEXT_MIB = 600
"""A context of an H100 and the libraries that PyTorch loads into it."""


def start(room: Room, program: str, *words: object, memory: str = "4Gi") -> Run:
    """An example as a tenant with three tenths of the GPU."""
    share = ("--gpu-request", ".3", "--gpu-mem", memory)
    return room.start("substitute", [python("cuda13"), PROGRAMS / program, *map(str, words)], share=share)


def lines(run: Run) -> list[Any]:
    """What it printed as JSON; it has ended with status 0."""
    out, _ = run.process.communicate(timeout=START_S)
    assert 0 == run.process.returncode, f"{out[-2000:]}{run.errors[-4000:]}"
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


@pytest.mark.timeout(900)
def test_training_continues_from_its_checkpoint(room: Room, tmp_path: Path):
    """A second run goes on with the epoch after the checkpoint's; both see their share's memory as the GPU's."""
    checkpoint = tmp_path / "model.pt"
    small = ("--samples", 512, "--checkpoint", checkpoint)
    (first,) = lines(start(room, "torch_train.py", "--epochs", 1, *small))
    (second,) = lines(start(room, "torch_train.py", "--epochs", 3, *small))

    assert [(0, 4), (1, 8)] == [(facts["first_epoch"], facts["steps"]) for facts in (first, second)]
    assert [4096, 4096] == [facts["total_mib"] for facts in (first, second)]
    assert checkpoint.stat().st_size > 500_000


def ask(url: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(url, body, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.timeout(900)
def test_an_inference_server_answers_in_batches_and_prints_latencies(room: Room):
    """Requests at the same time share batches, each is answered, and the last line has the latencies."""
    run = start(room, "torch_serve.py", "--port", 0, "--report", 16, memory="2Gi")
    assert run.process.stdout is not None
    url = run.process.stdout.readline().split()[-1]
    assert url.startswith("http://127.0.0.1:"), run.errors
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: ask(f"{url}/predict", b"[0.5, 1]"), range(64)))
    stats = ask(f"{url}/stats")
    run.process.send_signal(signal.SIGTERM)
    *reports, last = lines(run)

    assert [8] * 64 == [len(answer) for answer in answers]
    assert stats == last
    assert 64 == last["requests"]
    assert last["batches"] < 64
    assert 0 < last["p50_ms"] <= last["p99_ms"]
    assert [16, 32, 48, 64] == [report["requests"] for report in reports]


@pytest.mark.timeout(900)
def test_a_server_with_paged_memory_takes_its_part_of_the_share_and_no_more(room: Room):
    """Its total is the share, its pool fills the part that it was told to take, and every block comes back."""
    ready, done = lines(start(room, "llm_serve.py", "--gpu-memory-utilization", 0.85, "--requests", 12))

    assert (4096, int(0.85 * 4096)) == (ready["total_mib"], ready["wanted_mib"])
    assert ready["wanted_mib"] - 100 <= ready["used_mib"] <= ready["wanted_mib"]
    assert (12, ready["blocks"]) == (done["answered"], done["free_blocks"])


@pytest.mark.timeout(900)
def test_a_server_with_few_blocks_preempts_and_answers_all_the_same(room: Room):
    """Where the pool is full, the youngest request gives up its blocks and is answered later."""
    few = ("--gpu-memory-utilization", 0.85, "--num-gpu-blocks-override", 12, "--max-model-len", 128, "--requests", 8)
    _, done = lines(start(room, "llm_serve.py", *few))

    assert (8, 12) == (done["answered"], done["free_blocks"])
    assert done["preempted"] > 0
    assert done["blocks_at_most"] <= 12


@pytest.mark.timeout(900)
def test_two_such_servers_share_a_gpu_with_the_same_setting(room: Room):
    """Each takes its part of its own share, so neither has to be told of the other."""
    both = [start(room, "llm_serve.py", "--gpu-memory-utilization", 0.85, "--requests", 4) for _ in range(2)]
    facts = [lines(run)[0] for run in both]

    assert [4096, 4096] == [each["total_mib"] for each in facts]
    assert all(each["used_mib"] <= each["wanted_mib"] for each in facts)


@pytest.mark.timeout(900)
def test_a_server_that_is_told_to_take_more_than_is_free_says_so(room: Room):
    """With 0.92 of 4 GiB, of which the context has taken an eighth, the error names the option and both amounts."""
    run = start(room, "llm_serve.py")
    run.process.communicate(timeout=START_S)

    assert 1 == run.process.returncode
    assert "fewer than --gpu-memory-utilization 0.92 takes (3768 MiB)" in run.errors


@pytest.mark.timeout(900)
def test_jax_takes_its_three_quarters_of_the_share(room: Room):
    """JAX allocates three quarters of the memory that it sees, which is the share's, and trains."""
    program = f"import runpy, sys; sys.argv = ['', '--steps', '5']; runpy.run_path({JAX!r}, run_name='__main__')"
    code = f"{DEVICE_FILE}; {program}"
    (facts,) = lines(
        room.start("substitute", [python("jax"), "-c", code], share=("--gpu-request", ".3", "--gpu-mem", "4Gi"))
    )

    assert 5 == facts["steps"]
    assert 0.7 * 4096 - CONTEXT_MIB <= facts["may_take_mib"] <= 0.75 * 4096

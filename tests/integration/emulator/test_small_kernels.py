"""Kernels of microseconds are limited by the GPU's time, not by the emulator."""

import os

import pytest


@pytest.mark.real_time
def test_two_processes_with_small_kernels_use_all_of_the_gpu(clients, built):
    """Two processes that launch kernels of 5 us back to back get nearly all of the time, half of it each."""
    machine = clients("a100")
    pair = [machine.launch(built("emulator/back_to_back.c"), "5000", "2") for _ in range(2)]
    for each in pair:
        each.stdout.readline()
    for each in pair:
        each.stdin.write("go\n")
        each.stdin.flush()
    shares = [float(each.communicate(timeout=30)[0]) for each in pair]

    assert 0.9 <= sum(shares) <= 1.03
    assert abs(shares[0] / sum(shares) - 0.5) < 0.05


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("launch_ns", "k.launch(0)"),
        ("event_ns", "ck(d.cuEventRecord(e, k.stream))"),
        ("query_ns", "d.cuEventQuery(e)"),
        ("query_ns", "d.cuStreamQuery(k.stream)"),
    ],
)
def test_calls_cost_what_the_configuration_says(clients, key, call):
    """`launch_ns`, `event_ns` and `query_ns` pass before the call returns."""
    code = f"""
open_gpu(); k = Spinner(); e = ck(d.cuEventCreate(2)); k.launch(0); k.sync()
t = time.monotonic()
for _ in range(20): {call}
answer((time.monotonic() - t) / 20 * 1e9)
"""

    assert clients("a100", f"{key}=2000000").run(code) >= 2_000_000


def test_an_event_between_two_kernels_costs_the_stream_time(clients):
    """`event_gpu_ns` passes between an event's mark and the kernel behind it."""
    code = """
open_gpu(); k = Spinner(); first, last = ck(d.cuEventCreate(0)), ck(d.cuEventCreate(0)); k.launch(30_000_000)
ck(d.cuEventRecord(first, k.stream)); k.launch(1_000_000); ck(d.cuEventRecord(last, k.stream)); k.sync()
answer(ck(d.cuEventElapsedTime(first, last)))
"""

    assert clients("a100", "event_gpu_ns=5000000").run(code) > 5.9


@pytest.mark.real_time
def test_the_thread_of_a_gpu_is_woken_when_it_can_run(clients):
    """On one CPU a kernel that is waited for costs the GPU's thread three sleeps: none ends at a lock that is held."""
    scheduler, sleeps = clients("a100").run("""
from pathlib import Path
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); open_gpu(); k = Spinner(); k.launch(0); k.sync()
gpu, = [t for t in Path("/proc/self/task").iterdir() if (t / "comm").read_text() == "emulated-gpu\\n"]
def sleeps(): return int((gpu / "status").read_text().split("\\nvoluntary_ctxt_switches:")[1].split()[0])
before = sleeps()
for _ in range(500): k.launch(200_000); k.sync()
answer([os.sched_getscheduler(int(gpu.name)) & 0xff, (sleeps() - before) / 500])
""")

    if scheduler != os.SCHED_RR:
        pytest.skip("threads may not run ahead of others here")
    assert sleeps < 3.5

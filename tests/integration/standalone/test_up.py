"""`aliquot up` and the SharePods on it."""

import json
import sys
from pathlib import Path

import pytest
from spawning import engine_of, spawn
from waiting import eventually

from aliquot.model.errors import AliquotError
from aliquot.model.ids import TenantName
from aliquot.model.requests import GpuRequest

from .stage import Aliquot, Cluster, sharepod

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_taken(up: Cluster, example):
    """Each file in examples/ applies, and applying it again changes nothing."""
    first = up.command("apply", "-f", str(EXAMPLES / example))
    again = up.command("apply", "-f", str(EXAMPLES / example))

    assert (0, 0) == (first.returncode, again.returncode), first.stderr
    assert all(line.endswith(" unchanged") for line in again.stdout.splitlines())


def test_a_pod_runs_to_its_end_and_gives_its_gpu_back(up: Cluster):
    """A SharePod that succeeds keeps its log, and its part of the GPU is free."""
    up.apply(sharepod("a", "echo said $CUDA_VISIBLE_DEVICES"))
    up.wait_phase("a", "Succeeded")

    assert up.command("logs", "a").stdout == "said 0\n"
    assert up.command.facts("get", "tenants") == []


def json_uuid(up: Cluster, index: int) -> str:
    """The UUID of a GPU."""
    return up.command.facts("get", "gpus")[index]["uuid"]


def test_first_fit_fills_one_gpu_before_the_next(up: Cluster):
    """SharePods go to the first GPU that holds them; one without room waits and starts when there is."""
    for name in ("a", "b", "c"):
        up.apply(sharepod(name, "sleep 60", request=0.7))
    before = [up.pod(name)["gpus"] for name in ("a", "b", "c")]
    up.command("delete", "b")

    assert ([[0], [1], []], [1]) == (before, up.wait_phase("c", "Running")["gpus"])


@pytest.mark.parametrize(
    ("policy", "script", "again"),
    [
        ("Always", "exit 0", True),
        ("OnFailure", "exit 1", True),
        ("OnFailure", "exit 0", False),
        ("Never", "exit 1", False),
    ],
)
def test_a_container_starts_again_by_its_policy(up: Cluster, policy, script, again):
    """Always starts again whatever happened, OnFailure after a failure, Never never."""
    up.apply(sharepod("a", script, policy=policy))
    if again:
        eventually(lambda: up.pod("a")["restarts"] > 0, "the container was started again")
    else:
        up.wait_phase("a", "Succeeded" if script == "exit 0" else "Failed")

    assert (up.pod("a")["restarts"] > 0) == again


def test_a_deleted_pod_has_no_process_left(up: Cluster):
    """Deleting a SharePod ends its container and what the container started."""
    up.apply(sharepod("a", "sleep 300 & echo $!; wait"))
    eventually(lambda: up.command("logs", "a").stdout.strip().isdigit(), "the child has started")
    child = up.command("logs", "a").stdout.strip()
    done = up.command("delete", "a")

    assert (0, "sharepod/a deleted\n") == (done.returncode, done.stdout)
    eventually(lambda: not Path(f"/proc/{child}").exists(), "the child has ended")


def test_an_impossible_sharepod_is_refused_with_status_2(up: Cluster):
    """Memory over the device, and fields nobody knows, are refused and change nothing."""
    memory = up.apply(sharepod("a", "true", memory="64Gi"))
    unknown = up.apply(sharepod("a", "true", limt=1))

    assert (2, 2) == (memory.returncode, unknown.returncode)
    assert "GPU 0 has 16.0 GiB in all" in memory.stderr
    assert 'spec.gpu has no field "limt"' in unknown.stderr
    assert up.command.facts("get") == []


def test_runs_join_the_engine_that_is_up(up: Cluster):
    """A run uses the engine that is up, and does not end it."""
    done = up.command("run", "--gpu-request", ".5", "--", "true")
    other = up.command("run", "--emulate", "t4", "--", "true")

    assert (0, True) == (done.returncode, up.command.engine_is_up)
    assert (2, True) == (other.returncode, "emulates v100x2, not t4" in other.stderr)


def test_top_shows_gpus_first_and_tenants_under_them(up: Cluster):
    """`top` without a terminal prints one table: each GPU, and under it who is on it."""
    up.apply(sharepod("a", "sleep 60", request=0.3, limit=0.6))
    lines = up.command("top").stdout.splitlines()
    facts = up.command.facts("top")

    assert lines[0].startswith("GPU 0  Tesla V100-SXM2-16GB (emulated)   busy 0 %   memory")
    assert lines[2].split()[:3] == ["default/a", "0.30", "0.60"]
    assert [len(gpu["tenants"]) for gpu in facts["gpus"]] == [1, 0]


def test_doctor_names_what_it_found(aliquot_cli: Aliquot):
    """`doctor` lists native parts, driver, injection, protection and engine, and its status is 0 without faults."""
    done = aliquot_cli("doctor", "-o", "json")
    report = json.loads(done.stdout)
    found = {finding["what"] for finding in report["findings"]}

    assert {"hook", "emulated CUDA", "emulated NVML", "injection", "protection", "engine"} <= found
    assert (done.returncode == 0) == report["ok"]
    assert all(finding["way_out"] for finding in report["findings"] if finding["state"] == "fault")


def test_an_engine_in_this_process_spawns_and_cleans_up():
    """The engine as a context manager has tenants, and ends what they have left; it leaves no file of theirs."""
    with engine_of("v100", window_ms=2000) as engine:
        root = engine.runtime.root
        first = spawn(engine, "a", ["sh", "-c", "exit 3"], request_milli=700, limit_milli=1000, memory_mib=1024)
        status = first.wait(20)
        second = spawn(engine, "b", ["sleep", "60"], request_milli=700, limit_milli=1000, memory_mib=1024)
        names = [tenant.name for tenant in engine.arbiter.status().gpus[0].tenants]
        eventually(lambda: engine.processes(TenantName("b")), "its program is there")

    assert (3, ["b"], True) == (status, names, second.process.poll() is not None)
    assert not root.exists()


def test_a_tenant_may_have_the_name_of_one_that_has_just_ended():
    """A name is free once its program was seen to end; that end takes nothing away from the next of that name."""
    with engine_of("v100", window_ms=2000) as engine:
        statuses = []
        for round_number in range(5):
            tenant = spawn(engine, "a", ["sh", "-c", f"exit {round_number}"], request_milli=500, memory_mib=64)
            statuses.append(tenant.wait(20))
        last = spawn(engine, "a", ["sleep", "60"], request_milli=500, memory_mib=64)
        remaining = list(engine.tenants)
        last.end()

    assert ([0, 1, 2, 3, 4], ["a"]) == (statuses, remaining)


def test_a_change_that_would_end_a_running_program_is_refused(up: Cluster):
    """The refusal names the change, the program and the flag; no SharePod of the file is touched."""
    up.apply(sharepod("a", "sleep 300"))
    before = up.wait_phase("a", "Running")["containers"][0]["pid"]
    done = up.apply(f"{sharepod('b', 'sleep 300')}\n---\n{sharepod('a', 'sleep 301', request=0.25)}")
    after = up.pod("a")

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    for words in ('sharepod "a"', "request 0.2 -> 0.25", f"pid {before}", "aliquot apply --restart"):
        assert words in done.stderr
    assert (before, 200) == (after["containers"][0]["pid"], after["request_milli"])
    assert ["default/a"] == [pod["name"] for pod in up.command.facts("get")]


def test_logs_and_events_outlive_a_restart(up: Cluster):
    """What a SharePod printed and what became of it before it was changed can still be read."""
    up.apply(sharepod("a", "echo first; sleep 300"))
    eventually(lambda: "first" in up.command("logs", "a").stdout, "the first program has printed")
    up.apply(sharepod("a", "echo second; sleep 300", request=0.25), "--restart")
    eventually(lambda: "second" in up.command("logs", "a").stdout, "the second program has printed")
    events = " ".join(up.pod("a")["events"])

    assert "first\nsecond\n" == up.command("logs", "a").stdout
    assert 2 == events.count("placed on GPU")
    assert "applied again: request 0.2 -> 0.25, template" in events


def test_a_container_that_keeps_failing_is_in_crashloopbackoff(up: Cluster):
    """`get` and `describe` use kubelet's word while a container waits for its next start."""
    up.apply(sharepod("a", "exit 3", policy="Always"))
    eventually(lambda: up.pod("a")["reason"] == "CrashLoopBackOff", "the container waits for its next start")
    eventually(lambda: "CrashLoopBackOff" in up.command("get").stdout, "get shows it")

    assert "Running" == up.pod("a")["phase"]


def test_a_sharepod_of_several_gpus_shows_all_of_them(up: Cluster):
    """`get`, `describe`, the JSON and the event name each GPU."""
    up.apply(sharepod("a", "sleep 300", request=2))
    pod = up.wait_phase("a", "Running")

    assert [0, 1] == pod["gpus"]
    assert [json_uuid(up, 0), json_uuid(up, 1)] == pod["gpu_uuids"]
    assert "placed on GPU 0, 1" in pod["events"][0]
    assert "0,1" == up.command("get").stdout.splitlines()[1].split()[2]


def test_a_waiting_sharepod_shows_what_it_asked_for(up: Cluster):
    """Memory that was asked for is shown while it waits, not the nothing that it has."""
    up.apply(sharepod("a", "sleep 300", request=2))
    up.apply(sharepod("b", "sleep 300", memory="2Gi"))
    row = up.command("get", "sharepods", "b").stdout.splitlines()[1]

    assert ["b", "Pending", "-", "0.20", "1.00", "2.0", "GiB"] == row.split()[:7]


def test_a_changed_sharepod_is_started_anew(up: Cluster):
    """Applied again with another command, the old program ends and the new one runs."""
    up.apply(sharepod("a", "sleep 300"))
    up.wait_phase("a", "Running")
    done = up.apply(sharepod("a", "echo anew; sleep 300"), "--restart")

    assert (0, "sharepod/a configured\n") == (done.returncode, done.stdout)
    eventually(lambda: "anew" in up.command("logs", "a").stdout, "the new program runs")


def test_gpus_that_are_left_out_take_no_tenants(aliquot_cli: Aliquot):
    """The engine shares the GPUs that are left, by their own indices; a list that leaves none is refused."""
    refused = aliquot_cli("up", "--emulate", "v100x2", "--not-gpus", "0,1", "--no-web")
    assert (2, True) == (refused.returncode, "no GPU is left to share: GPU 0 (Tesla V100-SXM2-16GB)" in refused.stderr)

    with engine_of("v100x4", not_gpus="0,2") as engine:
        assert [1, 3] == [gpu.index for gpu in engine.gpus]
        with pytest.raises(AliquotError):
            engine.admit(TenantName("a"), GpuRequest(1000, gpu="0"))
        assert {gpu.uuid for gpu in engine.gpus} == set(engine.admit(TenantName("b"), GpuRequest(2000)).plan.uuids)


def test_memory_in_which_no_context_fits_is_refused_where_it_is_asked_for(up: Cluster):
    """A bare number that was meant in GiB starts nothing, as a SharePod and as a run."""
    applied = up.apply(sharepod("a", "true", memory=4))
    ran = up.command("run", "--gpu-request", ".2", "--gpu-mem", "4", "--", "true")

    assert (2, 2) == (applied.returncode, ran.returncode)
    for answer in (applied, ran):
        assert "4 MiB of GPU memory is less than one CUDA context needs (about 300 MiB on Tesla V100" in answer.stderr
        assert answer.stderr.endswith("did you mean 4Gi?\n")


def test_memory_that_was_refused_is_an_event(up: Cluster):
    """`describe` says of a program that ended for want of GPU memory that it requested more than its limit."""
    cuda = "import ctypes; c = ctypes.CDLL('libcuda.so.1'); x = ctypes.c_void_p(); c.cuInit(0)"
    context = "c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 0); c.cuCtxSetCurrent(x)"
    allocate = "raise SystemExit(c.cuMemAlloc_v2(ctypes.byref(x), ctypes.c_size_t(8 << 30)))"
    up.apply(sharepod("a", f'{sys.executable} -c "{cuda}; {context}; {allocate}"', memory="1Gi"))
    events = up.wait_phase("a", "Failed")["events"]

    assert ["requested more memory of GPU 0 than its limit of 1.0 GiB", "container main ended with status 2"] == [
        event.partition(" ")[2] for event in events if "memory" in event or "ended with" in event
    ]

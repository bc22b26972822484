"""NVML inside a tenant: its own processes and work, and of neighbours not even that there are any."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

BUSY = "cuda = Cuda(); spin = cuda.spin(); say(pid=os.getpid())\nwhile True: cuda.launch(spin, 2_000_000); cuda.sync()"
ASK = """
import pynvml as n
cuda = Cuda(); spin = cuda.spin(); cuda.launch(spin, 1000); cuda.sync(); say(pid=os.getpid()); wait_line()
n.nvmlInit(); d = n.nvmlDeviceGetHandleByIndex(0)
def tried(call, *a):
    try: return call(*a)
    except n.NVMLError as error: return error.value
"""
NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT = 3, 6, 7


@pytest.fixture
def scene(tenant) -> Iterator:
    """A tenant beside a neighbour that keeps the GPU busy; `scene.neighbour` is the neighbour's pid."""
    scene = tenant(auto_grant=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(scene.machine.directory)}
    environment["PYTHONPATH"] = scene.environment("library-path")["PYTHONPATH"]
    code = "from client import *\n" + BUSY
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    scene.neighbour = process.pid
    yield scene
    process.kill()
    process.communicate()


def ask(scene, expression: str):
    """The value of an expression inside the tenant, and the tenant's pid."""
    program = scene.run(ASK + USAGE_INFO + f"say(answer={expression}); wait_line()")
    pid = program.read()["pid"]
    program.go()
    return program.read()["answer"], pid


USAGE_INFO = """
def usage_info():
    info = n.c_nvmlProcessesUtilizationInfo_v1_t(n.ProcessesUtilizationInfo_v1, 16, 0)
    info.procUtilArray = (n.c_nvmlProcessUtilizationInfo_v1_t * 16)()
    result = n._nvmlGetFunctionPointer("nvmlDeviceGetProcessesUtilizationInfo")(d, ctypes.byref(info))
    return [p for p in info.procUtilArray[: info.processSamplesCount]] if result == 0 else []
def bare_count():
    count = ctypes.c_uint(0)
    result = n._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")(d, ctypes.byref(count), None)
    return [result, count.value]
"""


@pytest.mark.parametrize(
    "pids",
    [
        "[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses_v2(d)]",
        "[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses_v3(d)]",
        "[p.pid for p in n.nvmlDeviceGetRunningProcessDetailList(d, n.nvmlProcessDetailList_v1, 0)]",
        "[p.pid for p in n.nvmlDeviceGetProcessUtilization(d, 0)]",
        "[p.pid for p in usage_info()]",
        "n.nvmlDeviceGetAccountingPids(d)",
    ],
)
def test_lists_name_the_tenants_own_processes_only(scene, pids):
    """In every list of processes a tenant finds itself and no neighbour."""
    answer, own = ask(scene, pids)

    assert answer == [own]


def test_even_the_number_of_neighbours_is_hidden(scene):
    """A question for the length of the list is answered with the length of the own one."""
    answer, _ = ask(scene, "bare_count()")

    assert answer == [INSUFFICIENT, 1]


def test_a_neighbours_account_and_name_are_not_found(scene):
    """What NVML keeps about a process is told of the tenant's own only."""
    facts = "[tried(lambda p: n.nvmlDeviceGetAccountingStats(d, p).isRunning, p) for p in (os.getpid(), {0})]"
    names = "[tried(lambda p: bool(n.nvmlSystemGetProcessName(p)), p) for p in (os.getpid(), {0})]"
    answer, _ = ask(scene, f"{facts} + {names}".format(scene.neighbour))

    assert answer == [1, NOT_FOUND, True, NOT_FOUND]


def test_utilisation_is_the_tenants_own(scene):
    """A tenant that rests beside a busy neighbour sees an idle GPU, now and in the samples of before."""
    time.sleep(0.6)
    answer, _ = ask(
        scene,
        "[n.nvmlDeviceGetUtilizationRates(d).gpu] + [s.sampleValue.uiVal for s in n.nvmlDeviceGetSamples(d, 1, 0)[1]]",
    )

    assert len(answer) > 3
    assert max(answer) <= 5


def test_utilisation_shows_what_the_tenant_uses(tenant):
    """A tenant that keeps the GPU busy sees so."""
    scene = tenant(auto_grant=True, gap_us=1_000_000)
    program = scene.run(
        ASK + "seen, end = 0, time.monotonic() + 30\n"
        "while seen <= 50 and time.monotonic() < end:\n"
        "    for _ in range(100): cuda.launch(spin, 2_000_000)\n"
        "    cuda.sync(); seen = n.nvmlDeviceGetUtilizationRates(d).gpu\n"
        "say(gpu=seen)"
    )
    program.read()
    program.go()

    assert program.read()["gpu"] > 50


def test_what_tells_of_everybody_is_not_supported(scene):
    """Counters that know no processes are not for tenants, and the window into memory shows nobody's use."""
    answer, _ = ask(
        scene,
        "[tried(n.nvmlDeviceGetEncoderUtilization, d), tried(n.nvmlDeviceGetDecoderUtilization, d),"
        " tried(lambda d: n.nvmlDeviceGetSamples(d, 3, 0), d), n.nvmlDeviceGetBAR1MemoryInfo(d).bar1Used]",
    )

    assert answer == [NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, 0]


def test_without_process_samples_there_is_no_utilisation(tenant):
    """Where the driver does not tell processes apart, everybody's utilisation is not shown instead."""
    scene = tenant(auto_grant=True, extra=("fault=nvml-no-utilization 1",))
    answer, _ = ask(scene, "tried(n.nvmlDeviceGetUtilizationRates, d)")

    assert answer == NOT_SUPPORTED


def test_wrong_pids_show_nobody_rather_than_a_neighbour(tenant):
    """With NVML in another pid namespace the lists are empty, never somebody else's."""
    scene = tenant(auto_grant=True, extra=("fault=nvml-wrong-pids 1000000",))
    answer, _ = ask(scene, "[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(d)]")

    assert answer == []


def test_a_function_of_a_newer_nvml_is_said_to_be_missing(scene):
    """What the driver's own NVML does not have answers FUNCTION_NOT_FOUND, as NVML does."""
    answer, _ = ask(scene, "ctypes.CDLL('libnvidia-ml.so.1').nvmlDeviceGetGpuUptime_v1(d, None)")

    assert answer == 13

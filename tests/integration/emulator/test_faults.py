"""Faults that real GPUs have, on demand."""

NTH_LAUNCH = (
    "open_gpu(); k = Spinner(); answer([code(k.try_launch()) for _ in range(4)] + [code(d.cuCtxSynchronize())])"
)


def test_out_of_memory_from_the_nth_allocation(clients):
    """fault=oom N refuses allocations after the first N."""
    machine = clients("a100", "fault=oom 2")

    assert machine.run("open_gpu(); answer([code(d.cuMemAlloc(64)) for _ in range(4)])") == [0, 0, 2, 2]


def test_sticky_error_stays(clients):
    """fault=sticky N makes the launch after N, and everything after it, fail with 700."""
    assert clients("a100", "fault=sticky 2").run(NTH_LAUNCH) == [0, 0, 700, 700, 700]


def test_hanging_kernel_never_ends(clients):
    """fault=hang N lets the launch after N run for ever; the GPU is not ready and the call returned."""
    machine = clients("a100", "fault=hang 0")
    result = machine.run(
        "open_gpu(); k = Spinner(); k.launch(10); time.sleep(0.2); answer(code(d.cuStreamQuery(k.stream))); os._exit(0)"
    )

    assert result == 600


def test_slow_kernels(clients):
    """fault=slow F multiplies every kernel's time."""
    machine = clients("a100", "fault=slow 5")
    took = machine.run(
        "open_gpu(); k = Spinner(); t = time.monotonic(); k.launch(20_000_000); k.sync(); answer(time.monotonic() - t)"
    )

    assert took >= 0.1


def test_old_driver_and_missing_symbol(clients):
    """An old driver reports its version; a missing symbol is not found, from the environment as from the file."""
    machine = clients("a100", "fault=old-driver 11040")

    assert machine.run("ck(d.cuInit(0)); answer(ck(d.cuDriverGetVersion()))") == 11040
    ask = """
cuda = ctypes.CDLL("libcuda.so.1")
out, status = ctypes.c_void_p(), ctypes.c_int()
cuda.cuGetProcAddress_v2(b"cuLaunchKernelEx", ctypes.byref(out), 13000, ctypes.c_uint64(0), ctypes.byref(status))
answer([out.value is None, status.value])
"""
    assert clients("a100").run(ask, ALIQUOT_EMULATOR_FAULTS="missing=cuLaunchKernelEx") == [True, 1]


def test_nvml_without_processes(clients):
    """fault=nvml-no-processes makes the process list NOT_SUPPORTED, as inside some virtual machines."""
    machine = clients("a100", "fault=nvml-no-processes")
    result = machine.run("""
import pynvml as n
n.nvmlInit()
try:
    n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))
except n.NVMLError as e:
    answer(e.value)
""")

    assert result == 3


def test_nvml_of_another_pid_namespace(clients):
    """fault=nvml-wrong-pids N moves every process id that NVML tells, so none is a process seen from here."""
    machine = clients("a100", "fault=nvml-wrong-pids 500000")
    own, told = machine.run("""
import pynvml as n
open_gpu(); n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); k = Spinner(); k.launch(1000); k.sync()
answer([os.getpid(), [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]
        + [p.pid for p in n.nvmlDeviceGetProcessUtilization(h, 0)]])
""")

    assert told == [own + 500_000] * 2

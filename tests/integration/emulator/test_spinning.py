"""Kernels that wait for other kernels: they occupy the GPU and run beside others of their process."""

import pytest

SCENE = """
PTX = b".visible .entry spin_until(.param .u64 at, .param .u32 value){ret;}\\n" + PTX
open_gpu(); f = ck(d.cuModuleGetFunction(ck(d.cuModuleLoadData(PTX)), b"spin_until"))
words = ck(d.cuMemAlloc(4096)); ck(d.cuMemsetD32(words, 0, 1024))
def until(word, value, stream):
    at, want = ctypes.c_uint64(int(words) + 4 * word), ctypes.c_uint32(value)
    params = (ctypes.c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(want))
    ck(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(params), 0))
def put(word, value, stream): ck(d.cuStreamWriteValue32(stream, int(words) + 4 * word, value, 0))
def stream(): return ck(d.cuStreamCreate(1))
"""


def test_two_streams_that_wait_for_each_other_make_progress(clients):
    """Two ranks that tell each other with words and spin for the other's word finish a hundred steps."""
    took = clients().run(
        SCENE + "a, b = Spinner(stream=stream()), Spinner(stream=stream()); t = time.monotonic()\n"
        "for step in range(1, 101):\n"
        "    for me, k in enumerate((a, b)):\n"
        "        k.launch(100_000); put(me, step, k.stream); until(1 - me, step, k.stream)\n"
        "a.sync(); b.sync(); answer(time.monotonic() - t)"
    )

    assert took >= 0.02


@pytest.mark.real_time
def test_a_kernel_that_spins_occupies_the_gpu(clients):
    """Its time counts as GPU time, though kernels of the same process run beside it and are counted once."""
    busy, early, late = clients().run(
        "import pynvml as n\n"
        + SCENE
        + "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); s = stream(); k = Spinner()\n"
        "until(0, 1, s)\n"
        "for _ in range(12): k.launch(50_000_000); k.sync()\n"
        "time.sleep(0.3); busy = n.nvmlDeviceGetUtilizationRates(h).gpu; early = code(d.cuStreamQuery(s))\n"
        "put(0, 1, k.stream); ck(d.cuStreamSynchronize(s)); answer([busy, early, code(d.cuStreamQuery(s))])"
    )

    assert busy > 90
    assert (early, late) == (600, 0)


def test_other_processes_get_their_slices_beside_a_kernel_that_spins(clients):
    """Another process's kernels alternate with the spinning one."""
    machine = clients()
    spinner = machine.start(SCENE + "until(0, 1, stream()); answer(1); sys.stdin.readline()")
    spinner.stdout.readline()
    took = machine.run(
        "open_gpu(); k = Spinner(); t = time.monotonic()\n"
        "for _ in range(100): k.launch(1_000_000)\n"
        "k.sync()\n"
        "answer(time.monotonic() - t)"
    )

    assert took > 0.15


def test_a_graph_may_contain_a_kernel_that_spins(clients):
    """A captured kernel that spins waits at every launch of its graph."""
    held, done = clients().run(
        SCENE + "s, other = stream(), stream(); ck(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode(0)))\n"
        "until(3, 7, s)\n"
        "run = ck(d.cuGraphInstantiate(ck(d.cuStreamEndCapture(s)), 0)); ck(d.cuGraphLaunch(run, s))\n"
        "time.sleep(0.02); held = code(d.cuStreamQuery(s)); put(3, 7, other); ck(d.cuStreamSynchronize(s))\n"
        "answer([held, code(d.cuStreamQuery(s))])"
    )

    assert (held, done) == (600, 0)

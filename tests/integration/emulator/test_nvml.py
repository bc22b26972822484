"""The management library reads the same ledger."""

import json

from rights import rooms

READ = """
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
"""


def test_identity_agrees_with_the_driver(clients):
    """Count, name, UUID and PCI address are the same in both libraries."""
    machine = clients("v100x4")
    uuid, name, count, bus = machine.run(
        READ
        + "answer([n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetName(h), n.nvmlDeviceGetCount(), "
        + "n.nvmlDeviceGetPciInfo(h).busId])"
    )
    mine, pci = machine.run(
        "open_gpu(); answer([bytes(ck(d.cuDeviceGetUuid(0)).bytes).hex(), ck(d.cuDeviceGetPCIBusId(13, 0)).decode()])"
    )

    assert uuid == machine.machine.uuids[0]
    assert mine == uuid.removeprefix("GPU-").replace("-", "")
    assert (name, count) == ("Tesla V100-SXM2-16GB", 4)
    assert bus.upper().endswith(pci[:12].upper())


def test_memory_and_process_list_follow_the_clients(clients):
    """A client's allocations and context appear as used memory and under its process id."""
    machine = clients()
    holder = machine.start("open_gpu(); p = ck(d.cuMemAlloc(1 << 30)); answer('held'); sys.stdin.readline()")
    holder.stdout.readline()

    used, processes = machine.run(
        READ
        + "answer([n.nvmlDeviceGetMemoryInfo(h).used >> 20, "
        + "[[p.pid, p.usedGpuMemory >> 20] for p in n.nvmlDeviceGetComputeRunningProcesses(h)]])"
    )

    expected = 1024 + machine.machine.profile.context_mib
    assert used == expected
    assert processes == [[holder.pid, expected]]


def test_utilisation_follows_the_kernels(clients):
    """A GPU that is always busy reads about 100 %, an idle one 0."""
    machine = clients()
    half_a_minute = "for _ in range(3000): k.launch(10_000_000)\n"
    busy = machine.start(f"open_gpu(); k = Spinner(); k.launch(1); answer('on')\n{half_a_minute}k.sync()")
    busy.stdout.readline()

    gpu, idle = machine.run(
        READ
        + "time.sleep(1); answer([n.nvmlDeviceGetUtilizationRates(h).gpu, "
        + "n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(1)).gpu])"
    )

    assert gpu > 75
    assert idle == 0


def test_links_follow_the_matrix(clients):
    """GPU 0 of four V100 has one link each to GPU 1 and 2 and two to GPU 3."""
    peers = clients("v100x4").run(
        READ
        + "links = [i for i in range(6) if n.nvmlDeviceGetNvLinkState(h, i)]\n"
        + "answer(sorted(n.nvmlDeviceGetNvLinkRemotePciInfo(h, i).bus for i in links))"
    )

    assert peers == [0x14, 0x18, 0x1C, 0x1C]


@rooms
def test_processes_have_the_numbers_of_the_callers_pid_namespace(clients):
    """A container's process has the node's number on the node, its own inside, and does not see those outside."""
    machine = clients()
    pids = READ + "pids = lambda: sorted(p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h))\n"
    outside = machine.start("open_gpu(); answer('held'); sys.stdin.readline()")
    outside.stdout.readline()
    contained = machine.start(
        "assert ctypes.CDLL(None).unshare(0x20000000) == 0\n"  # CLONE_NEWPID
        "child = os.fork()\n"
        "if child:\n    answer(child)\n    os.waitpid(child, 0)\n    sys.exit()\n"
        "open_gpu()\n" + pids + "answer([os.getpid(), pids()]); sys.stdin.readline()"
    )

    told = [json.loads(contained.stdout.readline()) for _ in range(2)]
    (number,) = [one for one in told if isinstance(one, int)]

    assert [1, [1]] in told
    assert machine.run(pids + "answer(pids())") == sorted([outside.pid, number])
    contained.communicate("\n", timeout=20)

"""The audit with a real arbiter, an emulated GPU and real programs; only pods and events are stand-ins."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from kit.arbiter import SOURCES, RunningArbiter
from node_room import FakePods

from aliquot.arbiter.records import TenantGpu, TenantRecord
from aliquot.driver.emulation import EmulatedMachine, prepare
from aliquot.driver.gpu import Gpu
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.audit import Audit, Auditing
from aliquot.node.display.facts import Sources, arbiter_status
from aliquot.node.machine import Machine
from aliquot.node.pods import NodePod
from aliquot.node.processes import GpuProgram, read_program

UID, CONTAINER = "0b7a5a3e-1c2d-4e5f-8a9b-0123456789ab", "c0ffee" + "0" * 58
PROGRAM = """
import sys
from kit.arbiter import FakeProcess
from kit.driver_calls import OwnDriver
from aliquot.arbiter.abi import ReserveFlag
assert OwnDriver().open() == 0
if len(sys.argv) > 1:
    process = FakeProcess(sys.argv[1])
    process.attach(sys.argv[2])
    process.reserve(0, flags=ReserveFlag.CONTEXT)
print("computes", flush=True)
sys.stdin.readline()
"""
TESTS = Path(__file__).parents[2]


class Told:
    """Takes the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    async def about_pod(self, pod: PodKey, reason: str, message: str) -> None:
        self.events.append((str(pod), reason, message))

    async def about_node(self, reason: str, message: str, kind: str = "Warning") -> None:
        self.events.append(("node", reason, message))


class Place:
    """A GPU with a tenant on it, its arbiter, and programs."""

    def __init__(self, *faults: str, late: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aq-"))
        self.machine: EmulatedMachine = prepare(self.folder / "gpu", "v100", extra=faults)
        self.programs: list[subprocess.Popen[str]] = []
        if late:
            self.machine.libnvml.rename(self.folder / "later")
        options = ("--libnvml", str(self.machine.libnvml))
        self.arbiter = RunningArbiter(self.folder, self.machine.uuids[0], *options)
        self.socket = self.folder / "a.sock"
        gpu = TenantGpu(self.machine.uuids[0], 500, 1000, 4096, 300)
        self.arbiter.admin.add_tenant(TenantRecord("ns/a/main", str(self.socket), [gpu]))

    def program(self, *, registered: bool) -> subprocess.Popen[str]:
        """One that has a context, told to the arbiter or not."""
        words = [str(self.socket), self.machine.uuids[0]] if registered else []
        paths = {"LD_LIBRARY_PATH": str(self.machine.directory), "PYTHONPATH": f"{SOURCES}:{TESTS}"}
        made = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | paths,
        )  # fmt: skip
        self.programs.append(made)
        assert made.stdout and made.stdout.readline() == "computes\n"
        return made

    def seen(self, *pids: int) -> None:
        """Wait until the arbiter tells exactly these as unregistered."""
        for _ in range(100):
            status = arbiter_status(self.folder)
            assert status is not None
            if status.compared and {one.pid for gpu in status.gpus for one in gpu.unregistered} == set(pids):
                return
            asyncio.run(asyncio.sleep(0.1))
        raise AssertionError(f"{status} instead of {pids}")

    def auditing(self, told: Told, *, kill: bool, pod_of: int = 0) -> Auditing:
        """An audit without grace; the program `pod_of` is in a pod's container."""

        def read(pid: int) -> GpuProgram | None:
            program = read_program(pid)
            cgroup = f"0::/kubepods/pod{UID}/{CONTAINER}"
            return replace(program, cgroup=cgroup) if program and pid == pod_of else program

        gpu = Gpu(0, self.machine.uuids[0], "V100", 16384, "570")
        sources = Sources(
            "node-1",
            Machine((gpu,), self.machine.libcuda, self.machine.libnvml),
            lambda: arbiter_status(self.folder),
            dict,
        )
        return Auditing(Audit(read, 0.0), sources, known_pods(), told, kill=kill)  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends everything."""
        for process in self.programs:
            process.kill()
            process.communicate()
        self.arbiter.kill()
        shutil.rmtree(self.folder)


def known_pods() -> FakePods:
    """The node's pods: one, with one container."""
    status = {"name": "main", "containerID": f"containerd://{CONTAINER}", "state": {"running": {}}}
    body = {
        "metadata": {"name": "b", "namespace": "ns", "uid": UID},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }
    pods = FakePods()
    pods.known[UID] = msgspec.json.decode(msgspec.json.encode(body), type=NodePod)
    return pods


@pytest.fixture
def place() -> Iterator[Place]:
    """A shared GPU."""
    with contextlib.closing(Place()) as made:
        yield made


def test_only_who_did_not_register_is_told_and_none_is_ended_unasked(place: Place):
    """A program with a connection is no news; one without is told on its pod, or on the node where it is in none."""
    place.program(registered=True)
    stranger, other = place.program(registered=False), place.program(registered=False)
    place.seen(stranger.pid, other.pid)
    told = Told()

    asyncio.run(place.auditing(told, kill=False, pod_of=stranger.pid).check())

    text = "bypasses Aliquot on GPU 0: a process of it did not register, and no share limits it"
    assert {
        ("ns/b", "GpuUnregisteredProcess", f"container main {text}"),
        ("node", "GpuUnregisteredProcess", "a process of no pod bypasses Aliquot on shared GPU 0"),
    } == set(told.events)
    assert [None, None, None] == [program.poll() for program in place.programs]


def test_with_kill_a_pods_program_is_ended_and_the_nodes_own_is_not(place: Place):
    """The node's daemons are its administrator's; the one that registered goes on."""
    registered = place.program(registered=True)
    stranger, other = place.program(registered=False), place.program(registered=False)
    place.seen(stranger.pid, other.pid)
    told = Told()
    auditing = place.auditing(told, kill=True, pod_of=stranger.pid)

    asyncio.run(auditing.check())

    assert -9 == stranger.wait(10)
    assert [None, None] == [registered.poll(), other.poll()]
    assert "GpuUnregisteredProcessEnded" in {reason for _, reason, _ in told.events}
    place.seen(other.pid)


def test_an_api_server_that_hangs_buys_nobody_time(place: Place):
    """What is to be ended is ended before anybody is told anything."""
    first, stranger, last = (place.program(registered=False) for _ in range(3))
    place.seen(first.pid, stranger.pid, last.pid)

    class Hangs(Told):
        async def about_node(self, *_: str) -> None:
            await asyncio.Event().wait()

    async def look() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(place.auditing(Hangs(), kill=True, pod_of=stranger.pid).check(), 5)

    asyncio.run(look())

    assert -9 == stranger.wait(10)
    assert [None, None] == [first.poll(), last.poll()]


def test_an_nvml_that_comes_after_the_arbiter_is_taken_when_it_is_there():
    """As where the agent makes an emulated machine beside an arbiter that runs already."""
    with contextlib.closing(Place(late=True)) as made:
        stranger = made.program(registered=False)
        before = arbiter_status(made.folder)
        (made.folder / "later").rename(made.machine.libnvml)

        made.seen(stranger.pid)
        assert before is not None
        assert not before.compared


def test_an_arbiter_that_does_not_ask_nvml_accuses_nobody(place: Place):
    """Nothing is compared, so nothing is claimed."""
    place.program(registered=False)
    place.arbiter.kill()
    place.arbiter.options = ()
    place.arbiter.start()
    told = Told()

    asyncio.run(place.auditing(told, kill=True).check())

    status = arbiter_status(place.folder)
    assert (False, []) == (status is not None and status.compared, told.events)


@pytest.mark.parametrize("fault", ["nvml-wrong-pids 100000", "nvml-no-processes"])
def test_an_nvml_that_tells_other_numbers_or_none_accuses_nobody(fault: str):
    """As where the arbiter does not see the node's process numbers, or a driver that does not tell them."""
    with contextlib.closing(Place(f"fault={fault}")) as made:
        made.program(registered=True)
        made.program(registered=False)
        told = Told()
        auditing = made.auditing(told, kill=True)
        for _ in range(25):  # NVML is asked once a second
            asyncio.run(auditing.check())
            asyncio.run(asyncio.sleep(0.1))

        status = arbiter_status(made.folder)
        assert (False, []) == (status is not None and status.compared, told.events)
        assert [None, None] == [program.poll() for program in made.programs]

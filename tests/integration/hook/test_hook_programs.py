"""The gate and ordinary programs: captures, contexts and streams that come and go, exits, and waits of their own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aliquot.arbiter.abi import MessageType

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
MODES = {"global": GLOBAL, "thread-local": THREAD_LOCAL, "relaxed": RELAXED}
DRIVERS = {
    "ordinary": (),
    "strict": (
        "strict=1",
        "capture_status_needs_context=1",
        "capture_unsafe=cuStreamQuery cuStreamSynchronize cuEventCreate cuMemGetInfo",
    ),
}


@pytest.fixture(scope="module")
def gate(built) -> Callable[..., list[str]]:
    """The command of a program in gate.c."""
    return lambda *words: [str(built("hook/programs/gate.c")), *map(str, words)]


@contextmanager
def neighbour(scene: Any, *, every_s: float = 0.02) -> Iterator[None]:
    """Somebody else waits for the GPU, and takes it again and again."""
    over = threading.Event()
    scene.arbiter.crowd()

    def take() -> None:
        while not over.wait(every_s):
            scene.arbiter.revoke()

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def gives_back(scene: Any) -> bool:
    """Whether the token of the last grant is returned within two seconds."""
    end = time.monotonic() + 2
    while time.monotonic() < end:
        last = scene.arbiter.heard[-1]
        if (last.type, last.a) == (MessageType.RETURN, scene.arbiter.epoch):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("mode", MODES)
def test_a_stream_captures_while_its_earlier_work_still_runs(tenant, gate, mode, driver):
    """A capture succeeds although the stream, and with it the GPU, has unfinished work."""
    scene = tenant(auto_grant=True, extra=DRIVERS[driver])

    facts = scene.start(gate("pending", MODES[mode])).read()

    assert facts == {"good": 40}


@pytest.mark.parametrize("flags", [0, 1], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("mode", MODES)
def test_captures_succeed_while_other_threads_launch_and_a_neighbour_waits(tenant, gate, mode, flags):
    """Launches and revocations meanwhile spoil no capture of another thread, in any mode."""
    scene = tenant(auto_grant=True, extra=DRIVERS["strict"])

    with neighbour(scene):
        facts = scene.start(gate("captures", 300, MODES[mode], flags)).read()

    assert facts == {"good": 300, "last": 0}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_ten_thousand_captures_succeed_beside_launches(tenant, gate, mode):
    """None of ten thousand captures is spoiled."""
    scene = tenant(auto_grant=True, extra=DRIVERS["strict"])

    with neighbour(scene):
        facts = scene.start(gate("captures", 10_000, MODES[mode], 0)).read()

    assert facts == {"good": 10_000, "last": 0}


@pytest.mark.parametrize("driver", DRIVERS)
def test_contexts_come_and_go_under_contention(tenant, gate, driver):
    """Contexts are destroyed and reset while a helper looks at their work, and no dead handle is used."""
    scene = tenant(auto_grant=True, extra=DRIVERS[driver])

    with neighbour(scene, every_s=0.003):
        facts = scene.start(gate("contexts")).read()

    assert facts == {"alive": True}


def test_a_program_that_used_many_streams_is_idle_again(tenant, gate):
    """After thousands of streams, the last few of them alive, the token is returned when the work has ended."""
    scene = tenant(auto_grant=True, extra=DRIVERS["strict"])
    program = scene.start(gate("streams", 5000, 300))

    program.read()

    assert gives_back(scene)


@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize(("kernel_ns", "max_ms"), [(20_000, 2.5), (500_000, 2.5), (1_000_000, 3), (8_000_000, 16)])
def test_a_thread_runs_ahead_for_two_milliseconds_beside_others(tenant, gate, waiting, kernel_ns, max_ms):
    """While other tenants are attached, waiting or not, a thread queues 2 ms of kernels, and at least one kernel."""
    scene = tenant(auto_grant=True)
    scene.arbiter.crowd(waiting=waiting)

    launches = 1500 if kernel_ns < 500_000 else 400 if kernel_ns < 5_000_000 else 60
    facts = scene.start(gate("ahead", kernel_ns, launches)).read()

    assert kernel_ns / 1e6 <= facts["most_ms"] <= max_ms


@pytest.mark.parametrize(("kernel_ns", "max_ms"), [(500_000, 2.5), (1_000_000, 3)])
def test_a_thread_that_is_held_up_runs_no_further_ahead(tenant, gate, kernel_ns, max_ms):
    """A thread that loses its processor again and again, in the driver's queries too, queues no more than others do."""
    scene = tenant(auto_grant=True, extra=("query_ns=20000",))
    scene.arbiter.crowd()

    facts = scene.start(gate("ahead", kernel_ns, 400, 7_000)).read()

    assert kernel_ns / 1e6 <= facts["most_ms"] <= max_ms


def test_a_thread_runs_far_ahead_on_a_gpu_of_its_own(tenant, gate):
    """Where no other tenant is attached, a thread queues some 100 ms of kernels, so that no pause of it is felt."""
    scene = tenant(auto_grant=True)

    facts = scene.start(gate("ahead", 5_000_000, 120)).read()

    assert 50 < facts["most_ms"] < 130


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_stream_may_wait_for_what_its_own_thread_does_later(tenant, gate, driver):
    """A stream that waits for this very thread's later launches delays them for a while at most."""
    scene = tenant(auto_grant=True, extra=DRIVERS[driver])
    scene.arbiter.crowd()

    assert scene.start(gate("itself", 20)).read()["took_s"] > 0


def test_default_streams_of_threads_stay_independent(tenant, gate):
    """A thread's default stream may wait for another's while the token is looked after and taken; both end."""
    scene = tenant(auto_grant=True, extra=DRIVERS["strict"])
    program = scene.start(gate("defaults", 300))
    scene.arbiter.crowd()
    scene.arbiter.wait_for(MessageType.WANT)

    program.read()

    assert gives_back(scene)


@pytest.mark.parametrize("driver", DRIVERS)
def test_programs_that_leave_with_work_queued_end_well(tenant, gate, driver):
    """The exit status of a program is its own, whatever the helper thread is doing when it leaves."""
    scene = tenant(auto_grant=True, extra=DRIVERS[driver])

    statuses = []
    for pause_us in range(0, 4000, 40):
        statuses.append(scene.start(gate("leaves", pause_us)).end())

    assert statuses == [0] * 100


def scheduled(pid: int) -> int:
    """How often threads of the program went to sleep, the first and the emulated GPU's left out."""
    times = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if int(task.name) != pid and (task / "comm").read_text().strip() != "emulated-gpu":
            status = (task / "status").read_text()
            times += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return times


def test_the_helper_rests_while_nothing_changes(tenant, gate):
    """While a program is busy without a pause, its helper thread wakes less than 250 times a second."""
    scene = tenant(auto_grant=True)
    program = scene.start(gate("steady", 2000))
    pid = program.read()["pid"]
    time.sleep(0.6)

    before = scheduled(pid)
    time.sleep(1)

    assert scheduled(pid) - before < 250


def test_a_thread_may_end_inside_the_drivers_launch(tenant, gate):
    """A thread that ends inside a launch holds no revocation up, nor does the thread that takes its place."""
    scene = tenant(auto_grant=True, gap_us=1_000_000)
    program = scene.start(gate("vanishes"))

    for _ in range(2):
        program.read()
        before = len(scene.arbiter.heard)
        scene.arbiter.revoke()
        assert scene.arbiter.wait_for(MessageType.DRAINED, since=before, timeout_s=2)
        program.go()


def test_a_launch_belongs_to_the_gpu_of_its_stream(tenant, gate):
    """A launch into a stream waits for that stream's GPU and is drained there, whatever context is current."""
    scene = tenant(auto_grant=True, spec="v100x2", gap_us=1_000_000, extra=DRIVERS["strict"])

    scene.start(gate("elsewhere")).read()
    launched_ns = time.monotonic_ns()
    scene.arbiter.pages[1].close_gate(scene.arbiter.epoch)
    drained = scene.arbiter.wait_for(MessageType.DRAINED)

    assert [one.gpu for one in scene.arbiter.heard if one.type == MessageType.WANT] == [1]
    assert (drained.gpu, drained.a) == (1, scene.arbiter.epoch)
    assert drained.at_ns - launched_ns > 50_000_000


def test_without_membarrier_every_launch_fences(tenant, gate):
    """Where the kernel refuses membarrier, launches fence themselves and revocations are answered."""
    scene = tenant(auto_grant=True, gap_us=1_000_000)

    facts = scene.start(gate("fenced")).read()
    scene.arbiter.revoke()

    assert facts == {"fenced": 1}
    assert scene.arbiter.wait_for(MessageType.DRAINED).a == scene.arbiter.epoch


def test_events_are_rarer_than_launches(tenant):
    """While somebody waits, one event stands behind many short launches."""
    scene = tenant(auto_grant=True)
    scene.arbiter.crowd()
    program = scene.run(
        "cuda = Cuda(); spin = cuda.spin()\n"
        "for _ in range(4000): cuda.launch(spin, 5000)\n"
        "cuda.sync(); say(**cuda.stats())"
    )

    facts = program.read()

    assert facts["launches"] == 4000
    assert 10 < facts["events"] < 1000


def test_cancelled_threads_take_no_lock_along(tenant, built):
    """Threads that are cancelled while they launch, wait and allocate leave a tenant that goes on."""
    scene = tenant(memory_mib=4096, auto_grant=True)

    done = scene.execute([str(built("emulator/cancelled.c")), "100"], mode="library-path")

    assert "done\n" == done.stdout

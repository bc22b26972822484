"""Hand-overs by the native thread while arbiters are killed, stopped or run without it, and tenants are removed."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit.compiling import compile_c
from waiting import eventually, stop

ROOT = Path(__file__).parents[3]


@pytest.fixture
def arbiter(start_arbiter):
    """An arbiter with the native thread."""
    return start_arbiter("--native-handover")


def take_turns(processes, turns: int) -> None:
    """Let tenants of one process each follow one another, each answering when its turn was ended, seen or not."""
    answered = {p: p.pages[0].epoch - p.pages[0].valid for p in processes}

    def ended():
        return [p for p in processes if p.pages[0].epoch != answered[p] and not p.pages[0].valid]

    for process in processes:
        process.want()
    for _ in range(turns):
        eventually(ended)
        for process in ended():
            answered[process] = process.pages[0].epoch
            process.want()
            process.drained()


def test_a_killed_arbiter_comes_back_to_tenants_that_were_handed_the_gpu(arbiter):
    """After kill -9 in the midst of hand-overs a new arbiter knows the tenants, and they go on."""
    arbiter.tenant("a", 500)
    arbiter.tenant("b", 500)
    processes = [arbiter.process("a"), arbiter.process("b")]
    take_turns(processes, 20)
    charged = {name: arbiter.seen(name).charged_ns for name in ("a", "b")}
    arbiter.kill()
    arbiter.start()
    again = [arbiter.process("a"), arbiter.process("b")]
    take_turns(again, 6)

    for name, before in charged.items():
        assert arbiter.seen(name).charged_ns >= before - 300_000_000
    assert not [e for e in arbiter.admin.events() if e["kind"] == "handover-taken-back"]


def test_a_stopped_arbiter_hands_nothing_over(arbiter):
    """While the arbiter is stopped nothing is granted; what was prepared before is void when it goes on late."""
    arbiter.tenant("a", 500)
    arbiter.tenant("b", 500)
    first, second = arbiter.process("a"), arbiter.process("b")
    first.hold()
    second.want()
    eventually(lambda: arbiter.seen("b").waiting)
    stop(arbiter.child.pid)
    first.give_back()
    time.sleep(0.1)
    granted = second.pages[0].valid
    arbiter.child.send_signal(signal.SIGCONT)

    assert not granted
    second.wait_valid()
    assert not first.pages[0].valid


def test_a_tenant_removed_while_it_is_next_is_not_granted(arbiter):
    """A prepared hand-over does not outlive the tenant that it names: the one after gets the GPU."""
    for name in ("a", "b", "c"):
        arbiter.tenant(name, 300)
    first, second, third = (arbiter.process(name) for name in ("a", "b", "c"))
    first.hold()
    second.want()
    eventually(lambda: arbiter.seen("b").waiting)
    arbiter.admin.remove_tenant("b")
    third.want()
    eventually(lambda: arbiter.seen("c").waiting)
    first.give_back()

    third.wait_valid()
    assert not second.pages[0].valid


def test_an_arbiter_without_the_native_thread_hands_over_too(start_arbiter):
    """`--no-native-handover` leaves every hand-over to the interpreter."""
    arbiter = start_arbiter("--no-native-handover")
    arbiter.tenant("a", 500)
    arbiter.tenant("b", 500)
    take_turns([arbiter.process("a"), arbiter.process("b")], 24)

    assert arbiter.seen("b").handovers >= 4


def test_the_native_thread_carries_each_hand_over_out_once_or_not_at_all(tmp_path):
    """Under random answers, noise and hand-overs taken back, no grant is stored unasked, unreported or twice."""
    folder = ROOT / "native" / "handover"
    sources = [ROOT / "tests" / "native" / "handover_check.c", *sorted(folder.glob("*.c"))]
    program = compile_c(tmp_path / "check", f"-I{ROOT}/native/include", f"-I{folder}", *sources)
    done = subprocess.run([program, "5000"], capture_output=True, text=True, timeout=60)

    assert (0, "") == (done.returncode, done.stderr)
    rounds, handed_over = map(int, done.stdout.split())
    assert rounds >= 5000
    assert handed_over > 500

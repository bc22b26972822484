"""The arbiter dies while CUDA programs run: what they see, what they get, what is remembered."""

import signal
import sys
import time

import pytest
from stage import WINDOW_S, Client
from waiting import eventually

from aliquot_lab.bench.progress import read_intervals

JOURNAL_NS = 300_000_000  # the ledger is written down four times a second
SILENT_S = 3.0  # after which the hook takes an arbiter without a sign of life for gone
LAST_GRANT_S = 1.3  # a grant of a dead arbiter ends by its deadline


def until_launched(client: Client, since_ns: int) -> int:
    """The moment of the program's first launch after another moment."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [turn.launched_ns for turn in read_intervals(client.progress) if turn.launched_ns > since_ns]
        return bool(found)

    eventually(look, "the waiting program launches")
    return min(found)


@pytest.mark.real_time
def test_an_arbiter_killed_under_load_costs_no_error_and_one_window(stage):
    """After kill -9 and a restart no program saw an error, and within one window each has its share again."""
    scene = stage()
    clients = [scene.client(name, request) for name, request in (("a", 300), ("b", 400), ("c", 300))]
    for client in clients:
        client.wait_ready()
    time.sleep(WINDOW_S / 2)
    charged = {c.name: scene.seen(c.name).charged_ns for c in clients}

    scene.kill()
    time.sleep(0.5)
    scene.start()
    eventually(lambda: all(scene.seen(c.name).processes == 1 for c in clients), "all have attached again")
    after = {c.name: scene.seen(c.name).charged_ns for c in clients}
    time.sleep(WINDOW_S)
    completed = [client.totals.completed for client in clients]
    shares = scene.charged(clients, 1.5 * WINDOW_S)

    assert all(after[name] >= charged[name] - JOURNAL_NS for name in charged)
    assert shares == pytest.approx([0.3, 0.4, 0.3], abs=0.03)
    assert all(client.totals.completed > before for client, before in zip(clients, completed, strict=True))
    assert [client.end() for client in clients] == [0, 0, 0]
    assert [client.said for client in clients] == ["", "", ""]


@pytest.mark.real_time
def test_debts_outlive_the_arbiter(stage):
    """A tenant that ran past its grant owes the time to the new arbiter as it did to the old one."""
    scene = stage()
    slow = scene.client("slow", 200, 1000, "long", "--kernel-ms", "1200")
    quick = scene.client("quick", 800)
    for client in (slow, quick):
        client.wait_ready()
    eventually(lambda: scene.seen("slow").debt_ms > 600, "a debt is in the ledger")
    time.sleep(JOURNAL_NS / 1e9)
    owed = scene.seen("slow").debt_ms

    scene.kill()
    scene.start()

    assert scene.seen("slow").debt_ms >= owed - JOURNAL_NS / 1e6
    assert scene.seen("slow").charged_ns > 0
    eventually(lambda: scene.seen("slow").processes == 1, "the long kernel's program is back")
    assert quick.end() == 0


@pytest.mark.real_time
@pytest.mark.parametrize(("policy", "least", "most"), [("pace", 0.18, 0.36), ("open", 0.6, 1.05), ("closed", 0.0, 0.0)])
def test_without_an_arbiter_for_good_the_fail_policy_rules(stage, policy, least, most):
    """Left alone, a tenant with a request of 0.3 and a limit of 0.6 runs 0.3 of the time, freely, or not at all."""
    scene = stage(policy)
    client = scene.client("a", 300, 600).wait_ready()
    scene.kill()
    time.sleep(LAST_GRANT_S)
    [alone] = scene.shares([client], 1.5)

    assert least <= alone <= most
    assert client.process.poll() is None

    scene.start()
    eventually(lambda: scene.seen("a").processes == 1, "the program is back")
    [again] = scene.charged([client], 1.5)

    assert 0.3 < again < 0.75
    assert client.end() == 0
    assert client.said == ""


@pytest.mark.real_time
def test_the_next_tenant_goes_on_when_a_holder_is_killed(stage):
    """After kill -9 of a CUDA program in the middle of a long kernel, the next tenant launches within 50 ms."""
    scene = stage()
    waiting = scene.client("waiting", 500, 1000, "sync").wait_ready()
    gaps_ms = []
    for attempt in range(3):
        holder = scene.client(f"holder{attempt}", 500, 1000, "long", "--kernel-ms", "5000")
        eventually(lambda name=holder.name: scene.admin.status().gpus[0].holder == name, "it holds the GPU")
        killed_ns = time.monotonic_ns()
        holder.process.kill()
        launched = until_launched(waiting, killed_ns)
        gaps_ms.append((launched - killed_ns) / 1e6)
        scene.admin.remove_tenant(holder.name)

    assert min(gaps_ms) < 50, gaps_ms
    assert waiting.end() == 0


@pytest.mark.real_time
def test_an_arbiter_that_hangs_is_as_good_as_none(stage):
    """Beside an arbiter that is stopped tenants go on at their requests, and share as before once it goes on."""
    scene = stage()
    clients = [scene.client(name, 500).wait_ready() for name in ("a", "b")]
    scene.child.send_signal(signal.SIGSTOP)
    time.sleep(SILENT_S + LAST_GRANT_S)
    without = scene.shares(clients, 1.5)
    scene.child.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    again = scene.charged(clients, 1.5)

    assert min(without) > 0.15, without
    assert min(again) > 0.25, again
    assert [client.end() for client in clients] == [0, 0]
    assert [client.said for client in clients] == ["", ""]


def test_a_program_that_starts_without_an_arbiter_is_told_why(stage):
    """A program that finds no arbiter waits for it, and one line on its error stream says what is missing."""
    scene = stage()
    folder = scene.tenant("a", 500)
    scene.kill()
    argv = [
        sys.executable,
        "-m",
        "aliquot_lab.bench.client",
        "steady",
        "--progress",
        str(scene.directory / "a.progress"),
    ]
    client = scene.program(folder, argv, "a")

    eventually(lambda: client.said, "it says something")
    scene.start()
    client.wait_ready()

    assert 1 == client.said.count("\n")
    assert client.said.startswith("aliquot: no arbiter answers at")
    assert client.end() == 0

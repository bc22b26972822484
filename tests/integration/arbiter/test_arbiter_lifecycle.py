"""Starting, restarting, ending, and leaving nothing behind."""

import signal
import subprocess
import sys
import time

import pytest
from waiting import eventually, stop

from aliquot.arbiter.abi import ReserveFlag
from aliquot.arbiter.client import ArbiterClient, ArbiterError, TenantGpu, TenantRecord, Unanswered


def test_thousand_processes_register(arbiter):
    """A thousand processes of four tenants connect, say hello and attach."""
    for index in range(4):
        arbiter.tenant(f"t{index}", 200)
    for count in range(1000):
        arbiter.process(f"t{count % 4}")

    assert arbiter.admin.status().connections == 1000


def test_killed_arbiter_comes_back_with_tenants_and_debts(arbiter):
    """After kill -9 a new arbiter opens the same sockets, has a new boot id and remembers the charges."""
    before = arbiter.program("a")
    before.hold()
    time.sleep(0.7)
    charged = arbiter.seen("a").charged_ns
    arbiter.kill()
    arbiter.start()
    after = arbiter.process("a")

    assert after.boot_id != before.boot_id
    assert arbiter.seen("a").charged_ns >= charged - 300_000_000
    assert arbiter.seen("a").usage > 0
    assert after.reserve(10 << 20, flags=ReserveFlag.RESTORE) == 10 << 20
    after.hold()


def test_grant_outlives_a_killed_arbiter_until_its_deadline(arbiter):
    """The page of a dead arbiter stays valid in the tenant, with a deadline that ends it."""
    process = arbiter.program("a")
    process.hold()
    arbiter.kill()

    assert process.pages[0].valid
    assert process.pages[0].u64("deadline_ns") < time.monotonic_ns() + 1_000_000_000
    arbiter.start()


def test_torn_journal_line_is_skipped(arbiter):
    """Half a line at the end of the journal costs that line only."""
    process = arbiter.program("a")
    process.hold()
    time.sleep(0.6)
    arbiter.kill()
    with (arbiter.directory / "journal").open("ab") as journal:
        journal.write(b'12345678 ["torn')
    arbiter.start()

    assert arbiter.seen("a").charged_ns > 0


def test_end_in_order_unlinks_every_socket(start_arbiter):
    """After SIGTERM the exit status is 0 and no socket is left."""
    arbiter = start_arbiter()
    arbiter.tenant("a")
    arbiter.process("a").want()

    assert arbiter.stop() == 0
    assert not list(arbiter.directory.glob("*.sock"))


def test_closed_policy_closes_the_pages_at_the_end(start_arbiter):
    """Under `closed` an arbiter that ends takes running grants with it; under `pace` they run to their deadline."""
    for policy, stays in (("closed", False), ("pace", True)):
        arbiter = start_arbiter("--fail-policy", policy)
        process = arbiter.program("a")
        process.hold()
        arbiter.child.terminate()
        arbiter.child.wait(timeout=10)

        assert process.pages[0].valid is stays


def test_second_arbiter_in_a_directory_is_refused(arbiter):
    """A second arbiter says who is in the way and leaves the first one alone."""
    command = [sys.executable, "-m", "aliquot.arbiter", "--runtime-dir", str(arbiter.directory)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=20)

    assert second.returncode != 0
    assert "another arbiter" in second.stderr
    assert arbiter.admin.status().gpus == []


def test_removed_tenant_is_gone(arbiter):
    """Removing a tenant closes its connections and its socket."""
    record = arbiter.tenant("a")
    process = arbiter.process("a")
    arbiter.admin.remove_tenant("a")

    with pytest.raises(ConnectionError):
        while True:
            process.receive()
    assert not (arbiter.directory / "a.sock").exists()
    arbiter.admin.add_tenant(record)


@pytest.mark.parametrize("name", ["admin.sock", "status.sock", "a.sock"])
def test_a_socket_whose_name_is_removed_is_bound_again(arbiter, name):
    """Programs and tenants reach the arbiter again after the name of one of its sockets was removed."""
    arbiter.tenant("a")
    arbiter.process("a").reserve(1)
    arbiter.admin.close()
    (arbiter.directory / name).unlink()
    eventually((arbiter.directory / name).is_socket)

    assert 2 == len({arbiter.tenant("b").name, arbiter.seen("a").name})
    assert 1 == arbiter.process("a").reserve(1)


def test_status_socket_cannot_change_anything(arbiter):
    """A change asked on the read-only socket is refused with a sentence."""
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(arbiter.directory / "status.sock"))
        sock.sendall(b'{"op": "remove_tenant", "name": "a"}\n')
        assert b"read-only" in sock.recv(4096)


@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        (TenantGpu("GPU-nonsense", 300, 500, 100), "not the UUID"),
        (TenantGpu("GPU-00000000-0000-0000-0000-000000000001", 600, 500, 100), "request 600 and limit 500"),
    ],
)
def test_record_that_cannot_be_kept_is_refused(arbiter, gpu, sentence):
    """A bad record is answered with one sentence and leaves no socket."""
    with pytest.raises(ArbiterError, match=sentence):
        arbiter.admin.add_tenant(TenantRecord("bad", str(arbiter.directory / "bad.sock"), [gpu]))
    assert not (arbiter.directory / "bad.sock").exists()


def test_no_arbiter_is_said_clearly(tmp_path):
    """A client without an arbiter says where it looked."""
    with pytest.raises(ArbiterError, match="no arbiter at"):
        ArbiterClient(tmp_path).status()


def test_metrics_are_served(start_arbiter):
    """With a port given, Prometheus finds a line per GPU and tenant."""
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arbiter = start_arbiter("--metrics-port", str(port))
    arbiter.tenant("a")

    def scraped() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return f'aliquot_tenant_request_ratio{{gpu="{arbiter.gpu}",tenant="a"}} 0.3' in answer.read().decode()

    eventually(scraped)


def churn(arbiter, tenants: int) -> None:
    """Let many tenants come, hold the GPU, and go."""
    for index in range(tenants):
        name = f"churn{index}"
        arbiter.tenant(name)
        process = arbiter.process(name)
        process.hold()
        process.close()
        arbiter._open.clear()
        arbiter.admin.remove_tenant(name)


def test_nothing_is_left_behind_by_many_tenants(arbiter):
    """After thousands of tenants the arbiter has as many descriptors, pages and files as before."""
    churn(arbiter, 5)
    descriptors, files = arbiter.descriptors(), sorted(arbiter.directory.iterdir())
    churn(arbiter, 2000)

    assert arbiter.descriptors() == descriptors
    assert arbiter.mappings() == 0
    assert sorted(arbiter.directory.iterdir()) == files
    assert (arbiter.directory / "journal").stat().st_size < 2 << 20


def test_a_full_disk_costs_no_grant_and_is_told_once(start_arbiter):
    """Where the journal cannot be written, tenants run on; the event is told once, not at every try."""
    arbiter = start_arbiter()
    arbiter.kill()
    (arbiter.directory / "journal").unlink()
    (arbiter.directory / "journal").symlink_to("/dev/full")
    arbiter.start()
    process = arbiter.program("a")
    for _ in range(5):
        process.hold()
        process.give_back()
        time.sleep(0.3)
    told = [event["why"] for event in arbiter.admin.events() if event["kind"] == "journal-not-written"]

    assert ["No space left on device"] == [why.rpartition("] ")[2].partition(":")[0] for why in told]


def test_a_tenant_that_can_not_be_written_down_is_not_taken(arbiter):
    """It would be lost at a restart: the caller hears why, and nothing of it is left."""
    (arbiter.directory / "tenants.json.new").symlink_to("/dev/full")
    with pytest.raises(ArbiterError, match="no space left on device"):
        arbiter.tenant("a")

    assert not (arbiter.directory / "a.sock").exists()
    assert arbiter.tenant("a", request=500).name == "a"


def test_a_client_goes_on_after_an_arbiter_that_did_not_answer(arbiter):
    """A request that an arbiter did not answer in time is an error; the next one is answered by its own answer."""
    arbiter.tenant("a")
    client = ArbiterClient(arbiter.directory, timeout_s=1)
    assert 1 == len(client.status().gpus)
    stop(arbiter.child.pid)
    with pytest.raises(Unanswered, match="does not answer"):
        client.add_tenant(TenantRecord("b", str(arbiter.directory / "b.sock"), [TenantGpu(arbiter.gpu, 10, 1000, 10)]))
    with pytest.raises(Unanswered, match="does not answer"):
        client.status()
    arbiter.child.send_signal(signal.SIGCONT)

    assert ["a", "b"] == sorted(tenant.name for tenant in client.status().gpus[0].tenants)
    client.remove_tenant("b")
    client.close()

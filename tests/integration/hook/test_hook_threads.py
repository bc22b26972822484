"""The hook's own threads and keys in programs that leave little room for them."""

import pytest

from aliquot.arbiter.abi import MessageType


@pytest.fixture
def threads(built):
    """threads.c, built with so many bytes of static thread-local data."""
    return lambda tls=64: built("hook/programs/threads.c", f"-DTLS={tls}", "-rdynamic")


@pytest.mark.parametrize("kib", [64, 400, 600, 1 << 10, 20 << 10, 200 << 10])
def test_an_idle_token_goes_back_whatever_the_size_of_thread_local_data(tenant, threads, kib):
    """A program returns the token in a pause, however large the static thread-local data of its threads is."""
    scene = tenant(auto_grant=True)
    running = scene.start([threads(kib << 10), "idle"])
    running.read()
    returned = scene.arbiter.wait_for(MessageType.RETURN, timeout_s=20)
    running.go()

    assert (1, 0) == (returned.a, running.end())


def test_without_a_helper_thread_the_program_returns_the_token_when_it_waits(tenant, threads):
    """Where no thread of the hook can be started, a wait for work returns the token, and one line says why."""
    scene = tenant(auto_grant=True)
    running = scene.start([threads(), "refused", "thread"])
    running.read()
    first = scene.arbiter.wait_for(MessageType.RETURN)
    heard = len(scene.arbiter.heard)
    _, errors = running.process.communicate("go\n", timeout=20)
    second = scene.arbiter.wait_for(MessageType.RETURN, since=heard)

    assert (1, 2, 0) == (first.a, second.a, running.process.returncode)
    assert 1 == errors.count("\n")
    assert errors.startswith(f"aliquot: cannot start a thread in process {running.process.pid} (Resource temporarily ")


def test_the_keys_of_a_program_are_its_own(tenant, threads):
    """A program that has taken every thread-specific key finds its values under them, and its threads launch."""
    scene = tenant(auto_grant=True)
    running = scene.start([threads(), "keys"])
    facts = running.read()
    running.go()

    assert ({"kept": 1}, 0) == (facts, running.end())


REFUSED = {
    "fork": "watch for forks",
    "exit": "watch for the end of the program",
    "key": "watch for the ends of threads",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_system_refuses_the_hook_is_said_once(tenant, threads, kind):
    """Where the hook can register no handler the program launches and ends all the same, and one line says it."""
    scene = tenant(auto_grant=True)
    running = scene.start([threads(), "refused", kind])
    running.read()
    _, errors = running.process.communicate("go\n", timeout=20)

    assert (0, 1) == (running.process.returncode, errors.count("\n"))
    assert errors.startswith(f"aliquot: cannot {REFUSED[kind]} in process {running.process.pid} (")

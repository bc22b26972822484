"""An engine whose arbiter dies or hangs, that is killed, or that has something in its way."""

import os
import resource
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from waiting import eventually, stop

from .stage import Aliquot, Cluster, children_of, end, engine_pid, serving, sharepod


def test_an_arbiter_that_dies_comes_back_with_its_tenants(up: Cluster):
    """The engine starts a killed arbiter again, which knows the tenants of the one before."""
    up.apply(sharepod("a", "sleep 60"))
    (arbiter,) = children_of(engine_pid(up.command), "aliquot.arbiter")
    os.kill(arbiter, signal.SIGKILL)

    eventually(lambda: "default/a" in up.command("top").stdout, "the arbiter knows the tenant again")


def test_a_run_that_comes_between_two_arbiters_waits_for_the_next(up: Cluster):
    """Nobody is turned away because the arbiter was just killed."""
    for _ in range(5):
        (arbiter,) = eventually_one(up.command)
        os.kill(arbiter, signal.SIGKILL)
        done = up.command("run", "--gpu-request", ".2", "--", "true")
        assert (0, "") == (done.returncode, done.stderr)


def test_an_arbiter_that_hangs_is_replaced(up: Cluster):
    """The engine ends an arbiter that does not answer; a run that came meanwhile says that it waits, and starts."""
    up.apply(sharepod("a", "sleep 60"))
    (arbiter,) = eventually_one(up.command)
    stop(arbiter)

    done = up.command("run", "--gpu-request", ".2", "--", "true")

    assert 0 == done.returncode, done.stderr
    assert f"aliquot: the engine at {up.command.runtime} has not answered for 5 s; waiting\n" == done.stderr
    assert [arbiter] != eventually_one(up.command)
    assert "default/a" in up.command("top").stdout


def eventually_one(command: Aliquot) -> list[int]:
    """The arbiter of an engine, once it is there."""
    arbiters = lambda: children_of(engine_pid(command), "aliquot.arbiter")  # noqa: E731
    eventually(lambda: len(arbiters()) == 1, "there is one arbiter")
    return arbiters()


def test_an_engine_that_is_killed_takes_everything_along(aliquot_cli: Aliquot, tmp_path):
    """After kill -9 of the engine its arbiter and containers end, and the next engine starts with a clean ledger."""
    engine = aliquot_cli.start("up", "--emulate", "v100x2")
    eventually(lambda: aliquot_cli.engine_is_up, "the engine is up")
    Cluster(aliquot_cli, tmp_path).apply(sharepod("a", "exec sleep 300"))
    eventually(lambda: len(children_of(engine.pid, "sleep")) == 1, "the container runs")
    left = [*children_of(engine.pid, "aliquot.arbiter"), *children_of(engine.pid, "sleep")]
    end(engine, signal.SIGKILL)

    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "nothing of the engine is left")
    assert aliquot_cli.run("--", "true").returncode == 0


def test_what_a_killed_engine_had_is_named_by_the_next(aliquot_cli: Aliquot, tmp_path):
    """After kill -9 `up` and `get` name the SharePods that ended with the engine, until each is applied or deleted."""
    engine = aliquot_cli.start("up", "--emulate", "v100", "--no-web")
    eventually(lambda: aliquot_cli.engine_is_up, "the engine is up")
    first = Cluster(aliquot_cli, tmp_path)
    for name in ("web", "db"):
        first.apply(sharepod(name, "exec sleep 300"))
        first.wait_phase(name, "Running")
    end(engine, signal.SIGKILL)
    lost = "2 SharePods ended when an engine was killed: default/web (Running, killed before 20"

    with serving(aliquot_cli, "v100", "--no-web") as again:
        assert again.said[-2].startswith(lost)
        assert aliquot_cli("get").stderr.startswith(f"aliquot: {lost}")
        gone = 'sharepod "default/web" ended with its engine (Running, killed before 20'
        assert gone in aliquot_cli("logs", "web").stderr
        first.apply(sharepod("web", "exec sleep 300"))
        assert "1 SharePod ended" in aliquot_cli("get").stderr
        assert "sharepod/db deleted\n" == aliquot_cli("delete", "db").stdout
        assert "" == aliquot_cli("get").stderr


def test_a_second_engine_is_refused(up: Cluster):
    """One runtime directory has one engine."""
    done = up.command("up", "--emulate", "v100")

    assert (1, True) == (done.returncode, "an engine is up" in done.stderr)


def test_a_taken_port_is_told_before_anything_starts(aliquot_cli: Aliquot):
    """A port in use that was asked for ends `up` with one sentence, which names its holder and the option."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = aliquot_cli("up", "--emulate", "v100", "--port", str(port))

    name = Path("/proc/self/comm").read_text().strip()
    sentence = f"aliquot: --port {port} is taken by {name} (pid {os.getpid()}); choose another port with --port\n"
    assert (1, sentence) == (done.returncode, done.stderr)


def test_an_engine_out_of_descriptors_answers_again_when_some_are_free(up: Cluster):
    """Callers that hold connections without end delay the others; they do not make the engine deaf."""
    engine = engine_pid(up.command)
    hard = resource.prlimit(engine, resource.RLIMIT_NOFILE)[1]
    taken = len(list(Path(f"/proc/{engine}/fd").iterdir()))
    resource.prlimit(engine, resource.RLIMIT_NOFILE, (taken + 10, hard))
    callers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(30)]
    for caller in callers:
        caller.connect(str(up.command.runtime / "engine.sock"))
    eventually(lambda: len(list(Path(f"/proc/{engine}/fd").iterdir())) >= taken + 10, "no descriptor is left")
    time.sleep(0.5)
    for caller in callers:
        caller.close()

    assert 0 == up.command("get", "gpus").returncode


@pytest.mark.parametrize(
    "name",
    ["engine.log", "arbiter.lock", "journal", "tenants.json", "emulated", "tenants", "logs"],
)
def test_an_engine_says_what_stands_in_its_way(aliquot_cli: Aliquot, name: str):
    """A pipe under the name of a file or folder of the engine is named in one sentence, and nothing waits for it."""
    os.mkfifo(aliquot_cli.runtime / name)
    answer = aliquot_cli("up", "--emulate", "v100", "--no-web")
    (aliquot_cli.runtime / name).unlink()
    assert (1, 1) == (answer.returncode, answer.stderr.count("\n"))
    assert f"{aliquot_cli.runtime / name} is not a " in answer.stderr


def test_a_gpu_that_is_not_there_is_refused(aliquot_cli: Aliquot):
    """A list of GPUs of this machine with a name that none of them has is refused, with those there are."""
    answer = aliquot_cli("up", "--emulate", "v100x2", "--no-web", "--only-gpus", "0,7")
    assert (2, 1) == (answer.returncode, answer.stderr.count("\n"))
    assert '--only-gpus 0,7: there is no GPU "7"; there are 0 (' in answer.stderr


@pytest.mark.parametrize("option", ["--only-gpus", "--not-gpus"])
@pytest.mark.parametrize("names", ["", " , "])
def test_an_empty_list_of_gpus_is_refused(aliquot_cli: Aliquot, option: str, names: str):
    """A list that names no GPU, as an empty variable of a script makes it, is refused with the option's name."""
    answer = aliquot_cli("up", "--emulate", "v100x2", "--no-web", option, names)
    assert (2, 1) == (answer.returncode, answer.stderr.count("\n"))
    assert f"{option} is empty; name one, or leave the option out" in answer.stderr


def test_an_arbiter_that_missed_who_left_takes_the_next_of_that_name(up: Cluster):
    """A tenant that left while the arbiter was stopped is gone from it when it goes on, and its name is free."""
    up.apply(sharepod("a", "sleep 60", request=0.3))
    (arbiter,) = eventually_one(up.command)
    stop(arbiter)
    deleting = up.command.start("delete", "a")
    time.sleep(2)
    os.kill(arbiter, signal.SIGCONT)
    deleting.communicate()
    up.apply(sharepod("a", "sleep 60", request=0.5))

    assert "Running" == up.pod("a")["phase"]
    eventually(lambda: "0.50" in up.command("top").stdout, "the arbiter knows the new one")


def test_an_engine_whose_directory_was_removed_ends_with_its_last_program(aliquot_cli: Aliquot, tmp_path: Path):
    """It says so, lets what runs run to its end, and then ends, because no command reaches it any more."""
    began, end, done = tmp_path / "began", tmp_path / "end", tmp_path / "done"
    manifest = tmp_path / "pod.yaml"
    script = f"touch {began}; until test -e {end}; do sleep 0.1; done; touch {done}"
    manifest.write_text(sharepod("a", script, policy="OnFailure"))
    up = aliquot_cli.start("up", "--emulate", "v100", "--no-web", "-f", str(manifest))
    eventually(began.exists, "the program runs")
    removed = aliquot_cli.runtime.rename(tmp_path / "removed")  # at once: the engine writes into it meanwhile
    shutil.rmtree(removed, ignore_errors=True)
    assert up.stderr is not None
    said = up.stderr.readline()
    end.touch()
    up.communicate(timeout=30)

    assert (0, True) == (up.returncode, done.exists())
    assert f"{aliquot_cli.runtime} was removed: no command reaches this engine (pid {up.pid})" in said

"""`aliquot run` as a queue and with limits of its own, `up -d` and `down`."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import eventually

from .stage import Aliquot, Cluster, end, engine_of, first_line, sharepod


def tenants(command: Aliquot) -> list[str]:
    """The names of those that have a place."""
    return [tenant["name"] for tenant in command.facts("get", "tenants")]


def test_a_run_waits_in_order_and_starts_when_there_is_room(up: Cluster):
    """With --wait a run without room says why it waits, and runs as soon as another has ended."""
    first = up.command.start("run", "--gpu", "0", "--gpu-request", ".8", "--name", "first", "--", "sleep", "300")
    eventually(lambda: "first" in tenants(up.command), "the first run has its place")
    wait = ("run", "--wait", "--gpu", "0", "--gpu-request", ".8", "--name")
    second = up.command.start(*wait, "second", "--", "echo", "ran")
    assert second.stderr is not None
    said = second.stderr.readline()
    end(first)
    out, _ = second.communicate(timeout=30)

    assert said.startswith("aliquot: waits: GPU 0") and said.endswith("Ctrl-C leaves the queue\n")
    assert (0, "ran\n") == (second.returncode, out)


def test_ctrl_c_leaves_the_queue(up: Cluster):
    """A run that is interrupted while it waits takes no place later."""
    first = up.command.start("run", "--gpu", "0", "--name", "first", "--", "sleep", "300")
    eventually(lambda: "first" in tenants(up.command), "the first run has its place")
    second = up.command.start("run", "--wait", "--gpu", "0", "--name", "second", "--", "sleep", "300")
    assert second.stderr is not None and second.stderr.readline().startswith("aliquot: waits")
    _, err = end(second, signal.SIGINT)
    end(first)
    third = up.command("run", "--gpu", "0", "--", "true")

    assert (130, "", 0) == (second.returncode, err.strip(), third.returncode)


def test_what_never_fits_does_not_wait(up: Cluster):
    """A request that the machine never has is refused, also with --wait."""
    done = up.command("run", "--wait", "--gpus", "3", "--", "true")

    assert (2, "3.00 GPUs were asked, 2 can be given") == (done.returncode, done.stderr.split("; ")[0][9:])


def test_what_would_follow_no_recommendation_is_refused(up: Cluster):
    """An engine without a dashboard records nothing that a request could follow: one sentence, and exit 2."""
    done = [
        up.command("run", "--gpu-request", ".3", "--recommend", "auto", "--", "true"),
        up.command("share", "create", "s", "--gpu-request", ".3", "--recommend", "initial"),
        up.apply(sharepod("a", "true", notes={"aliquot.dev/recommend": "auto"})),
    ]
    sentence = "follows what a dashboard records; this engine has none: leave it out, or aliquot up"

    assert [(2, 1)] * 3 == [(each.returncode, each.stderr.count(f"{sentence}\n")) for each in done]


def test_a_run_is_ended_after_its_time(lasting: Aliquot):
    """--timeout ends the command and what it started, with status 124."""
    done = lasting.run("--timeout", "5s", "--", "sh", "-c", "sleep 300 & echo $!; wait")
    child = int(done.stdout)  # nothing, where the machine was so busy that the command had yet to begin

    assert 124 == done.returncode
    assert "has run for its --timeout and was sent SIGTERM" in done.stderr
    eventually(lambda: not Path(f"/proc/{child}").exists(), "the child has ended")


def test_a_run_within_its_time_ends_as_the_command(lasting: Aliquot):
    """A command that ends in time gives its own status."""
    assert 3 == lasting.run("--timeout", "10m", "--", "sh", "-c", "exit 3").returncode


def test_variables_and_the_folder_of_a_run(lasting: Aliquot, tmp_path):
    """--env beats --env-file, a name alone passes the variable on, and --cwd is where the command starts."""
    (tmp_path / "env").write_text("# colours\nA=file\n\nB=has = and spaces\n")
    flags = ("--env-file", str(tmp_path / "env"), "--env", "A=flag", "--env", "HOME", "--cwd", str(tmp_path))
    done = lasting.run(*flags, "--", "sh", "-c", 'echo "$A|$B"; pwd')

    assert f"flag|has = and spaces\n{tmp_path}\n" == done.stdout, done.stderr


def test_a_variable_that_is_not_set_is_named(lasting: Aliquot):
    """A name alone that has no value here is told in one sentence, and the command runs without it."""
    done = lasting.run("-e", "ALIQUOT_NOT_SET", "--", "sh", "-c", "echo ${ALIQUOT_NOT_SET-none}")

    assert (0, "none\n") == (done.returncode, done.stdout)
    assert "aliquot: --env ALIQUOT_NOT_SET is not set here; the command runs without it" in done.stderr


def test_visible_devices_of_ones_own(lasting: Aliquot):
    """--env CUDA_VISIBLE_DEVICES replaces the number of the GPU, and leaves the order of the numbers to the program."""
    own = "echo $CUDA_VISIBLE_DEVICES ${CUDA_DEVICE_ORDER-none}"
    done = lasting.run("--env", "CUDA_VISIBLE_DEVICES=GPU-0", "--", "sh", "-c", own)

    assert "GPU-0 none\n" == done.stdout, done.stderr


def test_the_callers_visible_devices_choose_no_gpu(up: Cluster):
    """CUDA_VISIBLE_DEVICES of the caller is not read, and a run says so, unless --gpu or --env names a GPU."""
    env = up.command.env | {"CUDA_VISIBLE_DEVICES": "1"}
    said = [
        up.command("run", *words, "--gpu-request", ".3", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", env=env)
        for words in ((), ("--gpu", "0"), ("--env", "CUDA_VISIBLE_DEVICES"))
    ]

    assert ["0\n", "0\n", "1\n"] == [each.stdout for each in said]
    line = "aliquot: CUDA_VISIBLE_DEVICES=1 is not read by aliquot run; name a GPU with --gpu 1\n"
    assert [line, "", ""] == [each.stderr for each in said]


def test_whole_gpus_by_number(aliquot_cli: Aliquot):
    """--gpus 2 is two whole GPUs."""
    done = aliquot_cli("run", "--emulate", "v100x2", "--gpus", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")

    assert "0,1\n" == done.stdout, done.stderr


def test_programs_read_their_gpu_as_a_number(aliquot_cli: Aliquot):
    """The number in CUDA_VISIBLE_DEVICES is the index of the GPU on the machine, and CUDA shows that GPU alone."""
    code = (
        "import ctypes, os; cuda = ctypes.CDLL('libcuda.so.1'); count, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()\n"
        "cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), cuda.cuDeviceGetUuid_v2(raw, 0)\n"
        "print(int(os.environ['CUDA_VISIBLE_DEVICES']), count.value, bytes(raw).hex())"
    )
    done = aliquot_cli("run", "--emulate", "v100x3", "--gpu", "2", "-v", "--", sys.executable, "-c", code)
    uuid = done.stderr.partition("GPU-")[2].partition(",")[0].replace("-", "")

    assert f"2 1 {uuid}\n" == done.stdout, done.stderr


def test_an_engine_in_the_background(aliquot_cli: Aliquot, tmp_path):
    """`up -d` returns when the engine is ready and names its log; `down` ends it and says what it ended."""
    (tmp_path / "a.yaml").write_text(sharepod("a", "sleep 300"))
    began = aliquot_cli("up", "-d", "--emulate", "v100", "--no-web", "-f", str(tmp_path / "a.yaml"))
    pods = aliquot_cli("get", "pods", "-o", "name").stdout
    ended = aliquot_cli("down")
    again = aliquot_cli("down")

    assert (0, True) == (began.returncode, str(aliquot_cli.runtime / "engine.log") in began.stdout), began.stderr
    assert "sharepod/a\n" == pods
    assert (0, True) == (ended.returncode, ended.stdout.rstrip().endswith("and 1 sharepod (a)")), ended.stdout
    assert not aliquot_cli.engine_is_up
    assert f"no engine is up at {aliquot_cli.runtime}; there is nothing to end\n" == again.stdout


def test_of_two_engines_that_start_in_the_background_at_once_one_is_refused(aliquot_cli: Aliquot):
    """The other one's being ready, which the log of both has, is not taken for its own."""
    words = ("up", "-d", "--emulate", "v100", "--no-web")
    both = [aliquot_cli.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [command.communicate() for command in both]
    aliquot_cli("down")

    assert [0, 1] == sorted(command.returncode for command in both), said
    assert 1 == sum(f"an engine is up at {aliquot_cli.runtime} already" in errors for _, errors in said)


def test_a_background_engine_that_cannot_start_says_why(aliquot_cli: Aliquot):
    """The sentence of the engine in the background is that of the command."""
    done = aliquot_cli("up", "-d", "--emulate", "voodoo2")

    assert (2, True) == (done.returncode, done.stderr.startswith("aliquot: no emulated GPU 'voodoo2'"))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_background_engine_ends_with_the_command_that_waits_for_it(aliquot_cli: Aliquot, number: int, status: int):
    """Ctrl-C of `up -d` before it is ready leaves no engine behind that nobody knows of."""
    words = ("up", "-d", "--emulate", "v100", "--no-web", "-f", "-")  # not ready before its input ends
    with aliquot_cli.start(*words, stdin=subprocess.PIPE) as command:
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        eventually(children.read_text, "the engine was started")
        engine = os.pidfd_open(int(children.read_text()))
        command.send_signal(number)
        ended = select.select([engine], [], [], 20)[0]
        os.close(engine)

    assert (status, True) == (command.returncode, bool(ended))


def test_down_gives_up_after_its_time(up: Cluster):
    """An engine that still ends its programs is named with its pid, and goes on ending them."""
    document = json.loads(sharepod("a", "trap '' TERM; echo ready; sleep 5"))
    up.apply(json.dumps(document))
    eventually(lambda: "ready" in up.command("logs", "a").stdout, "the program ignores SIGTERM")
    done = up.command("down", "--timeout", "200ms")

    assert (1, True) == (done.returncode, "has not ended within 0.2 s" in done.stderr)


def test_more_signals_do_not_change_how_an_engine_ends(aliquot_cli: Aliquot):
    """One that SIGTERM has told to end, ends with status 0, however often it is told."""
    process = aliquot_cli.start("up", "--emulate", "v100", "--no-web")
    while "ready" not in first_line(process):
        pass
    while process.poll() is None:
        process.terminate()
        time.sleep(0.0005)
    process.communicate()

    assert 0 == process.returncode


def test_a_service_manager_hears_that_the_engine_is_ready_lives_and_stops(aliquot_cli: Aliquot, tmp_path: Path):
    """`aliquot up` says so on NOTIFY_SOCKET, once each but that it lives."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        aliquot_cli.env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        with engine_of(aliquot_cli, "v100", "--no-web"):
            said = [manager.recv(100) for _ in range(3)]
        while said[-1] != b"STOPPING=1":
            said.append(manager.recv(100))

    assert [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"] == said[:3]
    assert {b"WATCHDOG=1"} == {*said[1:-1]}

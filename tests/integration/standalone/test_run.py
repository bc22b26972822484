"""`aliquot run`: the command it runs is as it would be without, but for its part of a GPU."""

import os
import pty
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rights import rooms
from waiting import eventually

from aliquot.driver import emulation
from aliquot.driver.native import HOOK, native_part

from .stage import Aliquot, end, first_line

MODES = ("substitute", "library-path", "preload")
CLIENT = """
from cuda.bindings import driver as cuda
def ok(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
ok(cuda.cuInit(0))
device = ok(cuda.cuDeviceGet(0))
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(device))))
print(ok(cuda.cuDeviceTotalMem(device)) >> 20, int(cuda.cuMemAlloc(1 << 20)[0]), int(cuda.cuMemAlloc(3 << 30)[0]))
"""


@pytest.mark.parametrize(("command", "status"), [(["true"], 0), (["false"], 1), (["sh", "-c", "exit 42"], 42)])
def test_the_exit_status_is_the_commands(lasting: Aliquot, command, status):
    """A run ends with the status of its command."""
    assert lasting.run("--", *command).returncode == status


def test_a_command_ended_by_a_signal_gives_128_and_the_signal(aliquot_cli: Aliquot):
    """A command that a signal ended gives the status that a shell would."""
    assert aliquot_cli.run("--", "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(("command", "status"), [("/no/such/program", 127), ("", 127), ("/etc/passwd", 126)])
def test_a_command_that_can_not_start_is_said_as_a_shell_does(lasting: Aliquot, command, status):
    """A missing command is 127, one that may not be run 126, each with a sentence."""
    done = lasting.run("--", command)

    assert (status, True) == (done.returncode, f'cannot start "{command}"' in done.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(aliquot_cli: Aliquot, number):
    """A signal sent to the run is the command's to handle, and its status is the run's."""
    script = f"trap 'exit 33' {number - 0}; echo ready; while :; do sleep 0.05; done"
    process = aliquot_cli.start("run", "--emulate", "v100", "--", "sh", "-c", script)
    assert "ready\n" == first_line(process)
    end(process, number)

    assert process.returncode == 33


COUNTS = """
import signal, time
came = []
signal.signal({number}, lambda *_: came.append(time.monotonic()))
print("ready", flush=True)
while not came or time.monotonic() < came[0] + 0.5:
    time.sleep(0.01)
print(len(came), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_signal_reaches_the_command_once(aliquot_cli: Aliquot, number, send):
    """Whether it was sent to the run alone, as by a supervisor, or to its group, as by Jupyter; so does the next."""
    script = COUNTS.format(number=int(number)) * 2
    process = aliquot_cli.start("run", "--emulate", "v100", "--", sys.executable, "-c", script, start_new_session=True)
    assert process.stdout is not None

    for _ in range(2):
        assert "ready\n" == process.stdout.readline()
        send(process.pid, number)
        assert "1\n" == process.stdout.readline()
    assert 0 == process.wait(timeout=20)


def test_too_low_a_limit_of_open_files_is_said_before_the_command_starts(aliquot_cli: Aliquot):
    """An arbiter to which no program could connect does not start."""
    lower = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731
    done = aliquot_cli.run("--", "echo", "started", preexec_fn=lower)

    assert (1, "") == (done.returncode, done.stdout)
    assert "the limit of open files, 64, is below 96; raise it: ulimit -n" in done.stderr


def test_a_signal_to_all_that_are_called_so_ends_the_command(aliquot_cli: Aliquot):
    """As by `pkill -f "aliquot.cli run"`: the command is called otherwise, so it is ended by the run."""
    process = aliquot_cli.start("run", "--emulate", "v100", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (process.pid, *children)}
    for pid in [pid for pid, line in lines.items() if b"aliquot.cli\0run" in line]:
        os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=20)

    assert 128 + signal.SIGTERM == process.returncode


def test_a_terminal_that_closes_ends_the_run_that_leads_its_session(aliquot_cli: Aliquot):
    """As with `ssh -t host aliquot run`: only the run is sent SIGHUP then, and the command gets it from the run."""
    command = [
        sys.executable,
        "-m",
        "aliquot.cli",
        "run",
        "--emulate",
        "v100",
        "--",
        "sh",
        "-c",
        "echo $$; exec sleep 60",
    ]
    pid, master = pty.fork()
    if pid == 0:
        os.execve(command[0], command, aliquot_cli.env)
    its = int(os.read(master, 100))
    os.close(master)
    try:
        eventually(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), "the run ends", 20)
    finally:
        os.kill(pid, signal.SIGKILL)  # where it has ended already: nothing

    assert 128 + signal.SIGHUP == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert not Path(f"/proc/{its}").exists()


def test_streams_arguments_and_directory_are_the_commands(lasting: Aliquot, tmp_path):
    """Stdin, stdout, stderr, arguments with odd characters and the working directory pass unchanged."""
    done = subprocess.run(
        [sys.executable, "-m", "aliquot.cli", "run", "--emulate", "v100", "--", "sh", "-c",
         'cat; pwd; printf "%s|" "$@" >&2', "sh", "a b", "--x", "é"],
        input="given\n", capture_output=True, text=True, cwd=tmp_path, env=lasting.env, timeout=60,
    )  # fmt: skip

    assert (f"given\n{tmp_path}\n", "a b|--x|é|") == (done.stdout, done.stderr)


def test_a_program_without_cuda_sees_nothing_new_but_its_gpu(aliquot_cli: Aliquot):
    """By substitution the environment gains CUDA's two variables and a folder at the end of PATH; signals are kept."""
    code = "import os,signal; print(dict(os.environ)); print(signal.pthread_sigmask(0, []))"
    plain = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=aliquot_cli.env, check=True
    ).stdout.splitlines()
    under = aliquot_cli.run("--inject", "substitute", "--", sys.executable, "-c", code).stdout.splitlines()
    added = dict(eval(under[0]).items() - eval(plain[0]).items())

    assert ({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PATH"}, plain[1]) == (set(added), under[1])
    assert f"{aliquot_cli.env['PATH']}:{aliquot_cli.runtime}/emulated/bin" == added["PATH"]
    assert ("0", "PCI_BUS_ID") == (added["CUDA_VISIBLE_DEVICES"], added["CUDA_DEVICE_ORDER"])


def test_the_engine_ends_with_its_last_run(aliquot_cli: Aliquot):
    """An engine that a run started is gone after it, with its sockets and the tenant's folder."""
    aliquot_cli.run("--", "true")

    aliquot_cli.wait_gone()


def test_runs_share_one_engine(aliquot_cli: Aliquot):
    """Runs that overlap are tenants of one engine, and the sum of their requests is at most one GPU."""
    first = aliquot_cli.start("run", "--emulate", "v100", "--gpu-request", ".7", "--", "sh", "-c", "echo up; sleep 20")
    assert "up\n" == first_line(first)
    second = aliquot_cli.run("--gpu-request", ".3", "--", "true")
    third = aliquot_cli.run("--gpu-request", ".4", "--", "true")
    end(first)

    assert (0, 1) == (second.returncode, third.returncode)
    assert "GPU 0 has 0.30 free, 0.40 were asked" in third.stderr


def test_a_runner_that_is_killed_leaves_nothing(aliquot_cli: Aliquot, tmp_path):
    """After kill -9 of the run, the command ends, its place is free and the engine goes."""
    note = tmp_path / "pid"
    process = aliquot_cli.start("run", "--emulate", "v100", "--", "sh", "-c", f"echo $$ > {note}; exec sleep 60")
    eventually(lambda: note.exists() and note.read_text().strip() != "", "the command has started")
    end(process, signal.SIGKILL)

    eventually(lambda: not Path(f"/proc/{note.read_text().strip()}").exists(), "the command has ended")
    aliquot_cli.wait_gone()


@pytest.mark.parametrize("mode", MODES)
def test_an_unmodified_cuda_program_sees_its_memory(lasting: Aliquot, mode):
    """A cuda-bindings program sees its own total, gets what fits and OUT_OF_MEMORY for what does not, in each mode."""
    pytest.importorskip("cuda.bindings")
    done = lasting.run("--gpu-mem", "2Gi", "--inject", mode, "--", sys.executable, "-c", CLIENT)

    assert ("2048 0 2\n", 0) == (done.stdout, done.returncode), done.stderr


def test_substitution_survives_an_empty_environment(lasting: Aliquot):
    """A program started with `env -i` is still held to its memory."""
    pytest.importorskip("cuda.bindings")
    done = lasting.run(
        "--gpu-mem", "2Gi", "--inject", "substitute", "--", "env", "-i", sys.executable, "-c", CLIENT
    )  # fmt: skip

    assert ("2048 0 2\n", 0) == (done.stdout, done.returncode), done.stderr


@rooms
def test_an_installed_driver_is_covered_and_reached_from_behind(aliquot_cli: Aliquot, tmp_path):
    """Where a driver is installed, a tenant finds ours in its place, and ours finds the driver by absolute path."""
    driver = emulation.prepare(tmp_path / "driver", "v100")
    code = (
        "import os; from pathlib import Path\n"
        "conf = Path(os.environ['ALIQUOT_RUNTIME_DIR'], 'tenants/1/tenant.conf').read_text()\n"
        "behind = dict(line.split('=', 1) for line in conf.splitlines())\n"
        f"places = [Path({str(driver.libcuda)!r}), Path(behind['libcuda']), Path(behind['libnvml'])]\n"
        "print([b'ALIQUOT-CONF:/' in place.read_bytes() for place in places])"
    )
    installed = "/run/opengl-driver"
    script = f'mount -t tmpfs none /run && mkdir {installed} && ln -s "$0" {installed}/lib && exec "$@"'
    command = [
        sys.executable,
        "-m",
        "aliquot.cli",
        "run",
        "-v",
        "--gpu-request",
        "0.5",
        "--inject",
        "substitute",
        "--",
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, str(driver.directory), *command],
        capture_output=True, text=True, env=aliquot_cli.env, timeout=60, check=False,
    )  # fmt: skip

    assert ("[True, False, False]\n", 0) == (done.stdout, done.returncode), done.stderr


@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_verbose_says_which_way_in_was_taken(lasting: Aliquot, mode):
    """With -v the run names the injection on stderr."""
    done = lasting.run("-v", "--gpu-request", "0.5", "--inject", mode, "--", "true")

    assert "injection by " + ("" if mode == "auto" else mode) in done.stderr


def test_more_memory_than_the_device_is_a_mistake(lasting: Aliquot):
    """Memory beyond the device ends with status 2 and both sizes."""
    done = lasting.run("--gpu-mem", "64Gi", "--", "true")

    assert (2, True) == (done.returncode, "64.0 GiB of GPU memory were asked, GPU 0 has 16.0 GiB" in done.stderr)


def test_many_runs_at_once_all_get_their_place(aliquot_cli: Aliquot):
    """Runs that start together agree on one engine."""
    runs = [aliquot_cli.start("run", "--emulate", "v100", "--gpu-request", ".1", "--", "true") for _ in range(6)]
    results = [(run.communicate(timeout=60)[1], run.returncode) for run in runs]

    assert results == [("", 0)] * 6


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_another_user_substitutes_in_a_user_namespace_or_says_why_not(aliquot_cli: Aliquot):
    """An ordinary user gets a working run without any right, in the best way that the kernel allows."""
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    env = aliquot_cli.env | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
    env["ALIQUOT_NATIVE_DIR"] = str(native_part(HOOK).parent)  # an editable install's finder is not on PYTHONPATH
    somebody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python]
    probe = [*somebody, "-c", "import msgspec, click, yaml, cuda.bindings.driver"]
    if not Path(python).exists() or subprocess.run(probe, env=env, capture_output=True, check=False).returncode != 0:
        pytest.skip("another user cannot reach a Python with this one's packages")
    os.chown(aliquot_cli.runtime, 65534, 65534)
    run = ["run", "--emulate", "v100", "--gpu-mem", "2Gi", "-v", "--", python, "-c", CLIENT]
    done = subprocess.run(
        [*somebody, "-m", "aliquot.cli", *run],
        capture_output=True,
        text=True,
        env=env,
        cwd="/",
        timeout=60,
        check=False,
    )

    assert ("2048 0 2\n", 0) == (done.stdout, done.returncode), done.stderr
    assert "injection by " in done.stderr


def test_cpu_bind_holds_the_program_on_so_many_cores(lasting: Aliquot):
    """`--cpu-bind 1` keeps a CUDA program on one core of those it may use; without CUDA nothing is bound."""
    look = "import os; cores = sorted(os.sched_getaffinity(0))\n"
    done = lasting.run("--cpu-bind", "1", "--", sys.executable, "-c", look + CLIENT + look + "print(cores)")
    plain = lasting.run("--cpu-bind", "1", "--", sys.executable, "-c", look + "print(cores)")
    allowed = sorted(os.sched_getaffinity(0))

    assert done.stdout.splitlines()[-1] == str(allowed[:1]), done.stderr
    assert plain.stdout.splitlines()[-1] == str(allowed), plain.stderr

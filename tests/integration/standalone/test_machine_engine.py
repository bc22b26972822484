"""The engine of the machine: programs of several accounts, which share GPUs and nothing else."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import engine_lives, eventually

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.driver.native import HOOK, native_part

from .stage import SOURCES, Aliquot, end, first_line, sharepod

WINDOW_S = 5.0
ANN, BOB = 61001, 61002
"""Accounts without names: nothing is written into the machine's list of accounts."""

WORKER = Path(__file__).with_name("programs") / "worker.py"
PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"
"""One that every account can start, with this one's packages."""

PATHS = os.pathsep.join([str(SOURCES), *(path for path in sys.path if path and not path.startswith(sys.base_prefix))])


def become(uid: int) -> list[str]:
    """The command before another that makes it an account's."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []


def accounts_cannot_start() -> bool:
    """Whether programs of several accounts cannot be started here; tried, not guessed."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not Path(PYTHON).exists():
        return True
    probe = [*become(ANN), PYTHON, "-c", "import msgspec, click, yaml"]
    return bool(subprocess.run(probe, env=os.environ | {"PYTHONPATH": PATHS}, capture_output=True).returncode)


pytestmark = pytest.mark.skipif(
    accounts_cannot_start(), reason="needs root, setpriv, and a Python with the packages that every account can start"
)


class Person(Aliquot):
    """The command as an account runs it, which finds the engine of the machine by itself."""

    def __init__(self, machine: Path, uid: int) -> None:
        super().__init__(machine)
        self.uid = uid
        self.home = machine.parent / f"home-{uid}"
        self.home.mkdir(exist_ok=True)
        os.chown(self.home, uid, uid)
        del self.env["ALIQUOT_RUNTIME_DIR"]
        self.env |= {"ALIQUOT_MACHINE_DIR": str(machine), "HOME": str(self.home), "PYTHONPATH": PATHS}
        self.env |= {"ALIQUOT_NATIVE_DIR": str(native_part(HOOK).parent), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *words: str, **options) -> subprocess.Popen[str]:
        """A command of this account."""
        return self.program(PYTHON, "-m", "aliquot.cli", *words, **options)

    def program(self, *argv: str, **options) -> subprocess.Popen[str]:
        """Any program of this account."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.home}
        return subprocess.Popen([*become(self.uid), *argv], text=True, **({"env": self.env} | streams | options))

    def outcome(self, *argv: str) -> int:
        """How an attempt ends."""
        process = self.program(*argv)
        process.communicate(timeout=60)
        return process.returncode


class Machine:
    """Root, who serves the machine, and two accounts."""

    def __init__(self, folder: Path) -> None:
        self.runtime = folder / "run"
        self.root, self.ann, self.bob = (Person(self.runtime, uid) for uid in (0, ANN, BOB))
        self.words = ["up", "--system", "--emulate", "v100x2", "--no-web", "--window", "2"]
        self.words += ["--state-dir", str(folder / "state")]
        self.process: subprocess.Popen[str] | None = None

    def up(self, *words: str) -> None:
        """Start the engine, or the next one."""
        self.process = self.root.start(*self.words, *words)
        assert self.process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("ready"):
            lines.append(self.process.stdout.readline())
            assert lines[-1], (self.process.stderr.read() if self.process.stderr else "", lines)

    def end(self, number: int) -> None:
        """End the engine itself by a signal."""
        assert self.process is not None
        end(self.process, number)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """The engine of a machine with two emulated V100."""
    folder = Path(tempfile.mkdtemp(prefix="alq-", dir="/tmp"))
    folder.chmod(0o755)
    machine = Machine(folder)
    machine.up()
    try:
        yield machine
    finally:
        if machine.process is not None and machine.process.poll() is None:
            machine.end(signal.SIGINT)
        eventually(lambda: not engine_lives(machine.runtime), "the engine has written its last")
        shutil.rmtree(folder)


def tenants(person: Aliquot) -> set[str]:
    """The names of all tenants."""
    return set(person("get", "tenants", "-o", "name").stdout.split())


def test_accounts_run_programs_without_a_flag(machine: Machine):
    """A run of any account gets a share of the machine's engine, is named after the account, and is seen by all."""
    run = machine.ann.start("run", "--gpu-request", ".3", "--name", "train", "--", "sleep", "300")
    eventually(lambda: tenants(machine.bob) == {f"tenant/{ANN}/train"}, "bob sees the run of ann")
    own = machine.bob("top", "--once")
    end(run, signal.SIGINT)

    assert f"{ANN}/train" in own.stdout
    eventually(lambda: tenants(machine.bob) == set(), "the share is free")


def test_runs_go_on_under_the_next_engine(machine: Machine):
    """An engine that is killed and started again has the runs of all accounts with their shares, and they go on."""
    count = "i=0; while :; do i=$((i+1)); echo $i > count; sleep .1; done"
    run = machine.ann.start("run", "--gpu-request", ".3", "--name", "train", "--", "sh", "-c", count)
    eventually(lambda: (machine.ann.home / "count").exists(), "it runs")
    before = machine.root("get", "tenants", "-o", "json").stdout
    machine.end(signal.SIGKILL)
    private = machine.root("up", "--emulate", "v100x2", "--no-web")
    machine.up()
    after = machine.root("get", "tenants", "-o", "json").stdout
    seen = (machine.ann.home / "count").read_text()
    eventually(lambda: (machine.ann.home / "count").read_text() not in ("", seen), "it goes on")
    still = run.poll()
    _, said = end(run)

    assert (before, None, "") == (after, still, said)
    assert (1, True) == (private.returncode, "start it again: aliquot up --system" in private.stderr)
    eventually(lambda: tenants(machine.bob) == set(), "the share is free")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_shares_and_runs_in_containers_go_on_under_the_next_engine(machine: Machine, number: int):
    """They keep their part, device and owner whatever ended the engine; podman is played, by a shell."""
    podman = machine.ann.home / "podman"
    podman.write_text("#!/bin/sh\necho runs; exec sleep 300\n")
    podman.chmod(0o755)
    machine.ann.env["PATH"] = f"{machine.ann.home}:{machine.ann.env['PATH']}"
    made = machine.ann("share", "create", "nb", "--gpu-request", ".2", "--gpu-mem", "1Gi")
    other = machine.bob("share", "create", "gone", "--gpu-request", ".1")
    machine.bob("share", "delete", "gone")
    run = machine.ann.start("run", "--gpu-request", ".3", "--name", "r", "--container", "podman", "--", "IMAGE")
    assert "runs\n" == first_line(run), run.communicate(timeout=60)
    device = machine.runtime / "cdi" / f"aliquot.dev-share_nb.{ANN}.json"
    before = shares(machine.root.facts("get", "tenants")), device.read_text()
    options = machine.ann("share", "options", "nb").stdout
    machine.end(number)
    between = device.exists()
    machine.up()
    after = shares(machine.root.facts("get", "tenants")), device.read_text()
    listed = [share["tenant"]["name"] for share in machine.ann.facts("share", "list")]
    refused = machine.bob("share", "delete", f"{ANN}/nb")
    again = machine.ann("share", "options", "nb").stdout
    still = run.poll()
    deleted = machine.ann("share", "delete", "nb")
    end(run)

    assert (0, 0, {f"{ANN}/nb", f"{ANN}/r"}) == (made.returncode, other.returncode, before[0].keys()), made.stderr
    assert (before, options, True, None) == (after, again, between, still)
    assert ([f"{ANN}/nb"], 2) == (listed, refused.returncode)
    assert (0, False) == (deleted.returncode, device.exists()), deleted.stderr
    eventually(lambda: tenants(machine.bob) == set(), "all is free")


def test_a_resized_run_has_its_share_under_the_next_engine(machine: Machine):
    """Its owner resizes it by its own name; an engine that is killed right after is followed by one with that share."""
    run = machine.ann.start("run", "--gpu-request", ".3", "--name", "train", "--", "sleep", "300")
    eventually(lambda: tenants(machine.ann) == {f"tenant/{ANN}/train"}, "the run has its share")
    done = machine.ann("resize", "train", "--gpu-request", ".5", "--gpu-limit", ".8", "--gpu-mem", "2Gi")
    machine.end(signal.SIGKILL)
    machine.up()
    (after,) = machine.root.facts("get", "tenants")
    again = machine.ann("resize", "train", "--gpu-request", ".4")
    still = run.poll()
    end(run)

    assert done.stdout.startswith(f"run/{ANN}/train resized: request 0.30 -> 0.50, limit 1.00 -> 0.80"), done.stderr
    assert (500, 800, 2048) == tuple(after["slices"][0][key] for key in ("request_milli", "limit_milli", "memory_mib"))
    assert ("request 0.50 -> 0.40" in again.stdout, None) == (True, still), again.stderr
    eventually(lambda: tenants(machine.bob) == set(), "the share is free")


ATTEMPTS = """
import json, os, signal, socket, sys
from aliquot.standalone import wire
from aliquot.standalone.client import EngineRefused, ask
from aliquot.standalone.paths import RuntimeDir, machine_dir

ann, run, pod = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
runtime, outcomes = RuntimeDir(machine_dir()), {}


def attempt(what, work):
    try:
        outcomes[what] = repr(work())
    except (EngineRefused, OSError) as error:
        outcomes[what] = "refused" if isinstance(error, EngineRefused) else type(error).__name__


def connect(path, kind):
    with socket.socket(socket.AF_UNIX, kind) as unix:
        unix.connect(str(path))


def call(verb):
    return lambda: ask(runtime, verb)


nb, train, tenant = f"{ann}/nb", f"{ann}/train", runtime.tenants / "1"
manifest = sys.stdin.read()
for what, work in {
    "its logs": call(wire.LogsCall(nb)),
    "a program in its SharePod": call(wire.ExecCall(nb, "none")),
    "a program in its run": call(wire.ExecCall("none", train)),
    "to delete its SharePod": call(wire.DeleteCall(nb)),
    "to end its SharePod": call(wire.EndCall(nb)),
    "to end its run": call(wire.EndCall(train)),
    "to change its SharePod": call(wire.ApplyCall(manifest, True)),
    "to resize its SharePod": call(wire.ResizeCall(nb, "none", 100)),
    "to resize its run": call(wire.ResizeCall("none", train, 100)),
    "to take over its run": call(wire.ResumeCall(train)),
    "to kill its run": lambda: os.kill(run, signal.SIGKILL),
    "to kill its SharePod": lambda: os.kill(pod, signal.SIGKILL),
    "its SharePod's environment": lambda: open(f"/proc/{pod}/environ").read(),
    "its run's environment": lambda: open(f"/proc/{run}/environ").read(),
    "to connect to its tenant": lambda: connect(tenant / "socket", socket.SOCK_SEQPACKET),
    "to change its tenant's settings": lambda: (tenant / "tenant.conf").write_text(""),
    "to make a file in its tenant's folder": lambda: (tenant / "new").write_text(""),
    "to list the tenants' folders": lambda: os.listdir(runtime.tenants),
    "to list its logs": lambda: os.listdir(runtime.logs),
    "the engine's records": lambda: runtime.runs.read_text(),
    "to replace the engine's socket": lambda: runtime.engine_socket.unlink(),
    "the arbiter's admin socket": lambda: connect(runtime.root / "admin.sock", socket.SOCK_STREAM),
    "the arbiter's status socket": lambda: connect(runtime.root / "status.sock", socket.SOCK_STREAM),
}.items():
    attempt(what, work)
(seen,) = ask(runtime, wire.PodsCall(nb)).pods
outcomes["what it sees of the SharePod"] = [seen.manifest, seen.events, seen.containers[0].command]
outcomes["whose commands it sees"] = sorted(ask(runtime, wire.RunningCall()).processes)
print(json.dumps(outcomes))
"""


def test_what_one_account_does_to_the_programs_of_another_has_no_effect(machine: Machine):
    """Reading logs and environment, changing and ending are refused; the program of the other runs on untouched."""
    run = machine.ann.start("run", "--gpu-request", ".3", "--name", "train", "--", "sleep", "300")
    eventually(lambda: f"tenant/{ANN}/train" in tenants(machine.ann), "the run has its share")
    text = sharepod("nb", "echo $$; exec sleep 300")
    (machine.ann.home / "nb.yaml").write_text(text)
    applied = machine.ann("apply", "nb.yaml")
    eventually(lambda: machine.ann("logs", "nb").stdout.strip().isdigit(), "the SharePod runs")
    pid = machine.ann("logs", "nb").stdout.strip()
    taking = text.replace('"name": "nb"', f'"name": "nb", "namespace": "{ANN}"').replace("300", "1")
    trying = machine.bob.program(PYTHON, "-c", ATTEMPTS, str(ANN), str(run.pid), pid, stdin=subprocess.PIPE)
    said, errors = trying.communicate(taking, timeout=60)
    outcomes = json.loads(said or "{}")
    after = tenants(machine.ann)
    deleted = machine.ann("delete", "nb")
    end(run)

    assert (0, "") == (trying.returncode, errors)
    assert [None, [], []] == outcomes.pop("what it sees of the SharePod")
    assert [] == outcomes.pop("whose commands it sees")
    assert set(outcomes.values()) <= {"refused", "PermissionError", "ProcessLookupError"}, outcomes
    assert {f"tenant/{ANN}/train", f"tenant/{ANN}/nb"} == after
    assert ("sharepod/nb created\n", "sharepod/nb deleted\n") == (applied.stdout, deleted.stdout)


WHO = "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; env | sort | cut -d= -f1 | tr '\\n' ' '; exec sleep 300"


def test_the_sharepod_of_an_account_runs_as_that_account(machine: Machine):
    """Its program has the account's number and groups, can gain no rights, and sees nothing of root's environment."""
    machine.root.env["SECRET"] = "of root"
    (machine.ann.home / "who.yaml").write_text(sharepod("who", WHO))
    machine.ann("apply", "who.yaml")
    eventually(lambda: "HOME" in machine.ann("logs", "who").stdout, "it has said who it is")
    uid, gid, groups, privileges, variables = machine.ann("logs", "who").stdout.splitlines()[:5]
    described = machine.ann.facts("describe", "who")
    inside = machine.ann("exec", "who", "--", "id", "-u")
    elsewhere = sharepod("x", "true").replace('"name": "x"', '"name": "x", "namespace": "team"')
    (machine.ann.home / "x.yaml").write_text(elsewhere)
    refused = machine.ann("apply", "x.yaml")

    assert (str(ANN), str(ANN)) == (uid, gid)
    assert {str(ANN)} == set(groups.split())
    assert "1" == privileges.split()[1]
    assert "SECRET" not in variables.split() and {"HOME", "USER", "PATH"} <= set(variables.split())
    assert (f"{ANN}/who", f"{ANN}\n") == (described["name"], inside.stdout)
    assert 'the namespace "team" is not yours; without one it is in' in refused.stderr


@pytest.mark.real_time
@pytest.mark.timeout(240)
def test_sixteen_runs_have_their_shares_one_window_after_a_restart(machine: Machine):
    """A kill and a stop of the engine cost no program an error; after a window each gets what it is due of the next."""
    machine.end(signal.SIGINT)
    machine.up("--window", str(WINDOW_S))
    programs = [
        person.start(
            "run", "--gpu-request", ".1", "--gpu-mem", "800Mi", "--name", f"r{number}", "--",
            PYTHON, str(WORKER), f"beats{number}", "16",
        )
        for person in (machine.ann, machine.bob) for number in range(8)
    ]  # fmt: skip
    files = [person.home / f"beats{number}" for person in (machine.ann, machine.bob) for number in range(8)]
    eventually(lambda: all(beats(file) for file in files), "all compute", timeout_s=90)
    before = machine.root.facts("get", "tenants")
    errors = []
    for number in (signal.SIGKILL, signal.SIGTERM):
        machine.end(number)
        machine.up("--window", str(WINDOW_S))
        seen = [beats(file) for file in files]
        eventually(lambda seen=seen: all(beats(f) > n for f, n in zip(files, seen, strict=True)), "all go on", 90)
        time.sleep(WINDOW_S)
        errors.append(max_share_error(machine.runtime))
        after = machine.root.facts("get", "tenants")
        assert shares(before) == shares(after)
    still = [program.poll() for program in programs]
    ended = machine.root("down")
    codes = {program.wait(timeout=60) for program in programs}
    for program in programs:
        program.communicate()
    print(f"the largest errors of a share: {errors}")

    assert (16, [None] * 16) == (len(before), still)
    assert max(errors) < 0.01, errors
    assert 0 == ended.returncode and "16 runs" in ended.stdout, ended.stderr
    assert {128 + signal.SIGTERM} == codes


def test_a_quota_is_told_to_who_meets_it(machine: Machine):
    """A run beyond the account's quota is refused in one sentence with what would fit; another account is not."""
    (machine.root.home / "quota.yaml").write_text(f'accounts: {{"{ANN}": {{limits: [{{gpus: 500m}}]}}}}')
    machine.end(signal.SIGINT)
    machine.up("--quota", "quota.yaml")
    holding = machine.ann.start("run", "--gpu-request", ".3", "--name", "r", "--", "sleep", "300")
    eventually(lambda: len(tenants(machine.ann)) == 1, "ann holds a share")
    more = machine.ann("run", "--gpu-request", ".3", "--", "true")
    grown = machine.ann("resize", "r", "--gpu-request", ".6")
    other = machine.bob("run", "--gpu-request", ".6", "--", "true")
    full = machine.bob.start("run", "--gpu-request", "1.6", "--", "sleep", "300")
    eventually(lambda: len(tenants(machine.bob)) == 2, "bob holds what is left but for a tenth")
    both = machine.ann("run", "--gpu-request", ".3", "--", "true")
    explained = machine.ann("explain", "--gpu-request", ".3")
    end(full)
    end(holding)

    held = f'account "{ANN}" holds 0.30 GPUs of 0.50 it may have, 0.30 more were asked; 0.20 more would fit'
    assert (1, f"aliquot: {held}. See who holds it: aliquot get tenants\n") == (more.returncode, more.stderr)
    assert (2, True) == (grown.returncode, f'account "{ANN}" holds 0.30 GPUs of 0.50' in grown.stderr), grown.stderr
    assert (0, "") == (other.returncode, other.stderr)
    full, hint = "needs 0.30 of a GPU, at most 0.10 is free (GPU 0)", "See who holds it: aliquot get tenants"
    assert (1, f"aliquot: {full}; and {held}. {hint}\n") == (both.returncode, both.stderr)
    assert held in explained.stdout and full in explained.stdout


def test_the_engine_of_a_group_lets_no_other_account_in(machine: Machine):
    """An account that is not in the group cannot reach its socket, and every command says what to ask root for."""
    machine.end(signal.SIGINT)
    machine.up("--group", "root")
    asked = ["run --gpu-request .1 -- true", "get tenants", "get gpus", "top --once", "dashboard", "share list", "topo"]
    outside = [machine.ann(*words.split()) for words in asked]
    doctor = machine.ann("doctor")
    inside = machine.root("get", "tenants")
    machine.end(signal.SIGKILL)
    after = machine.ann("get", "tenants")

    why, way_out = "the machine's engine serves group root, and you are not in it", f"usermod -aG root {ANN}\n"
    sentence = f"aliquot: {why}; ask root to add you, and log in again: {way_out}"
    assert {(1, sentence)} == {(refused.returncode, refused.stderr) for refused in outside}
    assert why in doctor.stdout and way_out in doctor.stdout
    assert (0, True) == (inside.returncode, "no engine is up at" in after.stderr)


def test_the_engine_of_the_machine_is_roots_to_end(machine: Machine):
    """`aliquot down` of an account says so, by whatever way it finds that engine, and ends nothing."""
    found = machine.ann("down")
    machine.ann.env["ALIQUOT_RUNTIME_DIR"] = str(machine.runtime)
    named = machine.ann("down")
    del machine.ann.env["ALIQUOT_RUNTIME_DIR"]
    still = machine.ann("get", "gpus")

    own, roots = f"no engine of your own is up at /tmp/aliquot-{ANN}", f"the machine's engine at {machine.runtime}"
    assert (1, 1) == (found.returncode, named.returncode)
    assert f"aliquot: {own}; {roots} is root's to end: sudo aliquot down\n" == found.stderr
    assert f"aliquot: {roots} is root's to end: sudo aliquot down\n" == named.stderr
    assert 0 == still.returncode


FAKE = """
import os, socket, sys, time
os.mkdir(sys.argv[1])
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1] + "/engine.sock")
os.chmod(sys.argv[1], 0o755)
os.chmod(sys.argv[1] + "/engine.sock", 0o666)
server.listen(100)
print("listens", flush=True)
time.sleep(300)
"""


def test_an_engine_in_the_place_of_ones_own_is_not_used_if_it_is_anothers(machine: Machine):
    """Who makes another account's directory in /tmp first gets no call of that account, which uses the machine's."""
    place = Path(f"/tmp/aliquot-{ANN}")
    shutil.rmtree(place, ignore_errors=True)
    fake = machine.bob.program(PYTHON, "-c", FAKE, str(place))
    try:
        assert "listens\n" == first_line(fake)
        gpus = machine.ann("get", "gpus", "-o", "name")
        machine.end(signal.SIGINT)
        alone = machine.ann("get", "gpus")
        machine.ann.env["ALIQUOT_RUNTIME_DIR"] = str(place)
        named = machine.ann("run", "--gpu-request", ".1", "--", "true")
    finally:
        end(fake, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)

    assert (0, 2) == (gpus.returncode, len(gpus.stdout.split())), gpus.stderr
    for refused in (alone, named):
        assert (1, True) == (refused.returncode, f"is not known to be yours (user {BOB})" in refused.stderr)


def test_what_a_private_engine_of_root_left_in_the_folder_does_not_shut_accounts_out(machine: Machine):
    """An engine of the machine that starts where one for root alone was serves all accounts."""
    machine.end(signal.SIGINT)
    (machine.runtime / "tenants").mkdir(mode=0o700)
    machine.up()

    assert 0 == machine.ann("run", "--gpu-request", ".1", "--", "true").returncode


LOCKING = """
import fcntl, sys, time
for path in sys.argv[1:]:
    try:
        fcntl.flock(open(path, "rb"), fcntl.LOCK_SH | fcntl.LOCK_NB)
        print("locked", path)
    except PermissionError:
        pass
    except BlockingIOError:
        print("can wait for", path)
print("done", flush=True)
time.sleep(300)
"""


def test_no_account_keeps_the_arbiter_or_the_engine_from_coming_back(machine: Machine):
    """No account can open what root's processes lock, not even where an earlier version let all read it."""
    lock = machine.runtime / "arbiter.lock"
    lock.chmod(0o644)
    before = arbiter_pid(machine.runtime)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: arbiter_pid(machine.runtime) not in (0, before), "the next arbiter answers")
    emulated = machine.runtime / "emulated"  # which protects no account from another
    files = [machine.runtime, *(path for path in machine.runtime.rglob("*") if emulated not in (path, *path.parents))]
    rows = [row.split() for row in Path("/proc/locks").read_text().splitlines() if "->" not in row]
    locks = {int(row[5].split(":")[2]) for row in rows}
    locked = [str(path) for path in files if path.lstat().st_ino in locks]
    holding = machine.ann.program(PYTHON, "-c", LOCKING, *locked)
    assert holding.stdout is not None
    could = holding.stdout.readline()
    holding.kill()
    holding.communicate()

    assert {str(machine.runtime), str(lock)} <= set(locked)
    assert "done\n" == could


def arbiter_pid(runtime: Path) -> int:
    """The process of the arbiter; 0 where none answers."""
    with contextlib.suppress(ArbiterError, OSError), ArbiterClient(runtime) as arbiter:
        return arbiter.status().pid
    return 0


def beats(file: Path) -> int:
    """How many kernels a worker has finished."""
    words = file.read_text().split() if file.exists() else []
    return int(words[1]) if len(words) == 2 else 0


def max_share_error(runtime: Path) -> float:
    """How far the tenants of each GPU, all alike and never resting, are from equal parts of it over one window."""
    with ArbiterClient(runtime) as arbiter:
        before = arbiter.status()
        time.sleep(WINDOW_S)
        after = arbiter.status()
    passed_ns = after.now_ns - before.now_ns
    then = {tenant.name: tenant.charged_ns for gpu in before.gpus for tenant in gpu.tenants}
    return max(
        abs((tenant.charged_ns - then[tenant.name]) / passed_ns - 1 / len(gpu.tenants))
        for gpu in after.gpus for tenant in gpu.tenants
    )  # fmt: skip


def shares(listed: list[dict]) -> dict[str, list]:
    """What each tenant has of which GPU."""
    return {tenant["name"]: tenant["slices"] for tenant in listed}

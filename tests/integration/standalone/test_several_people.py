"""Engines of several accounts or logins on one machine; an emulated machine is the machine's driver here."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import engine_lives, eventually

from aliquot.driver.emulation import prepare
from aliquot.driver.injection import probe_substitution
from aliquot.driver.mounts import linker_cache
from aliquot.driver.native import HOOK, native_part
from aliquot.model.requests import GpuRequest, Plan
from aliquot.standalone.accounts import Account
from aliquot.standalone.tenants import RunRecord, write_runs

from .stage import Aliquot, end, first_line
from .test_machine_engine import BOB, FAKE, PATHS, PYTHON, accounts_cannot_start, become

pytestmark = pytest.mark.skipif(bool(probe_substitution()), reason="the kernel refuses mount namespaces")
SHOWN = "mount --bind {cache} /etc/ld.so.cache && exec {aliquot}"


class Login(Aliquot):
    """A login with a runtime directory of its own, on a machine whose driver is in `drivers`."""

    def __init__(self, drivers: Path, name: str) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix=f"alq-{name}-")))
        self._drivers = drivers

    def start_here(self, *words: str) -> subprocess.Popen[str]:
        """A command of aliquot on this machine."""
        line = " ".join([sys.executable, "-m", "aliquot.cli", *words])
        shown = SHOWN.format(cache=self._drivers / "cache", aliquot=line)
        how = ["--user", "--map-root-user"] if os.geteuid() else []
        return subprocess.Popen(
            ["unshare", "--mount", *how, "sh", "-c", shown], env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def up(self, *words: str) -> subprocess.Popen[str]:
        """`aliquot up` that has said that it is ready, or has ended."""
        process = self.start_here("up", "--no-web", *words)
        while (said := first_line(process)) and not said.startswith("ready"):
            pass
        return process


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    """The driver of a machine with two H100, and a cache of the loader that knows it."""
    prepare(tmp_path, "h100x2")
    linker_cache(tmp_path / "cache", tmp_path)
    return tmp_path


@pytest.fixture
def logins(drivers: Path) -> Iterator[tuple[Login, Login]]:
    both = Login(drivers, "a"), Login(drivers, "b")
    yield both
    for login in both:
        eventually(lambda login=login: not engine_lives(login.runtime), "no engine is left")
        shutil.rmtree(login.runtime)


def test_a_second_engine_does_not_give_out_the_same_gpus(logins: tuple[Login, Login]):
    """It is refused in one sentence that names the first one's process and folder; when that has ended, it starts."""
    one, other = logins
    first = one.up()
    refused = other.up()
    _, said = refused.communicate()
    end(first)
    second = other.up()
    end(second)

    assert (1, 0, 0) == (refused.returncode, first.returncode, second.returncode)
    assert 1 == said.count("\n")
    assert f"is shared by your own engine, pid {first.pid} ({one.runtime}, since 2" in said
    assert "); use that one" in said
    assert f"export ALIQUOT_RUNTIME_DIR={one.runtime}" in said


def test_the_doctor_names_the_engine_that_would_refuse_a_run(logins: tuple[Login, Login]):
    """Where another engine shares the GPUs, the doctor says who, and what to do; when it has ended, a run may start."""
    one, other = logins
    engine = one.up()
    during, _ = other.start_here("doctor").communicate()
    end(engine)
    after, _ = other.start_here("doctor").communicate()

    none = f"none is up at {other.runtime}"
    assert f"note   engine         {none}, and a run is refused: GPU 0 (GPU-" in during
    assert f"is shared by your own engine, pid {engine.pid} ({one.runtime}, since 2" in during
    assert f"-> use that one: export ALIQUOT_RUNTIME_DIR={one.runtime}, or end it\n" in during
    assert f"{none}; a run starts its own\n" in after


def test_two_engines_divide_the_gpus_of_a_machine(logins: tuple[Login, Login]):
    """Engines that share different GPUs of one machine do not stand in each other's way."""
    one, other = logins
    first, second = one.up("--only-gpus", "0"), other.up("--only-gpus", "1")
    for process in (first, second):
        end(process)
    assert (0, 0) == (first.returncode, second.returncode)


@pytest.mark.skipif(os.geteuid() != 0, reason="the machine's engine is root's")
def test_gpus_stay_with_the_engine_of_the_machine_while_it_is_restarted(logins: tuple[Login, Login]):
    """No other engine gets its GPUs meanwhile, with or without runs that go on, or after the process that keeps them
    was killed; the next one does, until `down`, which also frees those of an engine that has died."""
    one, other = logins
    one.env["ALIQUOT_MACHINE_DIR"] = str(one.runtime)
    engine = one.up("--system")
    end(engine, signal.SIGTERM)
    idle = other.up().communicate()[1]
    engine = one.up("--system")
    run = one.start_here("run", "--gpu-request", ".3", "--name", "train", "--", "sh", "-c", "'echo on; exec sleep 300'")
    assert "on\n" == first_line(run)
    end(engine, signal.SIGKILL)
    with_run = other.up().communicate()[1]
    left = one("down")
    engine = one.up("--system")
    shares = one("get", "tenants", "-o", "name").stdout
    keeper = int((one.runtime / "keeper").read_text().split()[0])
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: f"{keeper} " not in (one.runtime / "keeper").read_text(), "another keeper is there")
    end(run, signal.SIGINT)
    end(engine, signal.SIGKILL)
    kept = other.up().communicate()[1]
    down = one("down")
    second = other.up()
    end(second)

    refused = (idle, with_run, kept)
    assert [1, 1, 1] == [said.count("\n") for said in refused]
    assert all("the machine's engine, which is being restarted or has left runs" in said for said in refused)
    assert "train of the one that died goes on; to end what is left: aliquot up --system -d" in left.stderr
    assert "its GPUs, which were kept for the next one, are free" in down.stdout
    assert "train" in shares
    assert 0 == second.returncode


def test_the_keeper_of_the_gpus_goes_on_for_runs_or_a_restart_and_no_longer(tmp_path: Path):
    """It ends when neither an engine nor a run of one is there, and the time of a restart is over."""
    runs = tmp_path / "runs"
    holder = subprocess.Popen(["sleep", "300"])
    owner = Account(os.geteuid(), os.getegid(), (), holder.pid)
    write_runs(runs, [RunRecord.of("train", tmp_path, GpuRequest(300), Plan(()), "all", "", owner)])
    no_engine = 0
    argv = [sys.executable, "-m", "aliquot.standalone.tenants", "0", str(no_engine), str(runs), "0.1"]
    keeper = subprocess.Popen(argv)
    with pytest.raises(subprocess.TimeoutExpired):
        keeper.wait(timeout=2.0)
    holder.kill()
    holder.wait()

    assert 0 == keeper.wait(timeout=20.0)


CARL = 61003
MACHINE = """
mount --bind "$0/cache" /etc/ld.so.cache && mount -t tmpfs -o mode=755 tmpfs /run || exit 9
$ALIQUOT up --system --no-web --window 2 --state-dir "$0/state" -d || exit 8
eval "$1"
$ALIQUOT down
"""


@pytest.fixture
def on_machine(logins: tuple[Login, Login]) -> Iterator[Callable[[str], str]]:
    """What a script prints on a machine whose engine is at /run/aliquot; `$0` is a folder that all can read."""
    if accounts_cannot_start():
        pytest.skip("needs root, setpriv, and a Python with the packages that every account can start")
    folder = Path(tempfile.mkdtemp(prefix="alq-", dir="/tmp"))
    folder.chmod(0o755)
    prepare(folder, "h100x2")
    linker_cache(folder / "cache", folder)
    env = logins[0].env | {"PYTHONPATH": PATHS, "ALIQUOT_NATIVE_DIR": str(native_part(HOOK).parent)}
    env |= {"ALIQUOT": f"{PYTHON} -m aliquot.cli", "PYTHONDONTWRITEBYTECODE": "1", "FAKE": FAKE, "PYTHON": PYTHON}
    for uid, name in ((CARL, "carl"), (BOB, "bob")):
        env[name.upper()] = shlex.join(["env", f"HOME={folder / name}", *become(uid)])
        (folder / name).mkdir()
        os.chown(folder / name, uid, uid)
    del env["ALIQUOT_RUNTIME_DIR"]

    def said(script: str) -> str:
        argv = ["unshare", "--mount", "sh", "-c", MACHINE, str(folder), script]
        done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=100)
        print(done.stdout, done.stderr)
        assert 0 == done.returncode
        return done.stdout

    yield said
    shutil.rmtree(folder)
    shutil.rmtree(f"/tmp/aliquot-{CARL}", ignore_errors=True)


IN_RUN = """
exec 2>&1
$ALIQUOT yield && echo yielded
$ALIQUOT get tenants -o name
ALIQUOT_RUNTIME_DIR=/run/aliquot $ALIQUOT get gpus -o name | wc -l
ALIQUOT_RUNTIME_DIR=$0/bob/run $ALIQUOT get gpus
ALIQUOT_MACHINE_DIR=$0/bob/run $ALIQUOT get gpus
"""


def test_a_program_of_a_run_finds_the_engine_of_the_machine(on_machine: Callable[[str], str]):
    """Also where its user namespace does not map root; there another account's is trusted as little as elsewhere."""
    said = on_machine(f"""
        $BOB $PYTHON -c "$FAKE" $0/bob/run & fake=$!
        $CARL $ALIQUOT run --gpu-request .1 --gpu-mem 1Gi --name r -- readlink /proc/self/ns/user
        readlink /proc/self/ns/user
        $CARL $ALIQUOT run --gpu-request .1 --gpu-mem 1Gi --name r -- sh -c {shlex.quote(IN_RUN)} $0
        kill $fake
    """)
    inside, outside = [line for line in said.splitlines() if line.startswith("user:")]
    overflow = Path("/proc/sys/kernel/overflowuid").read_text().strip()

    assert inside != outside
    assert f"yielded\ntenant/{CARL}/r\n2\n" in said
    assert 1 == said.count(f"is not known to be yours (user {overflow})")
    assert f"no engine is up at /tmp/aliquot-{CARL}" in said


def test_who_waits_for_the_machines_engine_waits_on_for_the_next(on_machine: Callable[[str], str]):
    """A run in the queue starts after a restart, one that comes meanwhile too; who yields or acquires is answered."""
    run = """
        exec 2>&1; touch up; while ! [ -e down ]; do sleep .1; done
        $ALIQUOT yield; $ALIQUOT acquire --timeout 30s
    """
    said = on_machine(f"""
        (cd $0/carl; $CARL $ALIQUOT run --gpu-request .6 --gpu 0 --name r -- sh -c {shlex.quote(run)}; echo r $?) & r=$!
        while ! [ -e $0/carl/up ]; do sleep .1; done
        $BOB $ALIQUOT run --gpu-request .6 --gpu 0 --wait -- echo started 2>$0/queue & q=$!
        while ! grep waits $0/queue; do sleep .1; done
        kill $(pgrep -f -- "up --system .*--state-dir $0/state"); touch $0/carl/down; sleep 1
        $BOB $ALIQUOT run --gpu-request .1 --wait -- echo later 2>$0/later & l=$!
        while ! grep waits $0/later; do sleep .1; done
        $ALIQUOT up --system --no-web --window 2 --state-dir "$0/state" -d
        wait $r $q $l
    """)

    assert "waits: the machine's engine restarts\n" in said
    assert said.index(f"{CARL}/r has yielded its GPU\n") < said.index(f"{CARL}/r has its GPU\n")
    assert "r 0\n" in said and "started\n" in said and "later\n" in said


def test_another_account_that_may_write_beside_the_engine_is_not_taken_for_root(on_machine: Callable[[str], str]):
    """Where others may write into /run, who answers there may be anybody, and is not used in a user namespace."""
    said = on_machine("""
        chmod 1777 /run
        $CARL $ALIQUOT run --gpu-request .1 --gpu-mem 1Gi -- sh -c '$ALIQUOT get tenants; echo $?' 2>&1
    """)

    assert f"no engine is up at /tmp/aliquot-{CARL}" in said


@pytest.mark.parametrize("inject", ["auto", "library-path"])
def test_a_program_of_a_run_starts_no_engine_on_its_gpus(on_machine: Callable[[str], str], inject: str):
    """It would give them out twice: it is refused in one sentence that leads to the engine of the machine."""
    said = on_machine(f"""
        $CARL $ALIQUOT run --inject {inject} --gpu-request .1 --gpu-mem 1Gi -- \\
            sh -c 'exec 2>&1; timeout 30 $ALIQUOT up --no-web; echo status $?; timeout 30 $ALIQUOT doctor'
    """)

    way_out = {"auto": "use that one: aliquot run and all other commands", "library-path": "the engine of this machine"}
    assert "status 1\n" in said and 1 == said.count("ready at")
    assert way_out[inject] in said.partition("status 1")[0]
    assert "up at /run/aliquot" in said.partition("status 1")[2]


def test_who_cannot_have_the_gpus_of_the_machines_engine_learns_whose_they_are(on_machine: Callable[[str], str]):
    """Also in a user namespace, which has no number for root; who is outside its group learns how to get in."""
    tries = """
        for how in "" "unshare --user" "unshare --user --map-current-user"; do
            $CARL $how timeout 30 $ALIQUOT up --no-web 2>&1
        done
    """
    said = on_machine(f"""
        {tries}
        $ALIQUOT down; $ALIQUOT up --system --group root --no-web --state-dir $0/state -d
        {tries}
    """)
    refusals = [line.partition("is shared by ")[2] for line in said.splitlines() if line.startswith("aliquot: ")]

    assert 6 == len(refusals)
    assert all(line.startswith("the engine of this machine, pid ") for line in refusals[:3])
    assert all(line.endswith("aliquot run and all other commands use it as they are") for line in refusals[:3])
    assert all(line.startswith("the machine's engine, pid ") for line in refusals[3:])
    assert refusals[3].endswith(
        f"; it serves group root, and you are not in it; ask root to add you, and log in again: usermod -aG root {CARL}"
    )
    assert {"it serves a group, and you are not in it; ask root to add you, and log in again"} == {
        line.partition("; ")[2] for line in refusals[4:]
    }


def test_root_of_a_user_namespace_learns_which_account_it_is_and_whose_engines_are_meant(
    on_machine: Callable[[str], str],
):
    """In place of an engine of the machine that it cannot have: one sentence with the account outside and its way."""
    said = on_machine("""
        exec 2>&1; as_root="$CARL unshare --user --map-root-user"
        for words in "up --no-web" down "get gpus -o name"; do $as_root $ALIQUOT $words; done
        $ALIQUOT down; echo away
        for words in "get gpus" "run -- true" "up --system"; do $as_root $ALIQUOT $words; done
        echo unmapped
        $CARL unshare --user $ALIQUOT get gpus
    """)
    note = (
        f"this is a user namespace, where root is account {CARL} outside: run aliquot outside of it for the machine's "
        f"engine, or for that account's own: export ALIQUOT_RUNTIME_DIR=/tmp/aliquot-{CARL}\n"
    )
    up, _, rest = said.partition("away\n")
    away, _, unmapped = rest.partition("unmapped\n")

    assert f"the machine's engine at /run/aliquot is root's to end: {note}" in up
    assert f"aliquot: no engine is up at /run/aliquot; {note}" in away
    assert f"--system serves all accounts and so needs root; {note}" in away
    assert [1, 1] == [part.count(f"/run/aliquot belongs to another user; {note}") for part in (up, away)]
    assert 2 == up.count("gpu/")
    assert "this is a user namespace without a number for your account: run aliquot outside of it\n" in unmapped

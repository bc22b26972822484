"""One engine for a machine's accounts, of which one starts rootless containers: what each gets, and what is closed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster import images
from cluster.prepare import Parts
from msgspec import structs
from podman import ACCOUNT
from test_containers import MAY_READ, Machine, podman_tree

from aliquot.arbiter.client import ArbiterClient
from aliquot.arbiter.records import Status
from aliquot.driver.native import native_part
from aliquot_lab.bench.fig6 import FAST, TOLERANCE, A, B, C, Fig6Timeline, Phase, RequestedShare, Tenant
from aliquot_lab.bench.fig6_run import play_on
from aliquot_lab.bench.scene import NATIVE_CLIENT, SPIN_PTX, Client, Scene

__all__ = ["podman_tree"]
PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"
"""One that every account can start, also in a namespace of its own, with this one's packages."""
UIDS = {A: 61001, B: 61002, C: ACCOUNT}
"""The accounts of Fig. 6; C's program is in a container."""
ALL_THREE = Fig6Timeline(2.0, (Phase("A, B and C", 0, 10, {A: 0.3, B: 0.4, C: 0.3}),))


class Arbiter(ArbiterClient):
    """That of the machine's engine, with tenants by their names without accounts."""

    def status(self) -> Status:
        """Everything at this moment."""
        status = super().status()
        gpus = [
            structs.replace(gpu, tenants=[structs.replace(t, name=t.name.rpartition("/")[2]) for t in gpu.tenants])
            for gpu in status.gpus
        ]
        return structs.replace(status, gpus=gpus)


class Accounts(Scene):
    """The engine of a machine with an emulated V100, and the programs of its accounts."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.runtime = machine.runtime / "engine"
        machine.runtime.chmod(0o755)
        del machine.environment["ALIQUOT_RUNTIME_DIR"]
        machine.environment |= {"ALIQUOT_MACHINE_DIR": str(self.runtime), "ALIQUOT_CDI_DIR": str(machine.cdi)}
        for part in (native_part(NATIVE_CLIENT, "aliquot_lab"), SPIN_PTX):
            shutil.copy2(part, machine.root / part.name)
        self.up()
        engine = SimpleNamespace(
            arbiter=Arbiter(self.runtime),
            gpus=[SimpleNamespace(model="v100")],
            emulated=True,
            tenants=defaultdict(str),
            release=lambda _: None,
        )
        super().__init__(engine, machine.runtime / "counts")
        self.directory.mkdir()

    def up(self) -> None:
        """Start the engine, or the next one."""
        words = ["up", "--system", "--emulate=v100", "--no-web", "--window=2"]
        command = [sys.executable, "-m", "aliquot.cli", *words, f"--state-dir={self.machine.runtime / 'state'}"]
        self.process = subprocess.Popen(command, env=self.machine.environment, stdout=subprocess.PIPE, text=True)
        assert any(line.startswith("ready") for line in iter(self.process.stdout.readline, ""))

    def start(self, tenant: Tenant, ask: RequestedShare, mode: str, *_: str) -> Client:
        """Start the program of an account: as it is, or in a container."""
        folder, machine = Path(tempfile.mkdtemp(dir=self.directory)), self.machine
        shutil.chown(folder, UIDS[tenant], UIDS[tenant])
        share = [
            f"--gpu-request={ask.request_milli}m",
            f"--gpu-limit={ask.limit_milli}m",
            f"--gpu-mem={ask.memory_mib}",
        ]
        root, counts = (Path("/"), Path("/counts")) if tenant == C else (machine.root, folder)
        program = [root / Path(NATIVE_CLIENT).name, mode, root / SPIN_PTX.name, counts / "p", "2000000"]
        if tenant == C:
            made = machine("share", "create", tenant, *share)
            assert 0 == made.returncode, made.stderr
            device = ["--device", f"aliquot.dev/share={tenant}.{ACCOUNT}", "-v", f"{folder}:/counts"]
            words = machine.podman.words(
                "podman", "run", "--rm", *device, "--rootfs", str(machine.root), *map(str, program)
            )
        else:
            become = [f"--reuid={UIDS[tenant]}", f"--regid={UIDS[tenant]}", "--clear-groups"]
            run = [PYTHON, "-m", "aliquot.cli", "run", *share, "--name", tenant, "--", *map(str, program)]
            words = ["setpriv", *become, *run]
        paths = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(words, env=machine.environment | {"PYTHONPATH": paths})
        self.clients[tenant] = Client(tenant, process, folder / "p")
        return self.clients[tenant]

    def end(self, tenant: Tenant) -> Client:
        """End the program of an account, and its share."""
        client = super().end(tenant)
        if tenant == C:
            self.machine("share", "delete", tenant)
        return client

    def close(self) -> None:
        """End everything."""
        self.end_all()
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)
        self.machine.close()


@pytest.fixture(scope="module")
def accounts(cluster_parts: Parts, podman_tree: Path) -> Iterator[Accounts]:
    """The machine."""
    python = next(a for a in images.archives(Path(cluster_parts.program("busybox"))) if a.name == "python.tar")
    made = Accounts(Machine(podman_tree, python, ACCOUNT))
    try:
        tried = made.machine.podman("run", "--rm", "--rootfs", str(made.machine.root), "/bin/true")
        if tried.returncode:
            pytest.skip(f"podman starts no container here: {tried.stderr.strip().splitlines()[-1]}")
        yield made
    finally:
        made.close()


@pytest.mark.real_time
@pytest.mark.parametrize(
    "timeline", [ALL_THREE, pytest.param(FAST, marks=pytest.mark.slow)], ids=["all three", "Fig. 6"]
)
@pytest.mark.timeout(180)
def test_accounts_and_a_rootless_container_get_what_they_are_due(accounts: Accounts, timeline: Fig6Timeline):
    """Two accounts' programs and one in a third account's container have their shares of one GPU within two points."""
    report = play_on(accounts, timeline, lambda *_: None)
    accounts.end_all()

    assert report.max_error <= TOLERANCE, report.as_json()
    print(report.as_json())


def test_what_a_container_of_an_account_is_shown_is_closed_to_others(accounts: Accounts):
    """Another account neither sees the folder that the device names, nor has the options, nor ends the share."""
    made = accounts.machine("share", "create", "mine", "--gpu-request=.1")
    (folder,) = (accounts.runtime / "tenants" / f"of-{ACCOUNT}").iterdir()
    become = ["setpriv", f"--reuid={UIDS[A]}", f"--regid={UIDS[A]}", "--clear-groups"]
    peeks = [subprocess.run([*become, "test", "-e", folder / name]).returncode for name in ("", "socket")]
    own = subprocess.run(["setpriv", f"--reuid={ACCOUNT}", "--clear-groups", "test", "-S", folder / "socket"])
    tries = [
        subprocess.run(
            [*become, *MAY_READ, sys.executable, "-m", "aliquot.cli", "share", verb, f"{ACCOUNT}/mine"],
            env=accounts.machine.environment, capture_output=True, text=True,
        )
        for verb in ("options", "delete")
    ]  # fmt: skip
    deleted = accounts.machine("share", "delete", "mine")

    assert (0, 0, 0) == (made.returncode, own.returncode, deleted.returncode), made.stderr
    assert [1, 1] == peeks
    assert [2, 2] == [tried.returncode for tried in tries]
    assert all(f'there is no share "{ACCOUNT}/mine"' in tried.stderr for tried in tries), tries


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_container_of_an_account_goes_on_under_the_next_engine(accounts: Accounts, number: int):
    """It has its share and its memory when the engine has been killed or stopped, and the next one sees it in it."""
    machine = accounts.machine
    made = machine("share", "create", "mine", "--gpu-request=.1", "--gpu-mem=2Gi")
    with machine.container("--device", f"aliquot.dev/share=mine.{ACCOUNT}") as (process, seen):
        (before,) = machine.tenants()
        accounts.process.send_signal(number)
        accounts.process.communicate(timeout=60)
        accounts.up()
        (after,) = machine.tenants()
        refused = machine("share", "delete", "mine")
        still = process.poll()
    deleted = machine("share", "delete", "mine")

    assert (0, 2048, None, 0) == (made.returncode, seen["total_mib"], still, process.returncode), made.stderr
    assert before == after and after["containers"]
    assert (2, 0) == (refused.returncode, deleted.returncode), refused.stderr

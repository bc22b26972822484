"""Shares of one machine in real containers: of Debian's podman, as root and as an account that is not, and docker."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import images, packages
from cluster.cache import Unavailable
from cluster.ours import surroundings
from cluster.parts import until
from cluster.prepare import Parts
from dockerd import Docker
from podman import ACCOUNT, Podman
from waiting import engine_lives

import aliquot.memory

PROGRAM = Path(__file__).with_name("gpu.py")
PYTHON = "/usr/local/bin/python3"
OUT_OF_MEMORY = 2
# The interpreter and this tree may lie where the account may not look.
MAY_READ = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


class Machine:
    """A machine with an emulated H100, one account of it with an engine of its own, and its podman or docker."""

    def __init__(self, tree: Path, archive: Path, uid: int, tool: type[Podman] = Podman) -> None:
        self.runtime = Path(tempfile.mkdtemp(prefix="alq-"))
        self.cdi = self.runtime / "cdi"
        self.cdi.mkdir()
        self.root = self.runtime / "rootfs"
        images.unpack(archive, self.root)
        for program in (PROGRAM, Path(aliquot.memory.__file__)):
            shutil.copy2(program, self.root / program.name)
        subprocess.run(["chown", "-R", f"{uid}:{uid}", str(self.runtime)], check=True)
        self.podman = tool(tree, self.cdi, uid)
        more = {"ALIQUOT_RUNTIME_DIR": str(self.runtime), "HOME": str(self.podman.folder / "home")}
        self.environment = surroundings(**more) | self.podman.environment

    def start(self, *words: str, **options) -> subprocess.Popen[str]:
        """Start a command of aliquot."""
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = self.podman.words(sys.executable, "-m", "aliquot.cli", *words, rights=MAY_READ)
        return subprocess.Popen(command, env=self.environment, text=True, **(streams | options))

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of aliquot to its end."""
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    @contextlib.contextmanager
    def share(self, *words: str) -> Iterator[None]:
        """The share `train`, of 0.3 and 4 GiB."""
        made = self("share", "create", "train", "--emulate", "h100", "--gpu-request=.3", "--gpu-mem=4Gi", *words)
        assert 0 == made.returncode, made.stderr
        try:
            yield
        finally:
            self("share", "delete", "train", "--force")

    def run(self, name: str, *words: str, gib: str = "") -> subprocess.Popen[str]:
        """Start a run in a container, of the share `words`, that holds so much memory."""
        share = ("run", "--emulate", "h100", "--gpu-request=.3", "--name", name, *words)
        image = (*self.podman.image(self.root), PYTHON, "/gpu.py", *gib.split())
        return self.start(*share, "--container", self.podman.tool, "--", "--rm", "-i", *image)

    @contextlib.contextmanager
    def container(self, *options: str, gib: str = "") -> Iterator[tuple[subprocess.Popen[str], dict]]:
        """A container with `options` whose program holds memory of the GPU meanwhile, and what that saw."""
        words = ("run", "--rm", "-i", *options, *self.podman.image(self.root), PYTHON, "/gpu.py", *gib.split())
        process = subprocess.Popen(
            self.podman.words(self.podman.tool, *words), env=self.podman.environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with process:
            line = process.stdout.readline()
            assert line, process.communicate()
            yield process, json.loads(line)
            process.stdin.close()

    def tenants(self) -> list[dict]:
        """What `get tenants` says."""
        return json.loads(self("get", "tenants", "-o", "json").stdout)

    def close(self) -> None:
        """End everything."""
        self.podman.close()
        until(lambda: not engine_lives(self.runtime), "the engine's end")
        shutil.rmtree(self.runtime)


@pytest.fixture(scope="session")
def podman_tree(cluster_parts: Parts) -> Path:
    """Debian's podman, unpacked before the first test."""
    return packages.podman()


@pytest.fixture(scope="session")
def docker_tree(cluster_parts: Parts) -> Path | None:
    """Debian's docker, unpacked before the first test; None where it is not to be had."""
    with contextlib.suppress(Unavailable):
        return packages.docker()
    return None


@pytest.fixture(
    scope="module", params=[(Podman, 0), (Podman, ACCOUNT), (Docker, 0)], ids=["root", "rootless", "docker"]
)
def machine(
    request: pytest.FixtureRequest, cluster_parts: Parts, podman_tree: Path, docker_tree: Path | None
) -> Iterator[Machine]:
    """The machine, of root or of an account."""
    python = next(a for a in images.archives(Path(cluster_parts.program("busybox"))) if a.name == "python.tar")
    tool, uid = request.param
    tree = docker_tree if tool is Docker else podman_tree
    if tree is None:
        pytest.skip("Debian's docker cannot be fetched here")
    made = Machine(tree, python, uid, tool)
    try:
        tried = made.podman("run", "--rm", *made.podman.image(made.root), "/bin/true")
        if tried.returncode:
            pytest.skip(f"{tool.tool} starts no container here: {tried.stderr.strip().splitlines()[-1]}")
        yield made
    finally:
        made.close()


def test_a_container_with_the_device_has_the_share(machine: Machine):
    """It sees one GPU with the share's memory, by CUDA and by NVML, and gets no more than that."""
    with machine.share(), machine.container("--device", "aliquot.dev/share=train") as (_, seen):
        assert {"total_mib": 4096, "beyond": OUT_OF_MEMORY, "gpus": 1, "uid": 0, "tenant": "train"} == {
            key: seen[key] for key in ("total_mib", "beyond", "gpus", "uid", "tenant")
        }


def test_programs_of_any_user_in_a_container_have_the_share(machine: Machine):
    """One that is not root in its container is of an id on the machine that is neither root's nor the account's."""
    with machine.share(), machine.container("--device", "aliquot.dev/share=train", "--user", "1234") as (_, seen):
        assert (1234, 4096, OUT_OF_MEMORY) == (seen["uid"], seen["total_mib"], seen["beyond"])


def test_options_in_place_of_the_device_give_the_same(machine: Machine):
    """Where a tool does not read the CDI file, the options that `share options` prints give the share."""
    with machine.share():
        words = machine("share", "options", "train").stdout.split()
        with machine.container(*words) as (_, seen):
            assert (4096, "train") == (seen["total_mib"], seen["tenant"])


def test_a_share_in_use_is_not_deleted(machine: Machine):
    """Deleting it is refused with the name of its container, which `get tenants` shows too; --force ends that."""
    with machine.share(), machine.container("--device", "aliquot.dev/share=train") as (process, _):
        (tenant,) = machine.tenants()
        refused = machine("share", "delete", "train")
        forced = machine("share", "delete", "train", "--force")

        assert process.wait(20) in (128 + signal.SIGKILL, 128 + signal.SIGTERM)
    (container,) = tenant["containers"]
    tool, short_id = container.split()
    assert (machine.podman.tool, 12) == (tool, len(short_id))
    assert (2, 0) == (refused.returncode, forced.returncode)
    said = f'share "train" has 1 process in {container}; end what runs there first: {tool} stop {short_id}'
    assert said in refused.stderr


def test_a_share_may_end_with_its_container(machine: Machine):
    """With --rm the share is gone soon after the last process of its container."""
    with machine.share("--rm"):
        with machine.container("--device", "aliquot.dev/share=train"):
            assert ["train"] == [tenant["name"] for tenant in machine.tenants()]
            until(lambda: machine.tenants()[0]["containers"], "the container is seen")
        until(lambda: not (machine.cdi / "aliquot.dev-share_train.json").exists(), "the share's end")


def test_a_run_in_a_container_ends_with_its_status(machine: Machine):
    """`aliquot run --container` gives the container its share, streams and variables, and has its exit status."""
    process = machine.run("once", "--gpu-mem=4Gi")
    out, err = process.communicate("seven..", timeout=60)

    assert 7 == process.returncode, err
    assert (4096, "once") == (json.loads(out)["total_mib"], json.loads(out)["tenant"])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_container_that_is_ended_with_lent_memory_says_why(machine: Machine):
    """Its run does, and the list of shares does until the share has another container."""
    device, lent = ("--device", "aliquot.dev/share=train"), "--gpu-mem-limit=30Gi"
    with machine.share(lent), machine.container(*device, gib="25") as (container, _):
        run = machine.run("once", "--gpu-mem=4Gi", lent, gib="25")
        assert run.stdout.readline(), run.communicate()
        guarantee = machine.run("owner", "--gpu-mem=68Gi", gib="66")
        statuses = container.wait(120), run.wait(120)
        said, ended = run.stderr.read(), machine("share", "list").stdout
        assert guarantee.stdout.readline(), guarantee.communicate()
        guarantee.communicate(timeout=60)
        run.communicate()
        with machine.container(*device):
            after = machine("share", "list").stdout

    why = "it held 25.6 GiB beyond its guarantee that another's needs, did not give them back within a minute"
    assert (137, 137) == statuses
    assert f"aliquot: the command was ended: {why}" in said
    assert f"the programs of train were ended: {why}" in ended
    assert "were ended" not in after

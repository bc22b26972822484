"""What a program in a container can do against its share: tried, and compared with the table in docs/security.md."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attacks import ATTACKS
from auditing_scene import audited, create
from cluster.kubelet_node import KubeletNode
from node_scene import LONG, Scene

from aliquot.arbiter.abi import ABI_VERSION, MESSAGE_STRUCT, MessageType

PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
PROGRAMS = Path(__file__).resolve().parents[2] / "integration" / "standalone" / "programs"
LIMIT_MIB = 1024
FOUND = re.compile(r"unregistered-process .*\bname=(\S+)")
# The sentences of the table, by the attack's name in attacks.py.
SAYS = {
    "plain": "opens `libcuda.so.1`",
    "thread": "opens it from a thread",
    "exec": "opens it after fork and exec",
    "deepbind": "opens it with RTLD_DEEPBIND",
    "namespace": "opens it with dlmopen, in a namespace of its own",
    "no-env": "opens it with an empty environment",
    "other-env": "changes LD_LIBRARY_PATH, ALIQUOT_TENANT and others",
    "go": "opens it from Go",
    "go-no-env": "opens it from Go with an empty environment",
    "static": "opens it from a statically linked glibc program",
    "many": "starts many processes with a context each",
    "other-gpu": "names another GPU in CUDA_VISIBLE_DEVICES",
    "ask-gpu": "asks the arbiter for another GPU's grant page",
    "write-lib": "writes into the library that stands for the driver's",
    "replace-lib": "puts another file in its place",
    "unmount-lib": "unmounts it",
    "write-conf": "writes into its `tenant.conf`",
    "unlink-socket": "removes its socket",
    "write-page": "makes its grant page writable",
    "admin": "looks for the arbiter's other sockets",
    "kill": "sends KILL to every process that it can name",
    "list": "asks NVML for all processes",
    "drivers-file": "opens the driver's own file, whose path `tenant.conf` names",
    "own-copy": "brings a copy of the driver's library along",
    "both": "registers, and then computes by the driver's own file",
}


@pytest.fixture(scope="module")
def scene(kubelet_node: KubeletNode) -> Iterator[Scene]:
    """A node whose arbiter compares NVML's processes, and whose agent gives a second of grace."""
    with audited(kubelet_node, "--audit-grace-s", "1") as made:
        yield made


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs that open the driver in many ways, built for the container."""
    folder = tmp_path_factory.mktemp("ways")
    folder.chmod(0o755)
    source = PROGRAMS / "ways.c"
    subprocess.run(["gcc", "-o", folder / "ways", source, "-ldl", "-lpthread"], check=True)
    static = ["gcc", "-static", "-o", folder / "ways-static", source, "-ldl", "-lpthread"]
    subprocess.run(static, check=True, capture_output=True)  # warns that dlopen needs the same glibc: the point of it
    if shutil.which("go"):
        shutil.copy(PROGRAMS / "ways.go", folder / "main.go")
        command = ["go", "build", "-o", str(folder / "ways-go"), "main.go"]
        subprocess.run(command, cwd=folder, check=True, timeout=100)
    return folder


def message(kind: MessageType, *, a: int = 0, c: int = 0, uuid: str = "") -> str:
    """A message to the arbiter as hex."""
    raw = bytes.fromhex(uuid.removeprefix("GPU-").replace("-", "")) if uuid else bytes(16)
    return MESSAGE_STRUCT.pack(kind, 0, 0, 1, a, 0, c, 0, raw).hex()


def tried(scene: Scene, ways: Path) -> dict[str, str]:
    """Attack -> what came of it, in a container that shares its GPU with a neighbour."""
    create(scene, "neighbour", scene.slice(0, 300), ["python3", "/probe/probe.py"])
    scene.told("neighbour")
    facts = {
        "limit_mib": LIMIT_MIB,
        "other": scene.gpus[1],
        "hello": message(MessageType.HELLO, a=ABI_VERSION, c=1),
        "attach": message(MessageType.ATTACH, uuid=scene.gpus[1]),
        "refused": int(MessageType.REFUSED),
    }
    command = ["python3", "/probe/attacks.py", "all", json.dumps(facts)]
    create(scene, "hostile", scene.slice(0, 300, mib=LIMIT_MIB), command, mounts={"/ways": str(ways)})
    seen: dict[str, Any] = scene.told("hostile")
    return seen


def rows_of(page: Path) -> list[str]:
    """The table between its two marks."""
    _, _, rest = page.read_text().partition("<!-- what holds in a container -->\n")
    return rest.partition("<!-- end -->")[0].strip().splitlines()


def test_the_page_has_a_row_for_each_attack_and_no_other():
    """In the order in which they are tried."""
    rows = [row.split("|")[1].strip() for row in rows_of(PAGE)[2:]]

    assert list(SAYS.values()) == rows
    assert list(SAYS) == list(ATTACKS)


def table(seen: dict[str, str], found: set[str]) -> list[str]:
    """As docs/security.md has it."""
    rows = ["| a program in a container | what comes of it | the audit |", "|---|---|---|"]
    for name, outcome in seen.items():
        audit = ("finds it" if name in found else "does not find it") if outcome == "bypassed" else ""
        rows.append(f"| {SAYS[name]} | {outcome} | {audit} |")
    return rows


@LONG
@pytest.mark.timeout(240)
def test_what_holds_in_a_container_is_what_the_page_says(scene: Scene, ways: Path):
    """Every row of the table is tried; neighbour, agent and arbiter live on, and keep their places."""
    arbiter = scene.status().pid
    seen = tried(scene, ways)
    time.sleep(1)
    found = set(FOUND.findall(scene.agent.log.read_text()))
    printed = table(seen, found)
    print("\n".join(printed))

    untried = {SAYS[name] for name in SAYS if name not in seen}
    assert untried <= {SAYS["go"], SAYS["go-no-env"]}  # where there is no Go
    assert [row for row in rows_of(PAGE) if row.split("|")[1].strip() not in untried] == printed
    assert arbiter == scene.status().pid
    assert ("Running", "Running") == (scene.phase("neighbour"), scene.phase("hostile"))
    assert [] == [name for name in found if name not in seen]

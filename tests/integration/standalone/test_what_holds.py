"""Which ways of opening the driver are held to the tenant's share, by each way of injection: seen, not claimed.

Source of the ways: what users' programs do, and what the bypasses of preloading libraries are.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_MIB = "4096"
HELD, NO_DRIVER, BYPASSED = "held", "no driver found", "bypassed"
WAYS = ["plain", "thread", "exec", "deepbind", "namespace", "env -i", "go", "go, env -i"]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"


def documented() -> dict[str, dict[str, str]]:
    """The page's table: way of injection -> way of opening, in the order of `WAYS`, -> what comes of it.

    Preloading and library paths live in the environment: a program that clears it leaves them. On the emulated driver
    it then finds no driver at all; beside an installed one it would find that one, unheld. A preloaded library is not
    loaded into the other namespaces of dlmopen.
    """
    _, _, rest = PAGE.read_text().partition("<!-- what holds on one machine -->\n")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in rest.partition("<!-- end -->")[0].splitlines()
    ]
    head, *body = [row for row in rows if row[0].strip("-")]
    return {
        injection: {way: row[column] for way, row in zip(WAYS, body, strict=True)}
        for column, injection in enumerate(head)
        if column
    }


EXPECTED = documented()


@pytest.fixture(scope="module")
def programs(built, tmp_path_factory) -> dict[str, list[str]]:
    """The command of each way; ways that this machine cannot build are left out."""
    folder = tmp_path_factory.mktemp("ways")
    ways = str(built("standalone/programs/ways.c"))
    commands = {way: [ways, way] for way in WAYS if not way.startswith(("go", "env"))}
    commands["env -i"] = ["env", "-i", ways, "plain"]
    if shutil.which("go"):
        shutil.copy(PROGRAMS / "ways.go", folder / "main.go")
        build = ["go", "build", "-o", str(folder / "ways-go"), "main.go"]
        subprocess.run(build, cwd=folder, check=True, timeout=100)
        commands["go"] = [str(folder / "ways-go")]
        commands["go, env -i"] = ["env", "-i", str(folder / "ways-go")]
    return commands


def outcome(printed: str) -> str:
    """What a program's line means for the promise."""
    return {LIMIT_MIB: HELD, "no-driver": NO_DRIVER}.get(printed, BYPASSED)


@pytest.mark.parametrize("injection", list(EXPECTED))
def test_ways_into_the_driver_are_held_as_the_table_says(aliquot_cli, programs, injection):
    """Each way of opening libcuda.so.1 is held to the tenant's memory, or not, exactly as docs/security.md has it."""
    seen = {}
    for way, command in programs.items():
        words = ["--emulate", "a100", "--inject", injection, "--gpu-request", ".3", "--gpu-mem", "4Gi", "--", *command]
        done = aliquot_cli.run(*words)
        seen[way] = outcome(done.stdout.strip())
        print(f"{injection:13} {way:12} {seen[way]:16} {done.stdout.strip() or done.stderr.strip()}")

    assert {way: EXPECTED[injection][way] for way in seen} == seen

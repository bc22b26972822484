"""Two stressed tenants, hook and emulated driver built with a sanitizer: no race, no bad access, nothing left charged.

The hook checks its invariants at each change in these builds.

The builds lie in build/sanitize-thread and build/sanitize-address; `make test-sanitizers` runs this file.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from stage import Stage

from aliquot.driver.native import HOOK, native_part

ROOT = Path(__file__).parents[3]
SECONDS, THREADS = 8, 4
MEMORY_MIB = 7800
KINDS = ("thread", "address")
# The hook stays loaded by intention, and so does what it has allocated.
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "second_deadlock_stack=1"}


def built(kind: str) -> Path:
    """The native parts with that sanitizer; skips where the compiler has none."""
    if not shutil.which("cmake"):
        pytest.skip("no cmake")
    folder = ROOT / "build" / f"sanitize-{kind}"
    options = [f"-DALIQUOT_SANITIZE={kind}", "-DALIQUOT_TEST_PROGRAMS=ON", "-DALIQUOT_CHECKS=2"]
    configure = ["cmake", "-S", ROOT, "-B", folder, *options]
    if subprocess.run(configure, capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler has no -fsanitize={kind}")
    subprocess.run(["cmake", "--build", folder, "-j2"], check=True, capture_output=True)
    return folder / "native"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_for_hand_overs_finds_no_fault(kind: str):
    """Plans that are made, carried out and taken back at random moments by two threads leave the sanitizer silent."""
    program = built(kind) / "tests" / "aliquot-handover-check"
    done = subprocess.run(
        [program, "20000"], capture_output=True, text=True, timeout=300, env={**os.environ, **OPTIONS}
    )

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_use_every_kind_of_object_find_no_fault(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Threads of two tenants use every kind of object at once; the sanitizer is silent and nothing stays charged."""
    parts, plain = built(kind), str(native_part(HOOK).parent)
    monkeypatch.setenv("ALIQUOT_NATIVE_DIR", str(parts))
    for name, value in OPTIONS.items():
        monkeypatch.setenv(name, os.environ.get(name, value))
    scene = Stage(arbiter_env={"ALIQUOT_NATIVE_DIR": plain})  # an interpreter does not begin with a sanitizer
    try:
        argv = [str(parts / "tests" / "aliquot-stress"), str(THREADS), str(SECONDS)]
        clients = [
            scene.program(scene.tenant(name, 500, memory_mib=MEMORY_MIB), argv, name) for name in ("first", "second")
        ]
        statuses = [client.process.wait(120) for client in clients]
        said = [client.said for client in clients]
    finally:
        scene.close()

    assert [0, 0] == statuses, "\n".join(said)
    for each in said:
        done = json.loads(each)
        assert done.pop("charged_before") == done.pop("charged_after")
        assert min(done.values()) > 0, f"not every kind was tried: {done}"

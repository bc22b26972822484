"""The tenant folder and the launch that starts from it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aliquot.driver.gpu import TooManyCores, core_list, nearest_cores, read_core_list
from aliquot.driver.injection import CONF_MARK, InjectionError, TenantConf, launch, patched, provision
from aliquot.driver.native import HOOK, STANDS_FOR

SLOT = (CONF_MARK + b"/etc/aliquot/tenant.conf").ljust(512, b"\0")


@pytest.fixture
def hook(tmp_path) -> Path:
    """A file that is like the hook where provisioning looks at it."""
    for part in (HOOK, *STANDS_FOR.values()):
        (tmp_path / part).write_bytes(part.encode() + SLOT + b"after")
    return tmp_path / HOOK


@pytest.fixture
def folder(tmp_path, hook):
    """A tenant's folder over libraries that are no driver's."""
    conf = TenantConf("a", tmp_path / "socket", tmp_path / "emu/libcuda.so.1", tmp_path / "emu/libnvidia-ml.so.1")
    return provision(tmp_path / "t", conf, hook)


def test_the_slot_holds_the_path_and_nothing_moves():
    """The configuration's path is written into the slot; every other byte and the size stay."""
    library = patched(b"before" + SLOT + b"after", Path("/run/x/tenant.conf"))

    assert library == b"before" + (CONF_MARK + b"/run/x/tenant.conf").ljust(512, b"\0") + b"after"


@pytest.mark.parametrize(
    ("library", "path", "advice"),
    [(b"no slot", "/x", "make setup"), (SLOT, "/" + "x" * 600, "ALIQUOT_RUNTIME_DIR")],
    ids=["a hook of another build", "a path too long for the slot"],
)
def test_a_library_that_cannot_hold_the_path_is_refused(library: bytes, path: str, advice: str):
    """It is refused before anything starts, with what to do."""
    with pytest.raises(InjectionError, match=advice):
        patched(library, Path(path))


@pytest.mark.parametrize(("name", "part"), STANDS_FOR.items())
def test_a_library_and_its_bare_name_are_one_file(folder, name, part):
    """Whichever of a library's names the loader asks for, it finds the same file, which is the one made for it."""
    bare = folder.lib / name.removesuffix(".1")

    assert bare.samefile(folder.lib / name)
    assert bare.read_bytes().startswith(part.encode())
    assert str(folder.directory / "tenant.conf").encode() in bare.read_bytes()


def test_a_build_that_lacks_a_part_is_refused(tmp_path, hook):
    """An installation without one of the hook's files is refused with what to do."""
    hook.with_name(STANDS_FOR["libnvidia-ml.so.1"]).unlink()
    conf = TenantConf("a", tmp_path / "socket", tmp_path / "emu/libcuda.so.1", tmp_path / "emu/libnvidia-ml.so.1")

    with pytest.raises(InjectionError, match="libaliquot_nvml"):
        provision(tmp_path / "t", conf, hook)


def test_a_driver_of_the_library_path_is_covered_too(folder, tmp_path, monkeypatch):
    """Where LD_LIBRARY_PATH leads to another driver, such as CUDA's compatibility package, ours is mounted over it."""
    (tmp_path / "compat").mkdir()
    (tmp_path / "compat/libcuda.so.1").write_bytes(b"\x7fELF\x02")
    (folder.directory / "ld.so.cache").touch()

    ready = launch(folder, ["true"], {"LD_LIBRARY_PATH": f"{tmp_path / 'compat'}:/none"}, mode="substitute")

    binds = json.loads(Path(ready.argv[-1]).read_text())["binds"]
    assert [str(folder.lib / "libcuda.so.1"), str(tmp_path / "compat/libcuda.so.1")] in binds


def test_the_configuration_names_the_driver_behind(folder, tmp_path):
    """The hook finds its socket and the libraries behind it by absolute path."""
    lines = dict(line.split("=", 1) for line in (folder.directory / "tenant.conf").read_text().splitlines())

    assert lines["libcuda"] == str(tmp_path / "emu/libcuda.so.1")
    assert lines["socket"] == str(tmp_path / "socket")


@pytest.mark.parametrize(
    ("mode", "name", "library"), [("library-path", "LD_LIBRARY_PATH", ""), ("preload", "LD_PRELOAD", "/libaliquot.so")]
)
def test_our_library_stands_before_what_the_user_set(folder, mode, name, library):
    """A mode that goes by the environment adds to the user's value and keeps it."""
    ready = launch(folder, ["true"], {name: "/mine"}, mode=mode)

    assert ready.env[name] == f"{folder.lib}{library}:/mine"


def test_only_the_owner_reads_a_launch(folder):
    """The file that carries a program's environment is closed to others."""
    path = Path(launch(folder, ["true"], {"SECRET": "x"}, mode="preload").argv[-1])

    assert path.stat().st_mode & 0o077 == 0
    assert json.loads(path.read_text())["env"]["SECRET"] == "x"


def test_core_lists_are_short():
    """Neighbouring cores are written as a range."""
    assert core_list([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert read_core_list("0-2,5,7-8\n") == [0, 1, 2, 5, 7, 8]


def test_more_cores_than_there_are_is_a_mistake():
    """Asking for more cores than the process may use says how many there are."""
    with pytest.raises(TooManyCores, match="ask for at most those"):
        nearest_cores(100_000)


def test_a_program_whose_starter_is_gone_does_not_start(folder, tmp_path):
    """The starter may end before the kernel knows whom to watch: then the program ends as if it had been watched."""
    ran = tmp_path / "ran"
    code = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
    ready = launch(folder, ["touch", str(ran)], dict(os.environ), mode="library-path", death_signal=signal.SIGKILL)
    subprocess.run([sys.executable, "-c", code, *ready.argv], check=True)
    launch_file = Path(ready.argv[-1])
    while launch_file.exists():
        time.sleep(0.01)
    time.sleep(0.3)  # what the program would need to run

    assert not ran.exists()


def test_a_program_whose_starter_lives_starts(folder, tmp_path):
    """The same program runs where its starter is the process that asked for the launch."""
    ran = tmp_path / "ran"
    ready = launch(folder, ["touch", str(ran)], dict(os.environ), mode="library-path", death_signal=signal.SIGKILL)

    assert 0 == subprocess.run(ready.argv, env=ready.env).returncode
    assert ran.exists()

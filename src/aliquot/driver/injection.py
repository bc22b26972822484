"""How a program loads our library instead of the driver's: the tenant folder and the ways of injection.

- *substitute*: our file stands where `libcuda.so.1` and `libnvidia-ml.so.1` are looked for, in a mount namespace of the
  tenant's own. Holds through `env -i`, RTLD_DEEPBIND, dlmopen, static cudart and Go.
- *library-path*: LD_LIBRARY_PATH leads to the folder. Needs no right at all; lost when a program clears or replaces it.
- *preload*: LD_PRELOAD. The loader's own look-ups (dlsym, dlvsym) are answered by the hook.
- *container*: the command starts a container, whose mounts are what injects; the command itself is not touched.

A *bare* folder is that of a tenant that owns whole GPUs and is not enforced: its programs load the driver itself, and
only its records are kept.

The hook trusts nothing from the environment: the path of its configuration is written into the copy of the library that
lies in the tenant's folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from aliquot.driver.mounts import SYSTEM_CACHE, driver_files, linker_cache
from aliquot.driver.native import STANDS_FOR
from aliquot.lib.files import write_whole
from aliquot.model.errors import AliquotError

Mode = Literal["substitute", "library-path", "preload", "auto", "container"]
MODES: Final[tuple[Mode, ...]] = ("auto", "substitute", "library-path", "preload")
CONF_MARK: Final = b"ALIQUOT-CONF:"
CONF_SLOT_BYTES: Final = 512
_DEFAULT_CONF: Final = b"/etc/aliquot/tenant.conf\0"
_HOOK_NAME: Final = "libaliquot.so"
_ENTER: Final = Path(__file__).with_name("enter.py")


class InjectionError(AliquotError):
    """The tenant's folder cannot be made as it has to be."""


@dataclass(frozen=True)
class TenantConf:
    """The settings that the hook of one tenant reads at its start; all paths absolute.

    An allocation that needs the arbiter waits `memory_patience_ms` for one that is away; 0 is the hook's default, 60 s.
    A program that starts with one of the CUDA_VISIBLE_DEVICES in `moved`, as of a GPU that the tenant has left, gets
    `visible`.
    """

    tenant: str
    socket: Path
    libcuda: Path
    libnvml: Path
    cpus: str = ""
    memory_patience_ms: int = 0
    visible: str = ""
    moved: tuple[str, ...] = ()

    def text(self, real: Path) -> str:
        """The file's content, with the driver's libraries as seen in the folder `real`."""
        lines = [
            f"tenant={self.tenant}",
            f"socket={self.socket}",
            f"libcuda={real / 'libcuda.so.1'}",
            f"libnvml={real / 'libnvidia-ml.so.1'}",
        ]
        if self.cpus:
            lines.append(f"cpus={self.cpus}")
        if self.memory_patience_ms:
            lines.append(f"memory-patience-ms={self.memory_patience_ms}")
        if self.moved:
            lines += [f"visible={self.visible}", f"moved={' '.join(self.moved)} "]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class TenantFolder:
    """One tenant's folder: `lib/` to be loaded, `real/` the driver behind it, `tenant.conf`; none of them if `bare`."""

    directory: Path
    conf: TenantConf
    bare: bool = False

    @property
    def lib(self) -> Path:
        """The directory that stands before the driver's; that of an emulated driver itself, if bare."""
        return self.conf.libcuda.parent if self.bare else self.directory / "lib"

    def injection(self) -> str:
        """How the last program was injected, in words; empty before the first."""
        report = self.directory / "injection"
        return report.read_text() if report.exists() else ""

    def write_conf(self) -> None:
        """Write what the hook reads; programs that have begun have read what was there then."""
        # The emulated libraries find their machine by the directory they were loaded from, so they are named directly;
        # only a driver that is about to be covered by a mount needs the second name.
        covered = {path for name in STANDS_FOR for path in driver_files(name)}
        behind = self.directory / "real" if self.conf.libcuda.resolve() in covered else self.conf.libcuda.parent
        file = self.directory / "tenant.conf"
        write_whole(file, self.conf.text(behind).encode(), synced=False, mode=0o644)

    def remove(self) -> None:
        """Delete the folder; a missing one is no error."""
        shutil.rmtree(self.directory, ignore_errors=True)


def provision(directory: Path, conf: TenantConf, hook: Path | None) -> TenantFolder:
    """Create a tenant's folder; a bare one without a hook.

    Raises:
        InjectionError: a part of the hook is missing or has no slot for the configuration's path, or the path is too
            long for it.
    """
    if hook is None:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        return TenantFolder(directory, conf, bare=True)
    lib, real, bound = (directory / name for name in ("lib", "real", "bound"))
    for folder in (directory, lib, real, bound):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, part in {_HOOK_NAME: hook.name, **STANDS_FOR}.items():
        target, library = lib / name, hook.with_name(part)
        try:
            content = library.read_bytes()
        except FileNotFoundError:
            raise InjectionError(f"{library} is missing; build it anew: make setup") from None
        target.write_bytes(patched(content, directory / "tenant.conf"))
        target.chmod(0o755)
    for name in STANDS_FOR:
        (lib / name.removesuffix(".1")).symlink_to(name)
    for name, driver in zip(STANDS_FOR, (conf.libcuda, conf.libnvml), strict=True):
        (real / name).symlink_to(driver)
        (bound / name).touch()
    made = TenantFolder(directory, conf)
    made.write_conf()
    return made


def patched(library: bytes, conf: Path) -> bytes:
    """The hook library with the path of its configuration written into the slot made for it.

    Raises:
        InjectionError: see `provision`.
    """
    start = library.find(CONF_MARK + _DEFAULT_CONF)
    if start < 0:
        raise InjectionError("libaliquot.so has no slot for the path of its configuration; build it anew: make setup")
    path = os.fsencode(conf)
    room = CONF_SLOT_BYTES - len(CONF_MARK) - 1
    if len(path) > room:
        raise InjectionError(f"{conf} is longer than {room} bytes; set ALIQUOT_RUNTIME_DIR to a shorter path")
    slot = (CONF_MARK + path).ljust(CONF_SLOT_BYTES, b"\0")
    return library[:start] + slot + library[start + CONF_SLOT_BYTES :]


def conf_of(library: Path) -> Path | None:
    """The configuration that a tenant's copy of our library names; None for a library of a driver."""
    _, mark, rest = library.read_bytes().partition(CONF_MARK)
    return Path(os.fsdecode(rest[:CONF_SLOT_BYTES].partition(b"\0")[0])) if mark else None


@dataclass(frozen=True)
class Launch:
    """A command ready for exec: `argv` with the step into the tenant's view before it, and the environment of both.

    That of the program travels in the file too; where root takes the step for an account, it is only there.
    """

    argv: list[str]
    env: dict[str, str]


def launch(
    folder: TenantFolder,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    mode: Mode = "auto",
    cwd: Path | None = None,
    death_signal: int = 0,
    verbose: bool = False,
    blocked: Sequence[int] = (),
    container: str = "",
    account: tuple[int, int, Sequence[int]] | None = None,
) -> Launch:
    """The command that runs `argv` as a program of the tenant, in one of its containers if there are several.

    `auto` substitutes and falls back to the library path where the kernel refuses. `death_signal` reaches the program
    when the thread that started it ends; the command has to be started by the process that asks for it here. `blocked`
    is the signal mask it starts with. The environment is exactly `env` and what the mode adds.

    With `account` (its number, group and further groups) root starts the program as that account. Then nothing that
    the account says counts before it has given up root: not its environment, and no driver that this leads to.
    """
    if not argv:
        raise InjectionError("there is no command to run")
    environment = dict(env)
    # A bare program finds the machine's own driver by itself, an emulated one where we say.
    bare = "none (the bare driver)" if folder.bare else ""
    own = mode == "container" or (folder.bare and folder.conf.libcuda.resolve() in driver_files("libcuda.so.1"))
    if own:
        pass
    elif mode == "library-path" or (folder.bare and mode == "preload"):
        _prepend(environment, "LD_LIBRARY_PATH", folder.lib)
    elif mode == "preload":
        _prepend(environment, "LD_PRELOAD", folder.lib / _HOOK_NAME)
        if folder.conf.libcuda.resolve() not in driver_files("libcuda.so.1"):
            _prepend(environment, "LD_LIBRARY_PATH", folder.conf.libcuda.parent)
    substitute = mode in ("auto", "substitute") and not own
    facts = {
        "mode": "substitute" if substitute else mode,
        "called": bare,
        "fallback": mode == "auto",
        "binds": _binds(folder, container, "" if account else environment.get("LD_LIBRARY_PATH", ""))
        if substitute
        else [],
        "lib": str(folder.lib),
        "argv": list(argv),
        "env": environment,
        "cwd": "" if cwd is None else str(cwd),
        "tenant": folder.conf.tenant,
        "report": str(folder.directory / "injection"),
        "death_signal": int(death_signal),
        "parent": os.getpid(),
        "account": account,
        "verbose": verbose,
        "blocked": [int(number) for number in blocked],
    }
    # A file that only its owner reads: the environment in it may hold secrets. Where the engine is the machine's, the
    # folder is not the account's to change.
    own = os.access(folder.directory, os.W_OK)
    path = (folder.directory if own else Path(tempfile.gettempdir())) / f"aliquot-{os.urandom(6).hex()}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as target:
        target.write(json.dumps(facts))
    return Launch([sys.executable, "-I", "-S", str(_ENTER), str(path)], {} if account else environment)


def _prepend(env: dict[str, str], name: str, path: Path) -> None:
    env[name] = ":".join(filter(None, [str(path), env.get(name, "")]))


def caches(folder: Path, container: str | None = None) -> list[Path]:
    """The loader's caches that programs of a tenant see in place of the machine's: one for each of its containers.

    No other process sees such a file, so it tells whose a process is.
    """
    return sorted(folder.glob("ld.so.cache*")) if container is None else [_cache(folder, container)]


def _cache(folder: Path, container: str) -> Path:
    return folder / (f"ld.so.cache-{container}" if container else "ld.so.cache")


def _binds(folder: TenantFolder, container: str, library_path: str) -> list[tuple[str, str]]:
    """What to mount where, in this order: the driver behind, ours before it, and the loader's cache.

    `library_path` may lead to another driver, such as CUDA's compatibility package: ours stands before that as well.
    """
    binds: list[tuple[str, str]] = []
    first = [Path(part) for part in library_path.split(":") if part.startswith("/")]
    files = {name: [] if folder.bare else driver_files(name, first) for name in STANDS_FOR}
    if folder.conf.libcuda.resolve() in files["libcuda.so.1"]:
        for name, library in zip(STANDS_FOR, (folder.conf.libcuda, folder.conf.libnvml), strict=True):
            binds.append((str(library.resolve()), str(folder.directory / "bound" / name)))
        binds.append((str(folder.directory / "bound"), str(folder.directory / "real")))
    binds += [(str(folder.lib / name), str(file)) for name in STANDS_FOR for file in files[name]]
    binds.append((str(make_cache(folder, container)), str(SYSTEM_CACHE)))
    return binds


def make_cache(folder: TenantFolder, container: str = "") -> Path:
    """The loader's cache for programs of a tenant, made if it is missing.

    Raises:
        LinkerCacheError: see there.
    """
    cache = _cache(folder.directory, container)
    if not cache.exists():
        linker_cache(cache, folder.lib)
    return cache


def probe_substitution() -> str:
    """Whether a private mount namespace can be had: "" if so, else why not."""
    code = "import runpy,sys; runpy.run_path(sys.argv[1])['new_mount_namespace']()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(_ENTER)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip().rsplit("\n", 1)[-1]

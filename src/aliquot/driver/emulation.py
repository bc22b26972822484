"""Emulated machines: GPUs that real CUDA clients can use on machines without any.

A machine is one directory with the twins of libcuda and libnvidia-ml, what they are to be (`emulator.conf`), and
the clock and the memory ledger, which all processes on it share (`engine.shm`). It computes nothing but copies and
fills: it proves protocol, accounting, timing and the binary interface, not arithmetic and not contention inside a GPU.
"""

from __future__ import annotations

import filecmp
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import msgspec

from aliquot.driver.gpu import core_list
from aliquot.driver.native import EMULATED_CUDA, EMULATED_NVML, native_part
from aliquot.lib.decoding import convert_to
from aliquot.lib.files import write_whole
from aliquot.model.errors import UserError
from aliquot.topology import Topology, parse_topo

MAX_GPUS: Final = 16
SHARED_BYTES: Final = 256 << 10
"""The size of `engine.shm`, at least what the emulated driver keeps in it."""
NODES: Final = "dev"
"""Where device nodes of an emulated machine lie in its directory; most have none."""
_NAMESPACE: Final = uuid.UUID("8f1d9a4e-6c1b-5a0e-9b1f-2d6b2f6d7a10")


class UnknownProfile(UserError):
    """A specification names no profile, or a number of GPUs that is not between 1 and 16."""


@dataclass(frozen=True)
class Profile:
    """The properties of one GPU model; sizes in the unit of their name."""

    name: str
    model: str
    compute_capability: str
    memory_mib: int
    context_mib: int
    sms: int
    threads_per_sm: int
    shared_per_sm: int
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int
    l2_bytes: int
    power_w: int
    nvlinks: int
    pcie_gen: int
    driver: str
    cuda_version: int
    topology: str
    topology_16: str = ""
    minors: tuple[int, ...] = ()
    """The device node numbers by index if they differ from it, for a machine of this many GPUs."""


@dataclass(frozen=True)
class EmulatedMachine:
    """A prepared directory; `uuids` in device order, as NVML prints them (`GPU-...`)."""

    directory: Path
    libcuda: Path
    libnvml: Path
    profile: Profile
    uuids: tuple[str, ...]


def _folder() -> Traversable:
    return files("aliquot.driver") / "profiles"


_COUNT: Final = re.compile(r"[0-9]{1,9}")
PROFILES: Final[Mapping[str, Profile]] = {
    name: convert_to(Profile, {"name": name, **msgspec.yaml.decode(entry.read_bytes())})
    for entry in sorted(_folder().iterdir(), key=lambda entry: entry.name)
    if (name := entry.name.removesuffix(".yaml")) != entry.name
}
"""Every profile by its short name, such as `v100`."""


def parse_spec(spec: str) -> tuple[Profile, int]:
    """The profile and the number of GPUs of a specification such as `v100` or `v100x4`.

    Raises:
        UnknownProfile: no such profile, or not 1 to 16 GPUs.
    """
    text = spec.strip().lower()
    if text in PROFILES:
        return PROFILES[text], 1
    name, times, number = text.rpartition("x")
    if not times or name not in PROFILES or not _COUNT.fullmatch(number):
        raise UnknownProfile(f"no emulated GPU {spec!r}; known are {', '.join(PROFILES)}, as in v100 or v100x4")
    if not 1 <= int(number) <= MAX_GPUS:
        raise UnknownProfile(f"no emulated machine {spec!r}; a machine has 1 to {MAX_GPUS} GPUs")
    return PROFILES[name], int(number)


def prepare(directory: Path, spec: str, *, extra: tuple[str, ...] = ()) -> EmulatedMachine:
    """Make `directory` an emulated machine; `extra` are further lines of emulator.conf, such as `fault=oom 3`.

    Calling it again for the same directory replaces the configuration; processes already running keep theirs.

    Raises:
        UnknownProfile: the specification is wrong.
        NativePartMissing: the emulated libraries are not installed.
        OSError: a file cannot be written.
    """
    profile, count = parse_spec(spec)
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    libraries = []
    for part in (EMULATED_CUDA, EMULATED_NVML):
        target = directory / Path(part).name
        libraries.append(target)
        if target.exists() and filecmp.cmp(native_part(part), target, shallow=False):
            continue  # the same file for processes that have it open or compare its identity
        write_whole(target, native_part(part).read_bytes(), synced=False, mode=0o755)
        target.chmod(0o755)  # whatever the umask: programs of other users load it
    link = libraries[0].with_suffix("")  # compilers link with this name (Triton's launchers)
    if not link.is_symlink():
        link.symlink_to(libraries[0].name)
    uuids = tuple(str(uuid.uuid5(_NAMESPACE, f"{directory}/{profile.name}/{i}")) for i in range(count))
    conf = "\n".join([*_conf_lines(profile, count, uuids), *extra]) + "\n"
    write_whole(directory / "emulator.conf", conf.encode(), synced=False, mode=0o644)
    engine = directory / "engine.shm"
    if not engine.exists():
        # The first program may be of a user who cannot make files here; the emulated driver fills it in.
        # Its disk space is allocated now: a program that maps a sparse file is killed when the disk is full.
        with engine.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, SHARED_BYTES)
            except OSError as error:
                engine.unlink()
                raise OSError(error.errno, error.strerror, str(engine)) from None
        engine.chmod(0o666)
    return EmulatedMachine(directory, libraries[0], libraries[1], profile, tuple(f"GPU-{u}" for u in uuids))


def driver_version(directory: Path) -> str:
    """The version of the driver that a prepared machine says it has; `unknown` where it does not say."""
    try:
        lines = (directory / "emulator.conf").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.removeprefix("driver=") for line in lines if line.startswith("driver=")), "unknown")


def _conf_lines(profile: Profile, count: int, uuids: tuple[str, ...]) -> Iterator[str]:
    major, minor = profile.compute_capability.split(".")
    yield f"# {profile.name} x {count}"
    yield f"count={count}"
    yield f"cc_major={major}"
    yield f"cc_minor={minor}"
    for field, value in vars(profile).items():
        if field not in ("name", "compute_capability", "topology", "topology_16", "minors"):
            yield f"{field}={value}"
    topology = profile_topology(profile, count)
    for i in range(count):
        yield f"uuid={i} {uuids[i]}"
        yield f"pci={i} 0000:{0x10 + 4 * i:02x}:00.0"
        yield f"cpus={i} {core_list(list(topology.cores[i]))}"
        yield f"numa={i} {topology.numa[i]}"
        yield f"minor={i} {profile_minors(profile, count)[i]}"
        yield from (f"link={i} {j} {topology.links[i][j]}" for j in range(i + 1, count))


def profile_minors(profile: Profile, count: int) -> tuple[int, ...]:
    """The minor numbers of a machine of `count` GPUs, by index."""
    return profile.minors if len(profile.minors) == count else tuple(range(count))


def make_nodes(directory: Path, spec: str) -> Path:
    """Give an emulated machine a folder of device nodes as `/dev` has them, and return it; empty files stand for them.

    A test that starts containers puts real device nodes there.

    Raises:
        UnknownProfile: the specification is wrong.
    """
    nodes = directory / NODES
    nodes.mkdir(parents=True, exist_ok=True)
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in profile_minors(*parse_spec(spec)))):
        (nodes / name).touch()
    return nodes


def profile_topology(profile: Profile, count: int) -> Topology:
    """How the first `count` GPUs of a profile are connected; beyond one board the boards are SYS apart, wired alike."""
    name = profile.topology_16 if count > 8 and profile.topology_16 else profile.topology
    board = parse_topo((_folder() / "topologies" / name).read_text("utf-8"))
    size = board.count
    links = [
        [board.links[i % size][j % size] if i // size == j // size else "SYS" for j in range(count)]
        for i in range(count)
    ]
    # Matrices of machines before NUMA columns tell the nodes by their cores alone.
    nodes = {cores: number for number, cores in enumerate(dict.fromkeys(board.cores))}
    cores = [board.cores[i % size] for i in range(count)]
    told = [board.numa[i % size] for i in range(count)]
    numa = [nodes[near] if node is None else node for node, near in zip(told, cores, strict=True)]
    return Topology.of(links, numa=numa, cores=cores)

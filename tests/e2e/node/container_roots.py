"""Container images whose root file systems differ in what a loader sees: whose C library, which folders, which cache.

Real C libraries of Debian packages. Red Hat's layout is had from Debian's 64-bit library for i386 machines, whose
loader looks in /lib64 and /usr/lib64 by itself and not in Debian's folders, as Red Hat's and most others' do.
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster import cache, images, packages
from cluster.cache import say

HERE = Path(__file__).resolve().parent
VERSION = 1
NEW, OLD = "bookworm", "bullseye"
"""glibc 2.36, and 2.31: before 2.34, which moved libdl and libpthread into libc."""
CUDA_IMAGE = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}
"""As images made for CUDA are. Source: NVIDIA's CUDA base images."""
NOT_THE_DRIVERS = "int cuInit(unsigned flags) { return flags ? 999 : 998; }\n"
FOREIGN = "libcuda.so.470.1"


def archives(busybox: Path) -> Path:
    """A folder with an OCI archive for each kind of root, by name; made if it is not in the cache."""
    sources = [(HERE / name).read_bytes() for name in ("client.c", "bystander.c", "container_roots.py")]
    return cache.kept(f"roots-{cache.key(*sources, str(VERSION).encode())}", lambda into: _make(into, busybox))


def image(name: str) -> str:
    """What a pod calls the image of that kind of root."""
    return f"localhost/root-{name}:1"


def _make(into: Path, busybox: Path) -> None:
    say("making container images of several kinds, once")
    build = into / "build"
    build.mkdir()
    client = _client(build)
    for suite, end in ((NEW, ""), (OLD, "-old")):
        _write(into, f"debian{end}", lambda root, suite=suite: _debian(root, suite, client, busybox))  # type: ignore[misc]
        _write(into, f"redhat{end}", lambda root, suite=suite: _redhat(root, suite, client, busybox))  # type: ignore[misc]
    _write(into, "debian-cuda", lambda root: _debian(root, NEW, client, busybox), CUDA_IMAGE)
    _write(into, "redhat-bare", lambda root: _redhat(root, NEW, client, busybox, bare=True))
    _write(into, "own-driver", lambda root: _own_driver(root, client, busybox, "usr/lib/x86_64-linux-gnu"))
    _write(into, "own-elsewhere", lambda root: _own_driver(root, client, busybox, "opt/own"))
    _write(into, "musl", _musl, CUDA_IMAGE)
    _write(into, "static", lambda root: _static(root, busybox))
    shutil.rmtree(build)


def _write(into: Path, name: str, make: Callable[[Path], None], environment: Mapping[str, str] | None = None) -> None:
    root = into / "build" / name
    root.mkdir()
    make(root)
    images.write_archive(into / f"{name}.tar", image(name), images.one_layer(root), ["/client"], environment)


def _glibc(suite: str) -> Path:
    return packages.unpacked("debian", {"libc6": suite, "libc-bin": suite}, ["sbin/ldconfig"])


def _client(build: Path) -> Path:
    """The CUDA client, linked against the older C library, so that it runs on both."""
    names = ("libc6", "libc6-dev", "linux-libc-dev")
    tree = packages.unpacked("sysroot", dict.fromkeys(names, OLD), ["usr/include/dlfcn.h"])
    ours, links = tree / "usr/lib/x86_64-linux-gnu", tree / "lib/x86_64-linux-gnu"
    headers = (f"--sysroot={tree}", f"-isystem{tree}/usr/include/x86_64-linux-gnu")
    end = [links / "libdl.so.2", links / "libc.so.6", ours / "libc_nonshared.a"]
    return _compiled(build / "client", HERE / "client.c", ours, *headers, after=end)


def _compiled(target: Path, source: Path, start: Path, *options: str, after: Sequence[str | Path]) -> Path:
    """A program of one file, with the C library's own start and end in `start` and nothing of this machine's."""
    first, last = (start / "crt1.o", start / "crti.o"), start / "crtn.o"
    command = ["cc", "-O1", "-w", "-no-pie", "-nostdlib", *options, *first, source, "-o", target, *after, last]
    subprocess.run([str(part) for part in command], check=True)
    return target


def _skeleton(root: Path, busybox: Path, *links: str) -> None:
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "tmp"):
        (root / folder).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    shutil.copy2(busybox, root / "usr/bin/busybox")
    (root / "usr/bin/sh").symlink_to("busybox")


def _libraries(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_symlink() or file.is_file():
            shutil.copy2(file, target / file.name, follow_symlinks=False)


def _debian(root: Path, suite: str, client: Path, busybox: Path) -> None:
    """As Debian and Ubuntu lay it out, with ldconfig and the cache it makes."""
    tree = _glibc(suite)
    _skeleton(root, busybox)
    _libraries(tree / "lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu")
    shutil.copy2(tree / "lib64/ld-linux-x86-64.so.2", root / "usr/lib64", follow_symlinks=False)
    shutil.copytree(tree / "etc/ld.so.conf.d", root / "etc/ld.so.conf.d")
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    shutil.copy2(tree / "sbin/ldconfig", root / "usr/sbin")
    shutil.copy2(client, root)
    _make_cache(root)


def _redhat(root: Path, suite: str, client: Path, busybox: Path, *, bare: bool = False) -> None:
    """As Red Hat and most others lay it out; `bare` has neither ldconfig nor a cache, as the smallest images."""
    _skeleton(root, busybox)
    loader = "lib64/ld-linux-x86-64.so.2"
    _libraries(packages.unpacked("redhat", {"libc6-amd64:i386": suite}, [loader]) / "lib64", root / "usr/lib64")
    shutil.copy2(client, root)
    if not bare:
        # Red Hat's own ldconfig knows this folder without being told.
        (root / "etc/ld.so.conf").write_text("/usr/lib64\n")
        shutil.copy2(_glibc(suite) / "sbin/ldconfig", root / "usr/sbin")
        _make_cache(root)


def _own_driver(root: Path, client: Path, busybox: Path, folder: str) -> None:
    """An image that brings a libcuda of its own, in a folder that its cache names."""
    _debian(root, NEW, client, busybox)
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    source = root / "tmp/own.c"
    source.write_text(NOT_THE_DRIVERS)
    options = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *options, str(source), "-o", str(place / FOREIGN)], check=True)
    source.unlink()
    (place / "libcuda.so.1").symlink_to(FOREIGN)
    (root / "etc/ld.so.conf.d/000-own.conf").write_text(f"/{folder}\n")
    _make_cache(root)


def _musl(root: Path) -> None:
    """As Alpine lays it out: a dynamically linked program and musl's loader, and no other C library."""
    tree = packages.unpacked("musl", {"musl": NEW, "musl-dev": NEW}, ["usr/lib/x86_64-linux-musl/crt1.o"])
    for folder in ("lib", "proc", "dev", "tmp", "etc"):
        (root / folder).mkdir()
    shutil.copy2(tree / "lib/x86_64-linux-musl/libc.so", root / "lib/ld-musl-x86_64.so.1")
    libraries, headers = tree / "usr/lib/x86_64-linux-musl", tree / "usr/include/x86_64-linux-musl"
    options = ("-nostdinc", f"-isystem{headers}", "-Wl,-dynamic-linker,/lib/ld-musl-x86_64.so.1")
    end = [f"-L{tree}/lib/x86_64-linux-musl", "-lc"]
    _compiled(root / "client", HERE / "bystander.c", libraries, *options, after=end)


def _static(root: Path, busybox: Path) -> None:
    """One program that needs nothing, in a root that has nothing."""
    shutil.copy2(busybox, root / "busybox")


def _make_cache(root: Path) -> None:
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True, capture_output=True)

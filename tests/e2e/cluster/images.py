"""Container images without a registry or an engine: one layer each, from busybox and from the host's own Python."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from . import cache
from .cache import say

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
PYTHON = "localhost/python:1"
EXAMPLE = "aliquot-example:1"
"""The image that the manifests in examples/ name, as examples/Dockerfile makes it."""
EXAMPLE_AT = "examples/train.py"
EXAMPLE_PROGRAM = Path(__file__).resolve().parents[3] / EXAMPLE_AT
VERSION = 2
FOLDERS = ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "etc", "proc", "sys", "dev", "tmp", "root"]
NOT_IN_IMAGE = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages", "distutils"}
# What extension modules from PyPI commonly link besides what the interpreter links.
LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libm.so.6")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
OCI = "application/vnd.oci.image"


def archives(busybox: Path) -> list[Path]:
    """OCI archives of `PAUSE`, `BUSYBOX` and `PYTHON`, made if they are not in the cache."""
    python = Path(sys.executable).resolve()
    facts = (sys.version, str(python), str(python.stat().st_mtime_ns), str(busybox.stat().st_size), str(VERSION))
    key = cache.key(*(fact.encode() for fact in facts))
    folder = cache.kept(f"images-{key}", lambda into: _make(into, busybox, python))
    return sorted(folder.glob("*.tar"))


def example(busybox: Path) -> Path:
    """OCI archive of `EXAMPLE`, with this Python, made if it is not in the cache."""
    python = Path(sys.executable).resolve()
    facts = (sys.version, str(python), str(python.stat().st_mtime_ns), str(VERSION), EXAMPLE_AT)
    key = cache.key(*(fact.encode() for fact in facts), EXAMPLE_PROGRAM.read_bytes())
    folder = cache.kept(f"example-{key}", lambda into: _make_example(into, busybox, python))
    return folder / "example.tar"


def _make_example(into: Path, busybox: Path, python: Path) -> None:
    root = into / "root"
    _skeleton(root, busybox)
    _add_python(root, python)
    (root / EXAMPLE_AT).parent.mkdir()
    shutil.copy2(EXAMPLE_PROGRAM, root / EXAMPLE_AT)
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True, capture_output=True)
    name = f"docker.io/library/{EXAMPLE}"
    entrypoint = ["/usr/local/bin/python3", f"/{EXAMPLE_AT}", "--json"]
    write_archive(into / "example.tar", name, one_layer(root), entrypoint)
    shutil.rmtree(root)


def _make(into: Path, busybox: Path, python: Path) -> None:
    say("making container images from busybox and this Python, once")
    root = into / "root"
    _skeleton(root, busybox)
    layer = one_layer(root)
    write_archive(into / "busybox.tar", BUSYBOX, layer, ["/bin/sh"])
    # A pause container only has to stay; as process 1 it is ended by KILL.
    write_archive(into / "pause.tar", PAUSE, layer, ["/bin/sleep", "2147483647"])
    _add_python(root, python)
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True, capture_output=True)
    write_archive(into / "python.tar", PYTHON, one_layer(root), ["/usr/local/bin/python3"])
    shutil.rmtree(root)


def unpack(archive: Path, into: Path) -> None:
    """The files of an archive's one layer."""
    with tarfile.open(archive) as tar:

        def blob(facts: Mapping[str, str]) -> io.BytesIO:
            file = tar.extractfile(f"blobs/sha256/{facts['digest'].removeprefix('sha256:')}")
            assert file is not None
            return io.BytesIO(file.read())

        index = tar.extractfile("index.json")
        assert index is not None
        manifest = json.load(blob(json.load(index)["manifests"][0]))
        with tarfile.open(fileobj=blob(manifest["layers"][0])) as layer:
            layer.extractall(into, filter="fully_trusted")


def _skeleton(root: Path, busybox: Path) -> None:
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    shutil.copy2(busybox, root / "usr/bin/busybox")
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            (root / "usr/bin" / applet).symlink_to("busybox")


def _add_python(root: Path, python: Path) -> None:
    target = root / "usr/local/bin/python3"
    shutil.copy2(python.resolve(), target)
    (root / "usr/local/bin/python").symlink_to("python3")
    stdlib = Path(sysconfig.get_path("stdlib"))
    inside = root / "usr/local/lib" / stdlib.name

    def unwanted(folder: str, entries: list[str]) -> set[str]:
        optional = (".a", ".opt-1.pyc", ".opt-2.pyc")
        return {e for e in entries if e in NOT_IN_IMAGE or e.startswith("config-") or e.endswith(optional)}

    shutil.copytree(stdlib, inside, ignore=unwanted, symlinks=True)
    (inside / "site-packages").mkdir()
    for library in _linked([python, *(stdlib / "lib-dynload").glob("*.so")]):
        copy = root / str(library.parent.resolve()).lstrip("/") / library.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), copy)
    folders = {str(library.parent.resolve()) for library in _linked([python])}
    (root / "etc/ld.so.conf").write_text("".join(f"{folder}\n" for folder in sorted(folders)))


def _linked(programs: Iterable[Path]) -> set[Path]:
    """Shared libraries that the programs need, under the names by which they are looked for."""
    listed = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    found = {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.MULTILINE)}
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True)
    for name in LIBRARIES:
        if match := re.search(rf"^\s*{re.escape(name)} \(libc6,[^)]*64[^)]*\) => (\S+)", known.stdout, re.MULTILINE):
            found.add(Path(match.group(1)))
    return found


def one_layer(root: Path) -> bytes:
    """A folder as the one layer of an image, all of it root's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            entry = tar.gettarinfo(str(path), str(path.relative_to(root)))
            # The time of a file stays: Python would compile again whatever is not as old as its compiled form says.
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = "root"
            if entry.isfile():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    return out.getvalue()


def write_archive(
    path: Path, name: str, layer: bytes, entrypoint: Sequence[str], environment: Mapping[str, str] | None = None
) -> None:
    """Writes an OCI image archive of one uncompressed layer (OCI image specification 1.0: layout, manifest, config)."""
    architecture = MACHINES.get(platform.machine(), platform.machine())
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", **(environment or {})}
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": [f"{key}={value}" for key, value in variables.items()]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{OCI}.config.v1+json"),
        "layers": [blob(layer, f"{OCI}.layer.v1.tar")],
    }
    described = blob(json.dumps(manifest).encode(), f"{OCI}.manifest.v1+json")
    described |= {
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
    }
    index = {"schemaVersion": 2, "manifests": [described]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    with tarfile.open(path, "w") as tar:
        for file, content in files.items():
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))

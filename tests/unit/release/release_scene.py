"""A small tree that can be released, and what lies in its dist/; a test spoils one thing of it."""

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools"))

VERSION = "1.2.0"
IN_SDIST = (
    "LICENSE", "pyproject.toml", "lab/pyproject.toml", "CMakeLists.txt", "native/hook/work/gate.c",
    "src/aliquot/cli/main.py", "src/aliquot_lab/cli/sim.py",
)  # fmt: skip
VENDOR = "src/aliquot/web/static/vendor"
CHART = "apiVersion: v2\nname: aliquot\nversion: {0}\nappVersion: {0}\n"
FILES = {
    "pyproject.toml": f'[project]\nname = "aliquot-gpu"\nversion = "{VERSION}"\nlicense-files = ["LICENSE"]\n',
    "lab/pyproject.toml": f'[project]\nname = "aliquot-lab"\nversion = "{VERSION}"\n',
    "uv.lock": f'[[package]]\nname = "aliquot-gpu"\nversion = "{VERSION}"\n',
    "deploy/chart/Chart.yaml": CHART.format(VERSION),
    "deploy/manifests/aliquot.yaml": "kind: Namespace\n",
    "CHANGELOG.md": f"# Changelog\n\n## {VERSION} (2026-03-01)\n\n- Shared.\n\n## 1.1.0 (2026-01-01)\n\n- Begun.\n",
    "LICENSE": "Apache License\n",
    f"{VENDOR}/README.md": "| chart.js | npm | 1 | MIT (LICENSE.chart) |\n",
    f"{VENDOR}/LICENSE.chart": "MIT\n",
    f"{VENDOR}/chart.js": "draw()\n",
    ".gitignore": "/dist/\n/build/\n",
}


class Tree:
    """A git checkout with one commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text, commit=False)
        self.git("init", "--quiet")
        self.commit()

    @property
    def dist(self) -> Path:
        return self.root / "dist"

    def write(self, name: str, text: str, *, commit: bool = True) -> None:
        """Writes a file of the tree."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if commit:
            self.commit()

    def change(self, name: str, old: str, new: str) -> None:
        """Replaces a text that is in a file."""
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "Change")

    def git(self, *arguments: str) -> None:
        """Runs git here, as nobody in particular."""
        author = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *author, *arguments], cwd=self.root, check=True, capture_output=True)

    def built(self) -> None:
        """Puts into dist/ what make release builds first."""
        self.dist.mkdir(exist_ok=True)
        kernels, emulator = "libaliquot_kernels.so", ("emulator/libcuda.so.1", "emulator/libnvidia-ml.so.1")
        hook = ("libaliquot.so", "libaliquot_cuda.so", "libaliquot_nvml.so", "libaliquot_handover.so")
        wheel(self.dist, "x86_64", {part: elf(62) for part in (*hook, kernels, *emulator)})
        wheel(self.dist, "aarch64", {kernels: elf(183)})
        programs = {f"bench/aliquot-bench-{name}": elf(62) for name in ("client", "driver", "storm", "token")}
        wheel(self.dist, "x86_64", programs, package="aliquot_lab")
        wheel(self.dist, "aarch64", {}, package="aliquot_lab")
        sdist(self.dist, IN_SDIST)


def elf(machine: int, needs: str = "GLIBC_2.17") -> bytes:
    """The beginning of a native part for a processor, which asks for a glibc."""
    return b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + machine.to_bytes(2, "little") + needs.encode()


def wheel(
    dist: Path, arch: str, native: dict[str, bytes], version: str = VERSION, licence: bool = True,
    package: str = "aliquot_gpu",
) -> Path:  # fmt: skip
    """A wheel with these native parts, below native/ of its package."""
    path = dist / f"{package}-{VERSION}-py3-none-manylinux_2_17_{arch}.whl"
    facts = f"{package}-{VERSION}.dist-info"
    folder = package.removesuffix("_gpu")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.4\nName: {package}\nVersion: {version}\n")
        if licence:
            archive.writestr(f"{facts}/licenses/LICENSE", "Apache License\n")
        for name, content in native.items():
            archive.writestr(f"{folder}/native/{name}", content)
    return path


def sdist(dist: Path, names: tuple[str, ...]) -> Path:
    """A source archive with these files."""
    path = dist / f"aliquot_gpu-{VERSION}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"aliquot_gpu-{VERSION}/{name}"))
    return path


def image(tree: Tree, version: str) -> Path:
    """An image archive of this version, where make image leaves it."""
    path = tree.root / "build" / "aliquot-image.tar"
    path.parent.mkdir(exist_ok=True)
    config = {"config": {"Labels": {"org.opencontainers.image.version": version}}}
    with tarfile.open(path, "w") as archive:
        for name, body in (("manifest.json", [{"Config": "c.json", "Layers": []}]), ("c.json", config)):
            content = json.dumps(body).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path

"""Check that a release is whole, then gather what it hands out in dist/, with its sums.

    tools/release.py --check    only the tree: versions, changelog, licences, generated files, nothing uncommitted
    tools/release.py            the tree, the wheels and the sdist in dist/; adds chart, manifests, image, SHA256SUMS

Nothing is written where something is amiss: each fault is one sentence, and all of them are told at once.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import check_wheel
from image import labels, version_of
from release_tree import ROOT, tree_faults

SUMS = "SHA256SUMS"
IMAGE = Path("build/aliquot-image.tar")
NOT_IN_SDIST = (".git/", ".venv/", "build/", "dist/")
IN_SDIST = (
    "LICENSE", "pyproject.toml", "lab/pyproject.toml", "CMakeLists.txt", "native/hook/work/gate.c",
    "src/aliquot/cli/main.py", "src/aliquot_lab/cli/sim.py",
)  # fmt: skip


class NoChart(Exception):
    """There is none; the text is one sentence for a person."""


def built(dist: Path, version: str) -> dict[str, Path]:
    """What has to be built before, by what it is."""
    wheels = {
        f"the wheel of {name} for {arch}": dist / f"{name}-{version}-py3-none-manylinux_2_17_{arch}.whl"
        for name in check_wheel.PARTS
        for arch in sorted(check_wheel.ARCHITECTURES, reverse=True)
    }
    return wheels | {"the sdist": dist / f"aliquot_gpu-{version}.tar.gz"}


def added(version: str) -> tuple[str, str, str, str]:
    """The names of what is made here: chart, plain manifests, image, sums."""
    return f"aliquot-{version}.tgz", f"aliquot-{version}.yaml", f"aliquot-{version}-image.tar", SUMS


def artifact_faults(root: Path, dist: Path) -> list[str]:
    """One sentence for each artifact that is missing, foreign or not of this version."""
    version = version_of(root)
    wanted = built(dist, version)
    missing = {what: path for what, path in wanted.items() if not path.exists()}
    found = [f"dist/{path.name}: {what} is missing; build it with make release" for what, path in missing.items()]
    ours = {path.name for path in wanted.values()} | set(added(version))
    # uv leaves a .gitignore in the folder that it writes to.
    for path in sorted(dist.glob("[!.]*")):
        if path.name not in ours:
            found.append(f"dist/{path.name}: it does not belong to {version}; remove it")
    for path in set(wanted.values()) - set(missing.values()):
        found += _wheel_faults(path, version) if path.suffix == ".whl" else _sdist_faults(path, version)
    return sorted([*found, *_image_faults(root / IMAGE, version)])


def _image_faults(image: Path, version: str) -> list[str]:
    if not image.exists():
        return []
    try:
        labelled = labels(image).get("org.opencontainers.image.version")
    except (tarfile.TarError, KeyError):
        return [f"{IMAGE}: it is not a whole archive of an image; make image builds it anew"]
    wrong = f"{IMAGE}: it is of version {labelled}, the tree is {version}; make image builds it anew"
    return [wrong] if labelled != version else []


def _wheel_faults(wheel: Path, version: str) -> list[str]:
    found = check_wheel.faults(wheel)
    if check_wheel.readable(wheel):
        with zipfile.ZipFile(wheel) as archive:
            name = wheel.name.partition("-")[0]
            told = archive.read(f"{name}-{version}.dist-info/METADATA").decode()
        found += [] if f"\nVersion: {version}\n" in told else [f"{wheel.name}: its metadata says another version"]
    return found


def _sdist_faults(sdist: Path, version: str) -> list[str]:
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"aliquot_gpu-{version}/") for name in archive.getnames()}
    found = [f"{sdist.name}: {name} is missing" for name in IN_SDIST if name not in names]
    strays = sorted(name for name in names if name.startswith(NOT_IN_SDIST))
    return found + ([f"{sdist.name}: it has {strays[0]}, which is no source"] if strays else [])


def gather(root: Path, dist: Path, helm: str) -> list[Path]:
    """Adds the chart, the plain manifests and the image, and writes the sums of everything.

    Raises:
        NoChart: helm failed; nothing was added.
    """
    _, manifests, image, sums = added(version_of(root))
    command = [helm, "package", str(root / "deploy" / "chart"), "--destination", str(dist)]
    packed = subprocess.run(command, capture_output=True, text=True)
    if packed.returncode:
        said = (packed.stderr.strip() or "it says nothing").splitlines()[-1]
        raise NoChart(f"`{Path(helm).name} package` ends with status {packed.returncode}: {said}")
    shutil.copyfile(root / "deploy" / "manifests" / "aliquot.yaml", dist / manifests)
    if (root / IMAGE).exists():
        shutil.copyfile(root / IMAGE, dist / image)
    files = sorted(path for path in dist.glob("aliquot[-_]*") if path.is_file())
    lines = [f"{_sum(path)}  {path.name}\n" for path in files]
    (dist / sums).write_text("".join(lines))
    return files


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Check, and gather unless told otherwise; status 1 when something is amiss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="look at the tree alone and write nothing")
    parser.add_argument("--helm", default=shutil.which("helm") or "", help="where helm is, if not on PATH")
    chosen = parser.parse_args()
    dist = ROOT / "dist"
    found = tree_faults(ROOT, chosen.helm)
    if not chosen.check:
        found += artifact_faults(ROOT, dist)
    for fault in found:
        print(f"aliquot: release: {fault}", file=sys.stderr)
    if found:
        return 1
    if chosen.check:
        print(f"aliquot {version_of(ROOT)}: nothing stands against it")
        return 0
    try:
        gathered = gather(ROOT, dist, chosen.helm)
    except NoChart as error:
        print(f"aliquot: release: {error}", file=sys.stderr)
        return 1
    for path in gathered:
        print(f"{path.stat().st_size / 1e3:9,.0f} kB  dist/{path.name}")
    print(f"sums in dist/{SUMS}; check them there with: sha256sum --check {SUMS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

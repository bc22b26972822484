"""Build the container image with docker, podman or buildah, whichever is here, and say how large it is.

tools/image.py                                        aliquot:VERSION, from the registry's python
tools/image.py --archive build/aliquot-image.tar      and write it as a file that any runtime imports
tools/image.py --build-image LOCAL --image LOCAL      from other bases; tools/image_base.py makes one
tools/image.py -- --network host                      what follows goes to the engine's build command
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
IGNORED = DOCKERFILE.with_name("Dockerfile.dockerignore")
# docker and podman find the list of what is left out beside the Dockerfile; buildah is told.
ENGINES = {"docker": [], "podman": [], "buildah": ["--ignorefile", str(IGNORED)]}


class NoImage(Exception):
    """There is none; the text is one sentence for a person."""


def version_of(root: Path) -> str:
    """The project's version, as pyproject.toml says; all others follow it."""
    text: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return text


def usable(engine: str) -> bool:
    """Whether the engine is here and works: docker's client alone builds nothing."""
    return bool(shutil.which(engine)) and not subprocess.run([engine, "info"], capture_output=True).returncode


def build(engine: str, tag: str, arguments: list[str]) -> None:
    """Builds the image.

    Raises:
        NoImage: the engine failed; it has said why.
    """
    # Docker's own format for all of them, so that an archive imports everywhere.
    options = [*ENGINES[Path(engine).name], "--file", str(DOCKERFILE), "--tag", tag]
    _run([engine, "build", *options, *arguments, str(ROOT)])


def save(engine: str, tag: str, archive: Path) -> None:
    """Writes the image as an archive (docker's) with its name in it; what was there stays until it is whole.

    Raises:
        NoImage: the engine failed; it has said why.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    whole = archive.with_name(f"{archive.name}.new")
    whole.unlink(missing_ok=True)
    try:
        if Path(engine).name == "buildah":
            _run([engine, "push", "--quiet", tag, f"docker-archive:{whole}:{tag}"])
        else:
            _run([engine, "save", "--output", str(whole), tag])
        whole.replace(archive)
    finally:
        whole.unlink(missing_ok=True)


def layers_mib(archive: Path) -> list[float]:
    """The size of each layer of an archive in MiB, the base's first."""
    with tarfile.open(archive) as tar:
        (manifest,) = _inside(tar, "manifest.json")
        return [tar.getmember(layer).size / 2**20 for layer in manifest["Layers"]]


def reference(archive: Path) -> str:
    """The image's name and tag, as the archive has them."""
    with tarfile.open(archive) as tar:
        (manifest,) = _inside(tar, "manifest.json")
        return str(manifest["RepoTags"][0])


def configuration(archive: Path) -> dict[str, Any]:
    """The image's configuration, as the OCI image specification has it."""
    with tarfile.open(archive) as tar:
        (manifest,) = _inside(tar, "manifest.json")
        found: dict[str, Any] = _inside(tar, manifest["Config"])
        return found


def labels(archive: Path) -> dict[str, str]:
    """The image's labels."""
    return configuration(archive)["config"].get("Labels") or {}


def _inside(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    assert file is not None
    return json.load(file)


def _run(command: list[str]) -> None:
    if subprocess.run(command).returncode:
        raise NoImage(f"`{Path(command[0]).name} {command[1]}` failed; what it said stands above")


def chosen_engine(wanted: str) -> str:
    """The engine to build with.

    Raises:
        NoImage: there is none.
    """
    for engine in [wanted] if wanted else list(ENGINES):
        if usable(engine):
            return engine
    raise NoImage(
        f"{wanted or 'none of docker, podman and buildah'} works here; install one of them and, for docker, start it"
    )


def main() -> int:
    """Build, save and measure; status 1 with a sentence when that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="", help="docker, podman or buildah, or a path to one of them")
    parser.add_argument("--tag", default=f"aliquot:{version_of(ROOT)}")
    parser.add_argument("--image", default="", help="what the image is built on")
    parser.add_argument("--build-image", default="", help="where it is built")
    parser.add_argument("--archive", type=Path, help="write the image to this file")
    parser.add_argument("more", nargs="*", help="arguments of the engine's build command, after --")
    chosen = parser.parse_args()
    bases = {"IMAGE": chosen.image, "BUILD_IMAGE": chosen.build_image, "VERSION": version_of(ROOT)}
    given = [part for key, value in bases.items() if value for part in ("--build-arg", f"{key}={value}")]
    try:
        engine = chosen_engine(chosen.engine)
        build(engine, chosen.tag, given + chosen.more)
        if chosen.archive:
            save(engine, chosen.tag, chosen.archive.resolve())
            sizes = layers_mib(chosen.archive)
            print(f"{chosen.archive}: {sum(sizes):.0f} MiB in layers of {', '.join(f'{s:.0f}' for s in sizes)}")
    except NoImage as error:
        print(f"aliquot: no image: {error}", file=sys.stderr)
        return 1
    print(f"built {chosen.tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The project's image, built from its Dockerfile: buildah and a base from Debian packages, no registry and no engine.

What the build fetches comes from the package registries that this machine is set up for, so its settings for them are
shown to the build and to nothing else.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import cache, packages
from .cache import Unavailable, say

ROOT = Path(__file__).resolve().parents[3]
TAG = "localhost/aliquot:built"
BASE = "localhost/base:1"
PACKAGES = dict.fromkeys(
    ("buildah", "mmdebstrap", "libassuan0", "libdevmapper1.02.1", "libgpg-error0", "libgpgme11", "libseccomp2"),
    "bookworm",
)
NEEDED = ("usr/bin/buildah", "usr/bin/mmdebstrap")
SOURCES = (
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "deploy/docker",
    "native",
    "pyproject.toml",
    "src/aliquot",
    "tools",
    "uv.lock",
)
"""What the Dockerfile's ignore list lets in."""

POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'


def image() -> Path:
    """The image's archive (docker's format), built anew when something in it has changed.

    ALIQUOT_IMAGE names another to be tested, such as the one that `make image` has left.

    Raises:
        Unavailable: it cannot be built here; what the build said stands above.
    """
    if ready := os.environ.get("ALIQUOT_IMAGE"):
        return Path(ready).resolve()
    programs = packages.unpacked("builder", PACKAGES, NEEDED)
    base = _base(programs)
    listing = [b"1", base.parent.name.encode()]
    listing += [part for path in _files() for part in (str(path.relative_to(ROOT)).encode(), path.read_bytes())]
    made = cache.kept(f"image-{cache.key(*listing)}", lambda into: _build(into / "aliquot.tar", programs, base))
    # Each change of the code makes another, of no use to anybody but this checkout.
    for old in cache.root().glob("image-*"):
        if old != made and not old.name.startswith("image-base-") and old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
    return made / "aliquot.tar"


def _files() -> Iterator[Path]:
    for name in SOURCES:
        found = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*"))
        yield from (path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _base(programs: Path) -> Path:
    recipe = ROOT / "tools" / "image_base.py"

    def make(into: Path) -> None:
        say("making a base for the image from Debian packages, once")
        # mmdebstrap has a program beside itself that it looks for on PATH.
        path = f"{programs / 'usr/bin'}:{os.environ['PATH']}"
        _run([sys.executable, str(recipe), str(into / "base.tar")], {**os.environ, "PATH": path})

    return cache.kept(f"image-base-{cache.key(recipe.read_bytes())}", make) / "base.tar"


def _build(archive: Path, programs: Path, base: Path) -> None:
    say("building the image with buildah")
    with tempfile.TemporaryDirectory(prefix="aliquot-build-") as folder:
        state = Path(folder)
        environment = _environment(programs, state)
        buildah = str(programs / "usr/bin/buildah")
        loader = state / "ld.so.cache"
        container = _run([buildah, "from", "scratch"], environment, loader).strip()
        _run([buildah, "add", "--quiet", container, str(base), "/"], environment, loader)
        _run([buildah, "commit", "--quiet", "--rm", container, BASE], environment, loader)
        command = [sys.executable, str(ROOT / "tools" / "image.py"), "--engine", buildah, "--tag", TAG]
        shown = [part for volume in _settings(state) for part in ("--volume", volume)]
        bases = ("--image", BASE, "--build-image", BASE)
        _run([*command, *bases, "--archive", str(archive), "--", *shown, "--pull-never"], environment, loader)


def _environment(programs: Path, state: Path) -> dict[str, str]:
    """buildah with its storage in `state`: no daemon, no layers on overlayfs, no namespace but a chroot."""
    (state / ".config/containers").mkdir(parents=True)
    (state / ".config/containers/policy.json").write_text(POLICY)
    (state / "storage.conf").write_text(STORAGE.format(state))
    (state / "registries.conf").write_text("unqualified-search-registries = []\n")
    (state / "tmp").mkdir()
    # buildah starts itself again with an environment of its own, so its libraries are shown to the loader by its cache.
    folders = (programs / "usr/lib/x86_64-linux-gnu", programs / "lib/x86_64-linux-gnu", "include /etc/ld.so.conf")
    (state / "ld.so.conf").write_text("".join(f"{folder}\n" for folder in folders))
    subprocess.run(
        ["/sbin/ldconfig", "-X", "-C", str(state / "ld.so.cache"), "-f", str(state / "ld.so.conf")], check=True
    )
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(state),
        "TMPDIR": str(state / "tmp"),
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_STORAGE_CONF": str(state / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(state / "registries.conf"),
    }


def _settings(state: Path) -> Iterator[str]:
    """How this machine reaches its package registries, as volumes of the build: certificates, pip's and uv's words."""
    (state / "uv.toml").write_text("system-certs = true\n")
    yield f"{state}/uv.toml:/etc/uv/uv.toml:ro"
    for path in ("/etc/ssl/certs", "/etc/pip.conf"):
        if Path(path).exists():
            yield f"{path}:{path}:ro"
    # What was fetched and compiled for this machine's own environments need not be once more.
    for name in ("uv", "zig"):
        kept = Path.home() / ".cache" / name
        kept.mkdir(parents=True, exist_ok=True)
        yield f"{kept}:/root/.cache/{name}:rw"


def _run(command: list[str], environment: dict[str, str], loader: Path | None = None) -> str:
    """Runs a program in a mount namespace of its own, with which the mounts of a build that is cut short end too."""
    # buildah remembers layers below /var/lib, whatever it is told of its storage.
    shown = f"mount --bind {loader} /etc/ld.so.cache && mount -t tmpfs none /var/lib && " if loader else ""
    rooms = ["unshare", "--mount", "sh", "-c", f'{shown}exec "$@"', "sh"]
    done = subprocess.run([*rooms, *command], stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise Unavailable(f"`{Path(command[0]).name} {Path(command[1]).name}` failed with status {done.returncode}")
    return done.stdout

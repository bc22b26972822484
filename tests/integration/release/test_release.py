"""`make release` from a tree to what is handed out, tried on a copy of this tree."""

import datetime
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheels import ROOT

sys.path.append(str(ROOT / "tests" / "e2e"))
from cluster import programs
from cluster.cache import Unavailable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WHEELS = [
    f"aliquot_{name}-{VERSION}-py3-none-manylinux_2_17_{arch}.whl"
    for name in ("gpu", "lab")
    for arch in ("aarch64", "x86_64")
]
SDIST = f"aliquot_gpu-{VERSION}.tar.gz"
HANDED_OUT = ["SHA256SUMS", *WHEELS, SDIST, *(f"aliquot-{VERSION}{end}" for end in (".tgz", ".yaml"))]
# What makes a build take another's parts.
NOT_OURS = ("PYTHONPATH", "ALIQUOT_NATIVE_DIR", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")


class Tree:
    """A copy of this tree as it lies here, committed, with a changelog that tells of the version."""

    def __init__(self, root: Path, helm: str) -> None:
        self.root, self._helm = root, helm
        for name in self.git("ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT).splitlines():
            if (ROOT / name).exists():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        told = f"## {VERSION} ({datetime.date.today()})\n\n- Tried.\n"
        (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{told}")
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Release")

    def git(self, *arguments: str, folder: Path | None = None) -> str:
        """What git says, as nobody in particular."""
        author = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")
        return self.run("git", *author, *arguments, folder=folder).stdout

    def run(
        self, *command: str | Path, folder: Path | None = None, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in the tree, which has to end with this status."""
        kept = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        done = subprocess.run(command, cwd=folder or self.root, env=kept, capture_output=True, text=True)
        assert status == done.returncode, done.stdout + done.stderr
        return done

    def release(self, *, status: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run("make", "release", f"PYTHON={sys.executable}", f"HELM={self._helm}", status=status)

    def handed_out(self) -> dict[str, bytes]:
        """The files of dist/ by their names."""
        return {path.name: path.read_bytes() for path in (self.root / "dist").glob("[!.]*")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """Released once; its environment is large, so nothing is kept."""
    try:
        made = Tree(tmp_path_factory.mktemp("release"), programs.helm())
    except Unavailable as error:
        pytest.skip(f"no helm here: {error}")
    done = made.release()
    assert "warning:" not in done.stdout + done.stderr
    yield made
    shutil.rmtree(made.root)


def test_everything_is_handed_out_with_its_sum(tree: Tree):
    """Wheels, sdist, chart and manifests lie in dist/ and nothing else, sha256sum agrees, and the tree is clean."""
    assert sorted(HANDED_OUT) == sorted(tree.handed_out())
    tree.run("sha256sum", "--check", "--strict", "SHA256SUMS", folder=tree.root / "dist")
    assert "" == tree.git("status", "--porcelain")


def test_the_sdist_builds_the_same_package(tree: Tree, tmp_path: Path):
    """A wheel that is built from the source archive alone has the files that the released one has."""
    sdist = tree.root / "dist" / SDIST
    tree.run(tree.root / ".venv/bin/uv", "build", "--quiet", "--wheel", "--out-dir", tmp_path, sdist, folder=tmp_path)
    (built,) = tmp_path.glob("*.whl")
    wheels = (tree.root / "dist" / WHEELS[1], built)
    released, ours = (sorted(zipfile.ZipFile(wheel).namelist()) for wheel in wheels)

    assert released == ours


def test_a_tree_that_is_not_fit_is_refused_and_what_was_made_stays(tree: Tree):
    """A file that is not committed is named in one sentence before anything is removed or built."""
    before = tree.handed_out()
    (tree.root / "new.txt").touch()
    done = tree.release(status=2)

    said = [line for line in done.stderr.splitlines() if line.startswith("aliquot: ")]
    assert ["aliquot: release: new.txt: changed and not committed; commit or undo it"] == said
    assert before == tree.handed_out()

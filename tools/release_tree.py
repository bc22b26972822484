"""What a tree must be like to be released: one version, a dated changelog, licences, fresh files, all committed."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml
from image import version_of

ROOT = Path(__file__).resolve().parent.parent
VENDORED = Path("src/aliquot/web/static/vendor")
CHANGELOG = "CHANGELOG.md"


def tree_faults(root: Path, helm: str, today: datetime.date | None = None) -> list[str]:
    """One sentence for each thing that stands against a release of the tree; `helm` compares the plain manifests."""
    return [
        *_version_faults(root),
        *_changelog_faults((root / CHANGELOG).read_text(), version_of(root), today or datetime.date.today()),
        *_licence_faults(root),
        *_generated_faults(root, helm),
        *_git_faults(root),
    ]


def _version_faults(root: Path) -> Iterator[str]:
    version = version_of(root)
    chart = yaml.safe_load((root / "deploy/chart/Chart.yaml").read_text())
    locked = tomllib.loads((root / "uv.lock").read_text())["package"]
    ours = next((package["version"] for package in locked if package["name"] == "aliquot-gpu"), "none")
    for where, said in (
        ("deploy/chart/Chart.yaml: version", chart["version"]),
        ("deploy/chart/Chart.yaml: appVersion", chart["appVersion"]),
        ("uv.lock: aliquot-gpu", ours),
        ("lab/pyproject.toml: version", version_of(root / "lab")),
    ):
        if str(said) != version:
            yield f"{where} is {said}, pyproject.toml says {version}; write the same version in both"


def _changelog_faults(text: str, version: str, today: datetime.date) -> Iterator[str]:
    _, *parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if sections.get("Unreleased", "").strip():
        yield f"{CHANGELOG}: the section Unreleased still has entries; move them below `## {version} (YYYY-MM-DD)`"
    heading = next((name for name in sections if name.split()[0] == version), "")
    if not heading:
        yield f"{CHANGELOG}: it has no section for {version}; begin one with `## {version} ({today})`"
        return
    if not sections[heading].strip():
        yield f"{CHANGELOG}: the section {version} is empty; say what changes for users"
    dated = re.fullmatch(rf"{re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", heading)
    try:
        day = datetime.date.fromisoformat(dated[1] if dated else "")
    except ValueError:
        yield f"{CHANGELOG}: `## {heading}` has no date; write `## {version} ({today})`"
        return
    if day > today:
        yield f"{CHANGELOG}: {version} is dated {day}, which is not yet; today is {today}"


def _licence_faults(root: Path) -> Iterator[str]:
    named = tomllib.loads((root / "pyproject.toml").read_text())["project"].get("license-files", [])
    if not named:
        yield "pyproject.toml: it names no license-files, so no artifact would carry a licence"
    for name in named:
        if not (root / name).is_file() or not (root / name).read_text().strip():
            yield f"{name}: the licence that pyproject.toml names is missing or empty"
    listed = (root / VENDORED / "README.md").read_text()
    for file in sorted(path for path in (root / VENDORED).iterdir() if path.suffix in (".js", ".css")):
        licence = re.search(rf"^\| {re.escape(file.name)} \|.*\((LICENSE\.\w+)\)", listed, re.MULTILINE)
        if not licence or not (root / VENDORED / licence[1]).is_file():
            yield f"{VENDORED / file.name}: {VENDORED}/README.md names no licence for it that is there"


def _generated_faults(root: Path, helm: str) -> Iterator[str]:
    if not shutil.which(helm):
        said = f"{helm}: there is no such program" if helm else "helm is missing"
        yield f"{said}, with which deploy/manifests is compared and the chart packed; make release HELM=PATH"
        helm = ""
    for generator in sorted((root / "tools").glob("gen_*.py")):
        flags = ["--helm", helm] if generator.stem == "gen_deploy" and helm else []
        command = [sys.executable, str(generator), "--check", *flags]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "it failed").splitlines()[-1]
            yield f"tools/{generator.name} --check: {last}"


def _git_faults(root: Path) -> Iterator[str]:
    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return None if done.returncode else done.stdout.strip()

    changed = git("status", "--porcelain")
    if changed is None:
        yield "this is no git checkout, so nobody could tell from what the release was made"
        return
    if changed:
        first = changed.splitlines()[0].split(maxsplit=1)[1]
        more = len(changed.splitlines()) - 1
        yield f"{first}{f' and {more} more' if more else ''}: changed and not committed; commit or undo it"
    tag = f"v{version_of(root)}"
    if (tagged := git("rev-parse", "--quiet", "--verify", f"{tag}^{{commit}}")) and tagged != git("rev-parse", "HEAD"):
        yield f"tag {tag} is on another commit, {tagged[:12]}; raise the version or move to that commit"

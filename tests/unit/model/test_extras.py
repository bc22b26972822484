"""The advice on how to add an optional part of the package."""

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from aliquot.model.extras import adding

ROOT = Path(__file__).resolve().parents[3]
WHEEL = '{"url": "file:///srv/dist/aliquot_gpu-0.1.0-py3-none-any.whl", "archive_info": {}}'
CLONE = '{"url": "file:///home/ann/my%20clone", "dir_info": {"editable": true}}'


@pytest.mark.parametrize(
    ("origin", "installer", "prefix", "advice"),
    [
        (CLONE, "uv", "/home/ann/my clone/.venv", "make -C '/home/ann/my clone' setup EXTRAS=top"),
        (WHEEL, "pip", "/v", "pip install '/srv/dist/aliquot_gpu-0.1.0-py3-none-any.whl[top]'"),
        (WHEEL, "uv", "/v", "uv pip install '/srv/dist/aliquot_gpu-0.1.0-py3-none-any.whl[top]' --python /v"),
        (
            WHEEL, "pip", "/h/pipx/venvs/aliquot",
            "pipx runpip aliquot-gpu install '/srv/dist/aliquot_gpu-0.1.0-py3-none-any.whl[top]'",
        ),
        (None, None, "/v", "pip install 'dist/aliquot_gpu-VERSION.whl[top]'"),
    ],
)  # fmt: skip
def test_an_extra_is_added_from_where_the_package_came(
    monkeypatch: pytest.MonkeyPatch, origin, installer, prefix, advice
):
    """The advice names the clone or the wheel; in the package index the name belongs to another project."""
    files = {"direct_url.json": origin, "INSTALLER": installer}
    package = type("Package", (), {"read_text": staticmethod(files.get)})
    monkeypatch.setattr(metadata, "distribution", lambda name: package)
    monkeypatch.setattr("sys.prefix", prefix)
    assert advice == adding("top")


@pytest.mark.parametrize(
    ("origin", "advice"),
    [
        (CLONE, "make -C '/home/ann/my clone' setup"),
        (WHEEL, "pip install /srv/dist/aliquot_lab-0.1.0-py3-none-any.whl"),
        (None, "pip install dist/aliquot_lab-VERSION.whl"),
    ],
)
def test_the_laboratory_is_added_from_where_the_package_came(monkeypatch: pytest.MonkeyPatch, origin, advice):
    """The advice names the clone, or the laboratory's wheel beside the one that was installed."""
    files = {"direct_url.json": origin, "INSTALLER": "pip"}
    monkeypatch.setattr(
        metadata, "distribution", lambda name: type("Package", (), {"read_text": staticmethod(files.get)})
    )
    assert advice == adding(package="aliquot-lab")


def test_nothing_installs_the_name_that_is_another_projects():
    """No text of the tree has an installer fetch `aliquot` by its name, and no package requires it."""
    command = r"(pip|pipx|tool) install .{0,20}['\"` ]aliquot([^-_a-z./]|$)"
    found = subprocess.run(
        ["git", "grep", "-nE", command, "--", ".", ":!tests"], cwd=ROOT, capture_output=True, text=True
    )
    projects = subprocess.run(["git", "ls-files", "*pyproject.toml"], cwd=ROOT, capture_output=True, text=True).stdout
    required = {
        (path, re.split(r"[^\w-]", need, maxsplit=1)[0])
        for path in projects.split()
        for need in tomllib.loads((ROOT / path).read_text()).get("project", {}).get("dependencies", ())
    }

    assert "" == found.stdout
    assert [] == [path for path, name in required if name == "aliquot"]
    assert ("examples/policy/pyproject.toml", "aliquot-gpu") in required

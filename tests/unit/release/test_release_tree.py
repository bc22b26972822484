"""What stands against a release of a tree."""

import datetime

import pytest
from release_scene import CHART, VENDOR, Tree

import release_tree  # isort: skip - the scene shows where it is

TODAY = datetime.date(2026, 3, 2)
HELM = "true"
"""A program that is there; what helm does with the chart is tried on a real tree."""

EMPTY = "the section 1.2.0 is empty; say what changes for users"


def faults(tree: Tree, helm: str = HELM) -> list[str]:
    """What stands against it on the second of March."""
    return release_tree.tree_faults(tree.root, helm, TODAY)


def test_a_tree_that_is_as_it_must_be_has_no_fault(tree: Tree):
    """One version everywhere, a dated section, licences, nothing stale and nothing uncommitted: nothing is said."""
    assert [] == faults(tree)


@pytest.mark.parametrize(
    ("file", "old", "new", "where"),
    [
        (
            "deploy/chart/Chart.yaml",
            "\nversion: 1.2.0",
            "\nversion: 1.1.9",
            "deploy/chart/Chart.yaml: version is 1.1.9",
        ),
        ("deploy/chart/Chart.yaml", "appVersion: 1.2.0", "appVersion: 2", "deploy/chart/Chart.yaml: appVersion is 2"),
        ("uv.lock", "1.2.0", "1.2.1", "uv.lock: aliquot-gpu is 1.2.1"),
        ("lab/pyproject.toml", "1.2.0", "1.2.1", "lab/pyproject.toml: version is 1.2.1"),
    ],
)
def test_every_version_is_that_of_the_project(tree: Tree, file: str, old: str, new: str, where: str):
    """A version that differs is named with its place and with the one it has to be."""
    tree.change(file, old, new)

    assert [f"{where}, pyproject.toml says 1.2.0; write the same version in both"] == faults(tree)


@pytest.mark.parametrize(
    ("changelog", "sentence"),
    [
        ("## 1.1.0 (2026-01-01)\n\n- Begun.\n", "it has no section for 1.2.0; begin one with `## 1.2.0 (2026-03-02)`"),
        ("## 1.2.0\n\n- Shared.\n", "`## 1.2.0` has no date; write `## 1.2.0 (2026-03-02)`"),
        ("## 1.2.0 (2026-02-30)\n\n- Shared.\n", "`## 1.2.0 (2026-02-30)` has no date; write `## 1.2.0 (2026-03-02)`"),
        ("## 1.2.0 (2026-03-01)\n\n", EMPTY),
        ("## 1.2.0 (2026-03-01)\n\n## 1.1.0 (2026-01-01)\n\n- Begun.\n", EMPTY),
        ("## 1.2.0 (2026-04-01)\n\n- Shared.\n", "1.2.0 is dated 2026-04-01, which is not yet; today is 2026-03-02"),
        (
            "## Unreleased\n\n- New.\n\n## 1.2.0 (2026-03-01)\n\n- Shared.\n",
            "the section Unreleased still has entries; move them below `## 1.2.0 (YYYY-MM-DD)`",
        ),
    ],
)  # fmt: skip
def test_the_changelog_tells_of_the_release(tree: Tree, changelog: str, sentence: str):
    """The version has a section with a date that has come and with entries, and none is left under Unreleased."""
    tree.write("CHANGELOG.md", f"# Changelog\n\n{changelog}")

    assert [f"CHANGELOG.md: {sentence}"] == faults(tree)


def test_an_empty_unreleased_section_is_no_fault(tree: Tree):
    """The heading for what comes next may stand there already."""
    tree.change("CHANGELOG.md", "# Changelog\n", "# Changelog\n\n## Unreleased\n")

    assert [] == faults(tree)


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("LICENSE", "", "LICENSE: the licence that pyproject.toml names is missing or empty"),
        (
            f"{VENDOR}/extra.js",
            "more()\n",
            f"{VENDOR}/extra.js: {VENDOR}/README.md names no licence for it that is there",
        ),
        (  # each generator is asked whether what it writes is what is there, and its own last line is told
            "tools/gen_header.py",
            "import sys\nsys.exit('' if '--check' not in sys.argv else 'header.h is stale')\n",
            "tools/gen_header.py --check: header.h is stale",
        ),
    ],
    ids=["licence", "licence of vendored files", "generated files"],
)
def test_a_file_that_is_not_as_it_has_to_be_stops_the_release(tree: Tree, file: str, text: str, fault: str):
    """The licences have a text each, and generated files are fresh."""
    tree.write(file, text)

    assert [fault] == faults(tree)


@pytest.mark.parametrize(
    ("helm", "lacks"), [("", "helm is missing, with"), ("/no/helm", "/no/helm: there is no such program, with")]
)
def test_helm_is_needed(tree: Tree, helm: str, lacks: str):
    """Without helm the plain manifests cannot be compared, so the release is refused."""
    said = "which deploy/manifests is compared and the chart packed; make release HELM=PATH"

    assert [f"{lacks} {said}"] == faults(tree, helm=helm)


def test_everything_is_committed(tree: Tree):
    """A file that is changed or new and not committed is named."""
    tree.write("deploy/chart/Chart.yaml", CHART.format("1.2.0") + "# changed\n", commit=False)
    tree.write("new.txt", "new\n", commit=False)

    said = "deploy/chart/Chart.yaml and 1 more: changed and not committed; commit or undo it"
    assert [said] == faults(tree)


def test_a_version_is_released_once(tree: Tree):
    """A tag of the version on another commit stops the release; on this one it does not."""
    tree.git("tag", "v1.2.0")
    before = faults(tree)
    tree.write("more.txt", "more\n")

    (after,) = faults(tree)
    assert ([], "tag v1.2.0 is on another commit") == (before, after.partition(",")[0])


def test_all_faults_are_told_at_once(tree: Tree):
    """Who releases sees everything that is amiss in one run."""
    tree.write("LICENSE", "")
    tree.change("uv.lock", "1.2.0", "0.1.0")

    assert ["uv.lock", "LICENSE"] == [fault.partition(":")[0] for fault in faults(tree)]

"""Links between pages lead somewhere, and every page can be found from the README."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from docpages import ROOT, name_of, pages

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+).+?\1")
FILE = re.compile(r"`([\w-][\w./-]*(?:\.(?:py|c|h|tsv)|/))`")
ABOUT_THE_CODE = [ROOT / "CONTRIBUTING.md", ROOT / "bench" / "README.md", *(ROOT / "docs" / "decisions").glob("*.md")]


def anchors(path: Path) -> set[str]:
    """The names of a page's headings, as they are made for links."""
    text = FENCED.sub("", path.read_text())
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def targets(path: Path) -> list[str]:
    """Where a page's links go, but for other sites."""
    found = LINK.findall(CODE.sub("", FENCED.sub("", path.read_text())))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize("path", [*pages(), *ABOUT_THE_CODE], ids=name_of)
def test_links_lead_somewhere(path: Path):
    """A link to a file or a heading of this repository finds it."""
    lost = []
    for target in targets(path):
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            lost.append(target)

    assert [] == lost


@pytest.mark.parametrize("path", [ROOT / "docs" / "ARCHITECTURE.md", *ABOUT_THE_CODE], ids=name_of)
def test_files_that_a_page_names_are_there(path: Path):
    """What a page about the code names in code style as a file or a folder is one of this repository."""
    known = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = "\n".join(f"/{line}\n" for line in known.stdout.splitlines())
    named = sorted(set(FILE.findall(FENCED.sub("", path.read_text()))))

    assert [] == [name for name in named if (f"/{name}" if name.endswith("/") else f"/{name}\n") not in files]


def test_every_page_can_be_found_from_the_readme():
    """From the README links lead to every page, over other pages if need be."""
    start = ROOT / "README.md"
    reached, todo = {start}, [start]
    while todo:
        page = todo.pop()
        for target in targets(page):
            file = (page.parent / target.partition("#")[0]).resolve()
            found = sorted(file.glob("*.md")) if file.is_dir() else [file]
            todo += [one for one in found if one.suffix == ".md" and one.exists() and one not in reached]
            reached |= set(found)

    assert [] == [name_of(page) for page in pages() if page not in reached and page.name != "README.md"]

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


QUESTIONS = {
    "Does my PyTorch program run unchanged?": ("docs/how-to/frameworks.md#pytorch-training", "PyTorch"),
    "Can I try it without a GPU?": ("docs/emulator.md", "without a GPU"),
    "How much do I request?": ("docs/how-to/sizing.md", "request"),
    "What happens beyond my memory?": ("docs/quickstart-one-machine.md#what-is-promised", "out-of-memory"),
    "Can idle notebooks give their GPU memory to others?": ("docs/how-to/park.md", "aliquot park"),
    "Can I change a share that runs?": ("docs/how-to/change-a-running-share.md", "aliquot resize"),
    "What goes on when a command ends?": ("docs/quickstart-one-machine.md#what-a-command-leaves-behind", "setsid"),
    "Why does my program get less?": ("docs/how-to/troubleshooting.md", "gets less than its request"),
    "How does it differ from MIG and MPS?": ("docs/comparison.md#nvidia-mps", "MPS"),
    "Does it stop a hostile program?": ("docs/security.md#three-levels", "hostile"),
    "How do several people share it?": ("docs/how-to/several-people.md#the-engine-of-the-machine", "account"),
    "How does a container get its share?": ("docs/how-to/containers.md", "aliquot share create"),
    "What goes on at boot and at logout?": ("docs/how-to/several-people.md#at-boot-at-logout-at-an-upgrade", "linger"),
    "What of Ray?": ("docs/how-to/ray.md", "num_gpus"),
    "What of Jupyter?": ("docs/how-to/frameworks.md#jupyter", "kernel"),
    "What of JupyterHub and Slurm?": ("docs/how-to/launchers.md#slurm", "JupyterHub"),
    "Which GPUs: consumer cards too?": ("docs/systems.md#gpus", "GeForce"),
    "What is the oldest driver?": ("docs/systems.md#drivers-and-cuda", "older"),
    "What of WSL, macOS, ARM?": ("docs/systems.md#systems", "WSL"),
    "What of namespaces?": ("docs/systems.md#systems", "Namespaces"),
    "What does an upgrade end?": ("docs/install.md#what-an-upgrade-ends", "aliquot down"),
    "How is it removed?": ("docs/install.md#what-an-upgrade-ends", "Uninstall"),
}
"""What people on one machine ask, the place that answers, and a word of the answer."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_of_one_machine_is_answered_within_two_pages_of_the_readme(question: str):
    """The README links to the page that answers, or to one that links to it; section and word are there."""
    (place, _, anchor), word = QUESTIONS[question][0].partition("#"), QUESTIONS[question][1]
    start, page = ROOT / "README.md", ROOT / place
    first = {(start.parent / target.partition("#")[0]).resolve() for target in targets(start)}
    second = {
        (near.parent / target.partition("#")[0]).resolve()
        for near in first
        if near.suffix == ".md" and near.exists()
        for target in targets(near)
    }

    assert page in first | second
    assert not anchor or anchor in anchors(page)
    assert word in page.read_text()

"""The checker of the documentation finds what is wrong: pages that lie do not pass."""

from collections import Counter
from pathlib import Path

import pytest
from docpages import BadPage, blocks
from docplay import play
from docroom import Complaint, Room, alike, understand


def said(folder: Path, text: str) -> tuple[Counter[str], dict[str, str]]:
    """Read a page with this text; what was counted and what was not run."""
    page = folder / "page.md"
    page.write_text(text)
    counts: Counter[str] = Counter()
    not_run: dict[str, str] = {}
    play(page, Room(counts), not_run)
    return counts, not_run


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sh\naliquot topo --emulate v100x2 --bset 2\n```\n", "No such option"),
        ("```sh slow\naliquot sim run --nodes v100x4\n```\n", "Missing option"),
        ("```sh slow\naliquot frobnicate\n```\n", "no such command"),
        ("```console\n$ echo one\ntwo\n```\n", "the page says:\ntwo"),
        ("```console fails\n$ true\n```\n", "ended with 0"),
        ("```sh\npip install aliquot\n```\n", "say above the block why"),
        ("```sh\nkubectl aliquot get --gpus\n```\n", "No such option"),
        ("```yaml\nkind: SharePod\napiVersion: aliquot.dev/v1alpha1\nspec: {gpu: {requst: 1}}\n```\n", "requst"),
        ("```yaml\nnode: {emulate: v100}\n```\n", "no command of the page reads it"),
        ("```python\nraise SystemExit(3)\n```\n", "ended with 3"),
    ],
)
def test_a_page_that_lies_is_found(tmp_path, text: str, complaint: str):
    """A wrong option, output, status, field or program, and a block that nobody could run, are each a failure."""
    with pytest.raises(Complaint, match=r"(?s)" + complaint):
        said(tmp_path, text)


@pytest.mark.parametrize(
    "pod",
    [
        "metadata: {annotations: {aliquot.dev/gpu-request: '1', aliquot.dev/x: '1'}}\nspec: {containers: [{name: a}]}",
        "spec: {containers: [{name: a, resources: {limits: {aliquot.dev/gpu-memory: 4Gi}}}]}",
    ],
)
def test_a_pod_that_the_webhook_refuses_is_found(tmp_path, pod: str):
    """Manifests are held against what the webhook says."""
    with pytest.raises(Complaint):
        said(tmp_path, f"```yaml\napiVersion: v1\nkind: Pod\n{pod}\n```\n")


def test_a_block_that_nobody_runs_needs_a_reason_and_is_counted(tmp_path):
    """The reason stands above the block, and the test tells it."""
    counts, not_run = said(tmp_path, "*Not run by the tests: it needs a network.*\n\n```sh\npip install x\n```\n")

    assert ({}, {"page.md:3": "it needs a network"}) == (dict(counts), not_run)


def test_output_is_compared_but_for_numbers_and_dots():
    """Words must be the same; numbers, bars, UUIDs and what stands for anything need not."""
    assert alike("GPU 0 ███░ 0.30\n...", "GPU 1  █████  0.31\nand more")
    assert not alike("GPU 0 busy", "GPU 0 idle")
    assert not alike("0.30", "0.31", exact=True)


def test_an_unknown_kind_of_block_is_refused(tmp_path):
    """A fence whose word means nothing is no documentation."""
    page = tmp_path / "page.md"
    page.write_text("```bahs\nls\n```\n")

    with pytest.raises(BadPage, match=r"page.md:1: `bahs`"):
        blocks(page)


def test_a_page_keeps_its_files_and_its_engine_for_the_commands_below(tmp_path):
    """A file of one block is read by the next, in a folder that is gone afterwards."""
    text = "```yaml file=a.yaml\n# nothing\n```\n\n```console\n$ cat a.yaml\n# nothing\n$ test -d examples\n```\n"
    counts, _ = said(tmp_path, text)

    assert {"run": 2, "manifests": 0} == dict(counts)


def test_options_are_understood_without_running():
    """What is too slow to run is parsed by the commands themselves."""
    understand("here", "aliquot sim run --nodes v100x4 --trace mix:jobs=5 --policy fgd --out x")
    understand("here", "kubectl aliquot topo node-1 --best 2")

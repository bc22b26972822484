"""The commands that pages name: each is one that the command line takes."""

import html
import re
import shlex

import click
import pytest
from kit.browsing import browser
from made_up_facts import MadeUpFacts

from aliquot.cli.main import cli
from aliquot.model.sharepod import GpuSpec
from aliquot.status import Workload
from aliquot.web.pages import commands

HOSTILE = "lab/a'; $(reboot) `id` \" \\"


def parsed(group: click.Group, line: str) -> dict[str, object]:
    """What a line that a person pasted asks of the command line; nothing is run."""
    words = shlex.split(line.removeprefix("kubectl "))[1:]
    context = click.Context(group)
    command = group.get_command(context, words[0])
    assert command is not None
    return command.make_context(words[0], words[1:], parent=context).params


def named(text: str) -> list[str]:
    """The commands of a page."""
    return [html.unescape(found) for found in re.findall(r'class="cmd"><code>(.*?)</code>', text)]


@pytest.mark.parametrize("program", ["aliquot", "kubectl aliquot"])
@pytest.mark.parametrize(
    "path", ["/", "/gpus", "/workloads", "/workloads/batch/wait-0", "/topology", "/try?request=0.3"]
)
def test_every_page_names_a_command_that_exists(program: str, path: str):
    """On one machine and in a cluster, what a page names is accepted by the command line."""
    facts = MadeUpFacts(nodes=2)
    facts.program = program
    group: click.Group = cli
    if program != "aliquot":
        group = pytest.importorskip("aliquot.cli.kubectl", reason="the parts for a cluster are not installed").cli
    found = named(browser(facts).get(path).text)

    assert found or (program, path) == ("kubectl aliquot", "/try?request=0.3")
    own = [line for line in found if not line.startswith(("kubectl logs ", "kubectl describe "))]
    assert all(line.startswith(f"{program} ") for line in own)
    for line in own:
        parsed(group, line)


def test_a_workload_leads_to_its_timeline_logs_and_processes():
    """The page of a SharePod links to its timeline and names the commands for what it shows nothing of."""
    facts = MadeUpFacts(nodes=1)
    name = next(share.workload for gpu in facts.gpus() for share in gpu.shares)
    text = browser(facts).get(f"/workloads/{name}").text
    namespace, _, own = name.partition("/")

    assert f'href="/timeline?tenant={name}"' in text
    assert [f"aliquot logs {own} -n {namespace}", f"aliquot describe {own} -n {namespace}"] == named(text)[:2]


@pytest.mark.parametrize(
    ("program", "state", "command"),
    [
        ("aliquot", "CrashLoopBackOff", "aliquot logs it -n lab"),
        ("kubectl aliquot", "CrashLoopBackOff", "kubectl logs it -n lab --all-containers"),
        ("kubectl aliquot", "ImagePullBackOff", "kubectl describe pod it -n lab"),
        ("aliquot", "Pending", "aliquot explain lab/it"),
    ],
)
def test_the_first_command_of_a_workload_tells_most_of_its_state(program: str, state: str, command: str):
    """What does not run is told by its logs, or where nothing of it ever ran by its pod; what waits is explained."""
    facts = MadeUpFacts(nodes=1)
    facts.program = program
    facts.add(Workload("lab/it", "SharePod", state, 500, 500, [], 9.0))
    page = browser(facts).get("/workloads/lab/it").text

    assert command == named(page)[0]


def test_a_tried_request_is_the_same_on_the_command_line():
    """The command beside a trial has each of its words under the option of that meaning."""
    gpu = GpuSpec(
        "0.3", "0.6", "4Gi", "v100", True, gpu_id="shared", affinity="near", anti_affinity="apart", exclusion="ours",
        wake="5ms",
    )  # fmt: skip
    params = parsed(cli, commands.trial(MadeUpFacts(nodes=1), gpu, "1"))

    assert (300, 600, "v100", "1") == tuple(params[name] for name in ("gpu_request", "gpu_limit", "gpu_model", "gpu"))
    assert ("shared", "near", "apart", "ours") == tuple(
        params[name] for name in ("gpu_id", "affinity", "anti_affinity", "exclusion")
    )
    assert (5000, True) == (params["wake"], params["mixed_models"])


def test_a_name_from_outside_is_one_word():
    """A hostile name is quoted for the shell, so that pasting the command runs nothing else."""
    assert ["aliquot", "explain", HOSTILE] == shlex.split(commands.explain(MadeUpFacts(nodes=1), HOSTILE))

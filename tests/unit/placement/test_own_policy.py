"""A policy from outside: found by its entry point, used like one of the core's."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from scene import Scene, node

from aliquot.driver.policies import BrokenPolicy, maker, policy_names
from aliquot.placement.policy import POLICIES, UnknownPolicy
from aliquot.scheduler.program import Scheduler
from aliquot.scheduler.settings import SchedulerSettings

NO_CLUSTER: Any = None
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "policy"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example as an installer leaves it: its module, and its entry points among the metadata."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "aliquot_quiet-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = "\n".join(f"{name} = {value}" for name, value in project["entry-points"]["aliquot.policies"].items())
    (info / "entry_points.txt").write_text(f"[aliquot.policies]\n{points}\nbroken = nowhere_at_all:Policy\n")
    (tmp_path / "aliquot_quiet").symlink_to(EXAMPLE / "src" / "aliquot_quiet")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_policy_of_a_package_is_found_and_decides(installed):
    """The example is listed by its name, and places on the node and the GPU with the fewest tenants."""
    scene = Scene(node("a", 2), node("b", 2, rank=1), by=maker("quiet")())

    assert "quiet" in policy_names()
    assert ["a/0", "b/0", "a/1"] == [scene.place(100)[0], scene.place(100)[0], scene.place(100)[0]]


def test_names_of_the_core_are_taken(installed):
    """A name of the core is always the core's."""
    assert maker("binpack") is POLICIES["binpack"]


def test_a_policy_that_can_not_be_loaded_is_told(installed):
    """A package that is broken is named with what is wrong."""
    with pytest.raises(BrokenPolicy, match=r'policy "broken" \(nowhere_at_all:Policy\) cannot be loaded: No module'):
        maker("broken")


def test_an_unknown_policy_lists_those_of_packages(installed):
    """The list of a refusal has the policies of packages too."""
    with pytest.raises(UnknownPolicy, match=r"there are .*binpack, .*quiet"):
        maker("best")


def test_the_command_line_takes_it(installed):
    """`aliquot explain --policy quiet` places by it."""
    command = [sys.executable, "-m", "aliquot.cli", "explain", "--emulate", "v100x2", "--policy", "quiet"]
    done = subprocess.run(
        [*command, "--gpu-request", "0.3"],
        env={"PYTHONPATH": f"{installed}:{':'.join(sys.path)}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )

    assert "quiet takes the node and the GPU with the fewest tenants" in done.stdout, done.stderr


def test_the_scheduler_of_a_cluster_takes_it(installed):
    """`aliquot scheduler --policy quiet` gets past the policy, and an unknown one lists the packages' names too."""
    known, unknown = (scheduler_output(installed, name) for name in ("quiet", "best"))

    assert "/nowhere/kubeconfig" in known
    assert 'there is no policy "best"; there are aliquot, ' in unknown and "quiet" in unknown


def scheduler_output(installed: Path, policy: str) -> str:
    """What `aliquot scheduler` prints where there is no kubeconfig."""
    command = [sys.executable, "-m", "aliquot.cli", "scheduler", "--kubeconfig", "/nowhere/kubeconfig"]
    done = subprocess.run(
        [*command, "--policy", policy],
        env={"PYTHONPATH": f"{installed}:{':'.join(sys.path)}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stderr


def test_the_scheduler_places_by_it(installed):
    """The scheduler's ledger decides by a package's policy."""
    scheduler = Scheduler(SchedulerSettings(policy="quiet"), NO_CLUSTER)

    assert "quiet" == scheduler.ledger.policy.name

"""The cluster that lives: what the experiment offers, counts and writes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from aliquot.model.errors import UserError
from aliquot_lab.cli.sim import sim
from aliquot_lab.sim.openb.trace import read_nodes
from aliquot_lab.sim.papers import churn
from aliquot_lab.sim.parallel import Finished

DATA = Path(__file__).parents[2] / "data" / "openb"


def small(policy: str, setup: str = "A", trace: str = "default", load: float = 0.9) -> churn.Run:
    """A run of 600 arrivals."""
    return churn.Run(str(DATA), setup, trace, load, policy, 42, 600)


def test_an_eighth_of_the_cluster_keeps_its_mix():
    """Set-up A has an eighth of the nodes and, within two points, the same part of its GPUs on each model."""
    everything = read_nodes(DATA / churn.NODES)
    part = churn.part_of(everything, 8)

    def shares(nodes: list) -> dict[str, float]:
        total = sum(node.gpus for node in nodes)
        return {node.model: sum(n.gpus for n in nodes if n.model == node.model) / total for node in nodes}

    assert abs(len(part) - len(everything) / 8) < 1
    assert {model: pytest.approx(share, abs=0.02) for model, share in shares(everything).items() if share > 0.02} == {
        model: share for model, share in shares(part).items() if share > 0.02
    }


def test_every_policy_gets_the_same_pods():
    """Times, sizes and arrivals do not depend on the policy, only on the seed."""
    assert churn.workload(small("fgd")).jobs == churn.workload(small("aliquot")).jobs
    assert churn.workload(small("fgd")).jobs != churn.workload(churn.Run(**{**vars(small("fgd")), "seed": 43})).jobs


def test_a_trace_without_times_takes_those_of_default():
    """multigpu30 has no times, so its pods run as long as those of default."""
    jobs = churn.workload(small("fgd", trace="multigpu30")).jobs

    assert len({job.service_us for job in jobs}) > 100


def test_the_same_run_has_the_same_figures():
    """A run is a function of what was asked."""
    assert churn.living(small("bestfit")) == churn.living(small("bestfit"))


def test_the_default_policy_serves_a_cluster_that_lives():
    """At 90 % load ours allocates no less than best fit, and pods of several GPUs are not starved."""
    ours, bestfit = churn.living(small("aliquot")), churn.living(small("bestfit"))

    assert ours.allocation_percent > bestfit.allocation_percent - 0.5
    assert ours.wait_multi_s <= bestfit.wait_multi_s * 1.1


def test_means_are_over_seeds_and_files_hold_every_run(tmp_path: Path):
    """summary.json has a row for each policy, churn.csv a line for each run, and both the same figures."""
    one = churn.Living(*range(10))
    two = churn.Living(*range(2, 12))
    todo = churn.runs(DATA, "A", ["default"], [0.9], ["fgd"], [42, 43])
    done: Finished[churn.Run, churn.Living] = Finished(dict(zip(todo, (one, two), strict=True)))

    facts = churn.facts_of(done, 2)
    churn.write(tmp_path, done, facts)

    assert 2.0 == facts["rows"][0]["seeds"]
    assert 1.0 == facts["rows"][0]["allocation_percent"]
    assert facts == json.loads((tmp_path / "summary.json").read_text())
    assert 3 == len((tmp_path / "churn.csv").read_text().splitlines())
    assert "1.00" in churn.text(facts)


@pytest.mark.parametrize(
    ("setup", "names", "arrivals"), [("C", ["default"], 10), ("A", ["none"], 10), ("A", ["default"], 3)]
)
def test_what_can_not_be_run_is_refused(setup: str, names: list[str], arrivals: int):
    """An unknown set-up, a trace that is not there and too few arrivals are refused in one sentence."""
    with pytest.raises(UserError):
        churn.runs(DATA, setup, names, [0.9], ["fgd"], [42], arrivals)


def test_one_command_makes_the_table(tmp_path: Path):
    """`aliquot sim paper churn` runs what is asked and prints the facts."""
    command = "paper churn --setup A --trace default --load 0.8 --policy bestfit --seeds 42 --arrivals 400 --jobs 1"
    done = CliRunner().invoke(sim, [*command.split(), "--out", str(tmp_path / "out"), "-o", "json"])

    assert 0 == done.exit_code, done.output
    assert json.loads(done.stdout) == json.loads((tmp_path / "out" / "summary.json").read_text())

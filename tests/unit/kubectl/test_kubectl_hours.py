"""`kubectl aliquot get hours`: from the dashboard, through kubectl's port-forward or at an address, with a token."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from made_up_facts import MadeUpFacts

from aliquot.cli.kubectl import cli
from aliquot.cli.kubectl.scene import NoAnswer, Target
from aliquot.cli.kubectl.services import read_past
from aliquot.model.errors import AliquotError, UserError
from aliquot.model.ids import split_key
from aliquot.status import Hours
from aliquot.web.app import AccessDenied, WebServer, everyone

TOKEN = "of-the-kubeconfig"


def kubeconfig(folder: Path, **user: str) -> str:
    """A kubeconfig of a cluster that nothing is asked of."""
    path = folder / "kubeconfig"
    config = {
        "current-context": "a", "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": user}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "team-0"}}],
    }  # fmt: skip
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def facts() -> MadeUpFacts:
    """Half an hour of four GPUs."""
    made_up = MadeUpFacts(nodes=1, gpus=4)
    made_up.remember(minutes=30)
    return made_up


@pytest.fixture
def dashboard(facts: MadeUpFacts) -> Iterator[str]:
    """The address of a dashboard that wants the kubeconfig's token."""

    def door(request):
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            raise AccessDenied("Sign in to see the cluster's GPUs.", 401)
        return everyone(facts)(request)

    with WebServer(door) as server:
        yield server.url


def asked(*words: str, env: dict[str, str] | None = None) -> Result:
    """What `kubectl aliquot get hours` answers."""
    return CliRunner().invoke(cli, ["get", "hours", *words], env=env)


def test_hours_are_those_of_the_dashboard(dashboard: str, facts: MadeUpFacts, tmp_path: Path):
    """Every namespace that the caller may see is listed with the kubeconfig's token, unless -n names one."""
    where = ["--dashboard", dashboard, "--kubeconfig", kubeconfig(tmp_path, token=TOKEN)]
    found = json.loads(asked(*where, "--since", "24h", "--by", "namespace", "-o", "json").stdout)
    space = found["lines"][0]["namespace"]
    one = asked(*where, "--since", "24h", "-n", space).stdout.splitlines()

    running = sum(share.request_milli for gpu in facts.gpus() for share in gpu.shares)
    assert pytest.approx(running * 30 / 60 / 1000, rel=0.05) == found["total"]["promised"]
    assert {"NAMESPACE", space, "TOTAL"} == {line.split()[0] for line in one}


def test_recommendations_are_those_of_the_dashboard(dashboard: str, facts: MadeUpFacts, tmp_path: Path):
    """Those of all namespaces that the caller may see, or of the one that -n names, or of one controller."""
    where = ["--dashboard", dashboard, "--kubeconfig", kubeconfig(tmp_path, token=TOKEN), "-o", "json"]

    def names(*words: str) -> list[str]:
        found = json.loads(CliRunner().invoke(cli, ["recommend", *words, *where]).stdout)
        return [f"{line['namespace']}/{line['controller']}" for line in found["recommendations"]]

    everything = names()
    assert {split_key(share.tenant)[0] for gpu in facts.gpus() for share in gpu.shares} == {
        split_key(name)[0] for name in everything
    }
    assert [name for name in everything if name.startswith("web/")] == names("-n", "web")
    assert {everything[0]} == set(names(everything[0]))
    with pytest.raises(UserError, match='"nobody" has no share now; recommendations are for '):
        CliRunner().invoke(cli, ["recommend", "nobody", *where], catch_exceptions=False)


def test_a_service_is_reached_by_kubectl(dashboard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without an address kubectl forwards a port to the dashboard's service, and is ended afterwards."""
    port, record = dashboard.rstrip("/").rpartition(":")[2], tmp_path / "record"
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\necho "$$ $@" > {record}\necho "Forwarding from 127.0.0.1:{port} -> 8771"\nexec sleep 60\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    config = kubeconfig(tmp_path, token=TOKEN)
    answer = asked("--kubeconfig", config)
    pid, _, words = record.read_text().strip().partition(" ")

    assert 0 == answer.exit_code, answer.stderr
    assert (
        f"--kubeconfig {config} -n aliquot-system port-forward --address 127.0.0.1 service/aliquot-dashboard :80"
        == words
    )
    assert not Path(f"/proc/{pid}").exists()


def test_what_kubectl_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A service that is not there is named in kubectl's words."""
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho 'Error from server (NotFound): services \"x\" not found' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(
        NoAnswer,
        match=r'^the dashboard a/x:80 cannot be reached .*: services "x" not found; .*web.enabled=true',
    ):
        hours(tmp_path, "a/x:80", token=TOKEN)


@pytest.mark.parametrize(
    ("reason", "where", "user"),
    [
        ("wants a token and the kubeconfig has none", "", {}),
        ("refuses: Sign in", "", {"token": "another"}),
        ("is http, where others could read your token", "http://gpu.example", {"token": TOKEN}),
        ("does not answer at http://127.0.0.1:9", "http://127.0.0.1:9", {"token": TOKEN}),
        ("is no service; write", "aliquot-dashboard", {"token": TOKEN}),
    ],
)
def test_failures_are_one_sentence(reason: str, where: str, user: dict[str, str], dashboard: str, tmp_path: Path):
    """What is missing is said, and a token is not sent where others could read it."""
    with pytest.raises(AliquotError) as failed:
        hours(tmp_path, where or dashboard, **user)

    assert reason in str(failed.value) and "\n" not in str(failed.value)


def test_a_token_can_be_given(dashboard: str, tmp_path: Path):
    """With a certificate in the kubeconfig the token comes from the environment."""
    where = ["--dashboard", dashboard, "--kubeconfig", kubeconfig(tmp_path)]

    assert 0 == asked(*where, env={"ALIQUOT_DASHBOARD_TOKEN": TOKEN}).exit_code


def hours(folder: Path, dashboard: str, **user: str):
    """The hours, or the error."""
    target = Target(kubeconfig(folder, **user))
    return target.run(read_past(target, "hours", Hours, "", dashboard, ""))

"""The options of `aliquot scheduler` and `node`: who sees the dashboard, who leads, and where spans are sent."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from aliquot.cli.programs import dashboard, node, scheduler, settings_options
from aliquot.kube.settings import BadSettings
from aliquot.model.errors import UserError
from aliquot.scheduler.settings import SchedulerSettings, address

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def made(*words: str) -> SchedulerSettings:
    """The settings of a command with these options."""
    found: list[SchedulerSettings] = []

    @click.command()
    @settings_options(SchedulerSettings, "a scheduler")
    def command(settings: SchedulerSettings) -> None:
        found.append(settings)

    CliRunner().invoke(command, words, catch_exceptions=False)
    return found[0]


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (("--web", "127.0.0.1:1"), False),
        (("--web", "[::1]:1"), False),
        (("--web", "0.0.0.0:1"), True),
        (("--web", "10.0.0.5:1"), True),
        (("--web", "10.0.0.5:1", "--web-access", "open"), False),
        (("--web", "127.0.0.1:1", "--web-access", "token"), True),
    ],
)
def test_beyond_this_machine_a_token_is_asked_for(words: tuple[str, ...], tokens: bool):
    """Unless somebody says so, only the loopback is open."""
    assert tokens == made(*words).web_tokens


def test_an_address_for_all_is_no_name():
    """0.0.0.0 is where to listen and nothing that a browser asks for."""
    assert {"gpus.example"} == made("--web", "0.0.0.0:1", "--web-host", "gpus.example").web_hosts


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--web", "0.0.0.0:1", "--web-namespace", "a"), "--web-namespace is for --web-access open"),
        (("--web", "127.0.0.1:1", "--web-tls-cert", "c"), "come together"),
        (("--web", "127.0.0.1:1", "--web-prometheus", "prometheus:9090"), "is not an address"),
        (("--web", "nowhere"), "is not an address"),
    ],
)
def test_what_does_not_go_together_is_told(words: tuple[str, ...], sentence: str):
    """Options that contradict each other end with one sentence."""
    with pytest.raises(UserError, match=sentence):
        made(*words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--tls-cert", "c"), "--tls-cert and --tls-key come together; give both or none"),
        (("--client-ca", "ca"), "--client-ca is for https; give --tls-cert and --tls-key too"),
    ],
)
def test_half_of_https_is_refused(words: tuple[str, ...], sentence: str):
    """A certificate without its key, or clients' certificates without https, would serve in the clear."""
    found = CliRunner().invoke(scheduler, list(words)).exception

    assert isinstance(found, UserError) and sentence == str(found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--web", "127.0.0.1:0"), "dashboard at http://127.0.0.1:1/"),
        (("--web", "10.0.0.5:0", "--web-access", "open"), "dashboard at http://10.0.0.5:1/"),
        (
            ("--web", "10.0.0.5:0"),
            "dashboard at http://10.0.0.5:1/ (a token is taken over https and at localhost only)",
        ),
        (("--web", "10.0.0.5:0", "--web-tls-cert", "c", "--web-tls-key", "k"), "dashboard at http://10.0.0.5:1/"),
    ],
)
def test_who_starts_it_reads_where_it_can_be_opened(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """The address of the server itself, and what else is needed to get in."""
    web = pytest.importorskip("aliquot.cli.scheduler_dashboard", reason="the parts for a cluster are not installed")

    @contextlib.asynccontextmanager
    async def served(program: Any) -> AsyncIterator[str]:
        yield f"http://{address(program.settings.web, '--web')[0]}:1/"

    async def main() -> None:
        async with dashboard(SimpleNamespace(settings=made(*words))):  # type: ignore[arg-type]
            pass

    monkeypatch.setattr(web, "dashboard_beside", served)
    asyncio.run(main())

    assert f"{said}\n" == capsys.readouterr().err


def test_without_an_address_there_are_no_pages():
    """No --web, no dashboard."""
    assert "" == made().web


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--leader-service", "x"), "--leader-service and --leader-address come together"),
        (("--leader-address", "10.0.0.1"), "--leader-service and --leader-address come together"),
        (("--leader-service", "x", "--leader-address", "here"), '--leader-address "here" is not an IP address'),
        (("--leader-service", "x", "--leader-address", "10.0.0.1", "--bind", "0.0.0.0:0"), "a port that is known"),
    ],
)
def test_a_leaders_address_that_can_not_be_is_refused(flags: tuple[str, ...], sentence: str):
    """Half of an address, a name in place of an IP address, or a port that nobody knows."""
    found = CliRunner().invoke(scheduler, list(flags)).exception

    assert isinstance(found, BadSettings)
    assert sentence in str(found)


def test_the_scheduler_refuses_an_endpoint_that_is_no_url():
    """Before it looks for a cluster it says what may be written; the variable counts as the option does."""
    sentence = '--otlp-endpoint "collector:4318" is not the URL of an OTLP/HTTP receiver; write http://HOST:4318'
    by_option = CliRunner().invoke(scheduler, ["--otlp-endpoint", "collector:4318"]).exception
    by_variable = CliRunner().invoke(scheduler, env={VARIABLE: "collector:4318"}).exception

    for found in (by_option, by_variable):
        assert isinstance(found, UserError) and sentence == str(found)


@pytest.mark.parametrize(
    ("words", "environment", "endpoint"),
    [
        ((), {}, ""),
        ((), {VARIABLE: "http://a:4318"}, "http://a:4318"),
        (("--otlp-endpoint", "https://b"), {VARIABLE: "http://a:4318"}, "https://b"),
    ],
)
def test_the_agent_takes_the_option_before_the_variable(
    words: tuple[str, ...], environment: dict[str, str], endpoint: str
):
    """Without either nothing is traced."""
    said = CliRunner().invoke(node, [*words, "--print-config"], env=environment).stdout

    assert endpoint == yaml.safe_load(said)["otlp-endpoint"]


def test_the_arbiter_calls_itself_as_it_was_called():
    """A wrong option of `aliquot arbiter` is answered with a usage line that can be typed."""
    words = [sys.executable, "-m", "aliquot.cli", "arbiter", "--bogus"]
    done = subprocess.run(words, capture_output=True, text=True)

    assert (2, "Usage: aliquot arbiter [OPTIONS]") == (done.returncode, done.stderr.splitlines()[0])

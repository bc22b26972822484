"""The dashboard's options of `aliquot scheduler`: who sees it, and by which names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from aliquot.cli.programs import dashboard, scheduler, settings_options
from aliquot.model.errors import UserError
from aliquot.scheduler.settings import SchedulerSettings, address


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

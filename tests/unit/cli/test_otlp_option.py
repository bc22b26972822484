"""`--otlp-endpoint` of scheduler and node agent."""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner

from aliquot.cli.programs import node, scheduler
from aliquot.model.errors import UserError

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


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

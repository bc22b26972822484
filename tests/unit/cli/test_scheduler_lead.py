"""The options about who leads: what does not go together is refused in one sentence."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from aliquot.cli.programs import scheduler
from aliquot.kube.settings import BadSettings


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

"""A made-up cluster behind the whole application, asked in this process."""

import pytest
from kit.browsing import browser
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient


@pytest.fixture
def facts() -> MadeUpFacts:
    """Four nodes with eight GPUs each, with a minute of history."""
    made_up = MadeUpFacts(nodes=4, gpus=8)
    made_up.pass_time(points=12)
    return made_up


@pytest.fixture
def visitor(facts: MadeUpFacts) -> TestClient:
    """Asks for pages as a browser on this machine would."""
    return browser(facts)

"""The pages of some facts, asked in this process."""

from starlette.testclient import TestClient

from aliquot.status import StatusSource
from aliquot.web.app import dashboard, everyone


def browser(facts: StatusSource) -> TestClient:
    """A browser on this machine, before the dashboard of these facts."""
    return TestClient(dashboard(everyone(facts)), base_url="http://localhost")

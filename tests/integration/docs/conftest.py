"""Counts how the documentation's commands were looked at, and says so at the end, with every reason for not running."""

from collections import Counter

import pytest

COUNTS = pytest.StashKey[Counter[str]]()
NOT_RUN = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Nothing was looked at yet."""
    config.stash[COUNTS] = Counter()
    config.stash[NOT_RUN] = {}


@pytest.fixture
def counts(pytestconfig: pytest.Config) -> Counter[str]:
    """How many commands were looked at in which way."""
    return pytestconfig.stash[COUNTS]


@pytest.fixture
def not_run(pytestconfig: pytest.Config) -> dict[str, str]:
    """Reasons that pages give, by place."""
    return pytestconfig.stash[NOT_RUN]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each way, one for each block that nobody runs."""
    counts, reasons = (terminalreporter.config.stash.get(key, None) for key in (COUNTS, NOT_RUN))
    if not counts:
        return
    terminalreporter.section("commands of the documentation")
    for way, number in sorted(counts.items()):
        terminalreporter.line(f"{number:4}  {way}")
    for place, reason in sorted((reasons or {}).items()):
        terminalreporter.line(f"      {place} is not run: {reason}")

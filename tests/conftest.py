"""What every test starts from, whoever calls the suite and from where."""

import os
import resource
import signal

import pytest
from hypothesis import settings

MOST_OF_A_REASON = 500

# The same examples in every run, so that what passes here passes there; `make test-slow` draws others each time. No
# deadline for one example: a busy machine is no defect, and pytest's own time limit ends what hangs.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure() -> None:
    """Undo what a caller may have set: an ignored Ctrl-C is inherited by children, and so is a low descriptor limit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why a test was run again: what passes the second time has still failed once."""
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(crash or report.longrepr)[:MOST_OF_A_REASON]
        terminalreporter.write_line(f"run again: {report.nodeid} ({report.when}) {why}")

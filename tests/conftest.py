"""What every test starts from, whoever calls the suite and from where."""

import os
import resource
import signal

import pytest
from hypothesis import settings

from aliquot.lib.log import set_up_log

MAX_REASON = 500
MAX_RERUNS = 1

# The same examples in every run, so that what passes here passes there; `make test-slow` draws others each time. No
# deadline for one example: a busy machine is no defect, and pytest's own time limit ends what hangs.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure() -> None:
    """Undo what a caller may have set: an ignored Ctrl-C is inherited by children, and so is a low descriptor limit.

    COLUMNS and LINES are the terminal's that pytest was started in: readline writes them into the environment.
    The log is set up as programs do: `structlog.testing.capture_logs` would leave structlog's own default behind.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    set_up_log()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why a test was run again: what passes the second time has still failed once."""
    for line in run_again(terminalreporter):
        terminalreporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail where too many tests were run again: a flaky test is a defect."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = run_again(reporter) if reporter else []
    if len(again) > MAX_RERUNS and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"\n{len(again)} tests were run again, and at most {MAX_RERUNS} may be")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def run_again(reporter: pytest.TerminalReporter) -> list[str]:
    """A line for each repeated run of a test."""
    return [
        f"run again: {report.nodeid} ({report.when}) {reason(report)[:MAX_REASON]}".replace("\n", " ")
        for report in reporter.stats.get("rerun", [])
    ]


def reason(report: pytest.TestReport) -> str:
    """Where and why a run of a test failed."""
    return str(getattr(report.longrepr, "reprcrash", None) or report.longrepr)

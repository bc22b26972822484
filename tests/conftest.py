"""What every test starts from, whoever calls the suite and from where."""

import resource
import signal


def pytest_configure() -> None:
    """Undo what a caller may have set: an ignored Ctrl-C is inherited by children, and so is a low descriptor limit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

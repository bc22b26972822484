"""What every test starts from, whoever calls the suite and from where."""

import os
import resource
import signal

from hypothesis import settings

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

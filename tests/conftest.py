"""What every test starts from, whoever calls the suite and from where."""

import asyncio
import inspect
import os
import resource
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from kit.compiling import compile_c

from aliquot.driver.policies import use_kernels
from aliquot.lib.log import set_up_log

MAX_MEASURED = 60

# The same examples in every run, so that what passes here passes there; `make test-slow` draws others each time. No
# deadline for one example: a busy machine is no defect, and pytest's own time limit ends what hangs.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure() -> None:
    """Undo what a caller may have set: an ignored Ctrl-C is inherited by children, and so is a low descriptor limit.

    COLUMNS and LINES are the terminal's that pytest was started in: readline writes them into the environment that
    children get, where `os.environ` does not show them.
    The log is set up as programs do: `structlog.testing.capture_logs` would leave structlog's own default behind. So
    are the inner loops of placement.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
        os.unsetenv(name)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    set_up_log()
    use_kernels()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound what is measured: such a test holds up all others, so each has to be worth its time."""
    measured = [item.nodeid for item in items if item.get_closest_marker("real_time")]
    if len(measured) > MAX_MEASURED:
        raise pytest.UsageError(f"{len(measured)} tests have the marker real_time, at most {MAX_MEASURED} may")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds a C program, by its place below tests/integration, with these flags of the compiler; each one once."""

    @cache
    def build(source: str, *flags: str) -> Path:
        path = Path(__file__).parent / "integration" / source
        return compile_c(tmp_path_factory.mktemp(path.stem) / path.stem, *flags, path)

    return build

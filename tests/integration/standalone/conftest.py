"""A runtime directory of its own for each test, and engines in it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import engine_lives, eventually

from aliquot.driver.native import EMULATED_CUDA, EMULATED_NVML, HOOK, NativePartMissing, native_part

from .stage import Aliquot, Cluster, engine_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the native parts there is nothing to inject; say so once per test."""
    try:
        for part in (HOOK, EMULATED_CUDA, EMULATED_NVML):
            native_part(part)
    except NativePartMissing as error:
        for item in items:
            if "integration/standalone" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=str(error)))


@pytest.fixture
def aliquot_cli() -> Iterator[Aliquot]:
    """The command in a runtime directory of this test's own; whatever engine it started is gone afterwards."""
    runtime = Path(tempfile.mkdtemp(prefix="alq-"))
    command = Aliquot(runtime)
    yield command
    eventually(lambda: not command.engine_is_up, "no engine is left")
    eventually(lambda: not engine_lives(runtime), "the engine has written its last")
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture
def engine(aliquot_cli: Aliquot) -> Iterator[Aliquot]:
    """The command with `aliquot up` on two emulated V100 in the background, without a dashboard."""
    with engine_of(aliquot_cli, "v100x2", "--no-web"):
        yield aliquot_cli


@pytest.fixture
def up(engine: Aliquot, tmp_path: Path) -> Cluster:
    """An engine with two emulated GPUs."""
    return Cluster(engine, tmp_path)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Aliquot]:
    """The command beside one engine on an emulated V100 for a whole file, which a run joins and leaves as it was."""
    runtime = Path(tempfile.mkdtemp(prefix="alq-"))
    with engine_of(Aliquot(runtime), "v100", "--no-web") as command:
        yield command
    eventually(lambda: not engine_lives(runtime), "the engine has written its last")
    shutil.rmtree(runtime, ignore_errors=True)

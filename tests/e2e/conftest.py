"""The cluster that end-to-end tests share, and where it cannot be had, why not.

`ALIQUOT_E2E=require` turns a skip into a failure, `ALIQUOT_E2E=skip` leaves these tests out.
"""

import os
import uuid
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest
from cluster import programs
from cluster.cache import Unavailable
from cluster.control_plane import ControlPlane
from cluster.kubelet_node import KubeletNode
from cluster.prepare import EXTRAS, Parts, prepare, why_not
from scheduling import Pods

HERE = Path(__file__).resolve().parent
PARTS = pytest.StashKey[Parts]()
REASON = pytest.StashKey[str]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests come last, so that no cluster runs beside tests that measure time."""
    items.sort(key=lambda item: HERE in item.path.parents)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what is missing before the first test, where no time limit of a test counts."""
    items = [item for item in session.items if HERE in item.path.parents]
    fixtures = {name for item in items for name in getattr(item, "fixturenames", ())}
    imports = {name for item in items for name in vars(getattr(item, "module", None) or object)}
    if "cluster_parts" in fixtures and not session.config.option.collectonly:
        prepare_for(session.config, EXTRAS.keys() & (fixtures | imports))


def prepare_for(config: pytest.Config, extras: Iterable[str]) -> None:
    """Leaves the parts in the run's stash, or the reason why there are none."""
    config.stash[REASON] = "ALIQUOT_E2E=skip" if os.environ.get("ALIQUOT_E2E") == "skip" else why_not()
    if config.stash[REASON]:
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            config.stash[PARTS] = prepare()
            for name in extras:
                EXTRAS[name]()
        except Unavailable as error:
            config.stash[REASON] = f"it could not be prepared: {error}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly what was not tested."""
    if reason := terminalreporter.config.stash.get(REASON, ""):
        terminalreporter.section("no test cluster", yellow=True)
        terminalreporter.line(f"Nothing was tested against real Kubernetes: {reason}", yellow=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the end of every part's log."""
    report = yield
    plane = getattr(item, "funcargs", {}).get("control_plane")
    if report.failed and plane:
        report.sections += [(f"end of {name}'s log", part.tail(6)) for name, part in plane.parts.items()]
    return report


@pytest.fixture(scope="session")
def cluster_parts(pytestconfig: pytest.Config) -> Parts:
    """The programs that a cluster is started from, for tests that start one of their own."""
    if parts := pytestconfig.stash.get(PARTS, None):
        return parts
    reason = f"no test cluster: {pytestconfig.stash[REASON]}"
    chosen = os.environ.get("ALIQUOT_E2E")
    if chosen != "skip" and (chosen == "require" or "could not" in reason):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def helm(cluster_parts: Parts) -> str:
    """The path of the real helm."""
    return programs.helm()


@pytest.fixture(scope="module")
def control_plane(cluster_parts: Parts) -> Iterator[ControlPlane]:
    """A real control plane for one file of tests: what a file installs or leaves is not in the way of another's."""
    made = ControlPlane(cluster_parts)
    made.start()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def kubelet_node(control_plane: ControlPlane) -> KubeletNode:
    """A real node in that cluster, from the first test that asks for it to the end of the file."""
    node = KubeletNode(control_plane)
    node.start()
    return node


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own; its pods are gone when the test ends."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.make_namespace(name)
    yield name
    control_plane.remove_namespace(name)


@pytest.fixture
def pods(control_plane: ControlPlane, namespace: str) -> Pods:
    """The pods of that namespace."""
    return Pods(control_plane, namespace)

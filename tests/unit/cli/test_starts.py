"""What programs load when they start: every `aliquot run` and every command waits for it."""

import os
import subprocess
import sys

import pytest

from aliquot.cli.kubectl import COMMANDS

ENTRY = "import aliquot.cli.main, aliquot.cli.{0}"
CALL = "aliquot.standalone.client, aliquot.standalone.wire"
PACKAGE_METADATA = {"importlib.metadata", "email"}
PLACEMENT = {"numpy", "aliquot.placement", "aliquot.topology"}
KUBECTL = ", ".join(f"aliquot.cli.kubectl.{name}" for name in (*COMMANDS, "top_source"))
DATABASE = {"sqlite3", "cryptography", "jinja2"}
SERVING = {"starlette", "uvicorn", "aliquot.web", "aliquot.standalone.engine"}


def loaded(imports: str) -> set[str]:
    """The modules that a process has after these imports."""
    code = f"import sys\n{imports}\nprint(*sys.modules)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("imports", "needless"),
    [
        (f"{ENTRY.format('run')}, aliquot.standalone.runner, {CALL}", {"yaml", "rich"} | PLACEMENT | SERVING),
        (f"{ENTRY.format('get')}, {CALL}", {"yaml", "rich"} | PLACEMENT | SERVING),
        (f"{ENTRY.format('pods')}, aliquot.kube.manifest, {CALL}", {"rich"} | PLACEMENT | SERVING),
        ("import aliquot.arbiter.__main__", {"yaml", "rich", "pynvml", "prometheus_client"} | PLACEMENT | SERVING),
        ("import aliquot.standalone.daemon", {"rich", "click", "starlette", "uvicorn", "aliquot.web"}),
    ],
    ids=["run", "get", "apply", "arbiter", "engine of a run"],
)
def test_a_program_loads_what_it_needs(imports, needless):
    """A command, the arbiter and the engine of a run start without the libraries and packages that others need."""
    assert set() == (needless | PACKAGE_METADATA) & loaded(imports)


@pytest.mark.parametrize(
    "modules", [f"{KUBECTL}", "aliquot.cli.top, aliquot.cli.top_app, aliquot.cli.top_source"], ids=["kubectl", "top"]
)
def test_a_terminal_loads_no_server(modules):
    """Every command of `kubectl aliquot`, and `aliquot top` on a terminal, start without a web server or database."""
    assert set() == (SERVING | DATABASE) & loaded(f"import {modules}")

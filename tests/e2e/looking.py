"""A browser for pages."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scheduling import ROOT


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium; the test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no test in a browser")
    tool = ROOT / "tools" / "chromium.py"
    found = subprocess.run([sys.executable, tool, "--no-fetch"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"no test in a browser: {found.stderr.strip()}")
    where = json.loads(found.stdout)
    with api.sync_playwright() as driver:
        env = os.environ | where["env"]
        made = driver.chromium.launch(executable_path=where["executable"], args=["--no-sandbox"], env=env)
        try:
            yield made
        finally:
            made.close()

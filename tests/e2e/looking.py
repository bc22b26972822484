"""A browser in front of a page inside the cluster's network."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from cluster.control_plane import ControlPlane
from scheduling import ROOT


@contextmanager
def relayed(plane: ControlPlane, port: int) -> Iterator[str]:
    """The address outside at which a port inside is reached, as with kubectl port-forward."""

    def carry(outside: socket.socket) -> None:
        with outside, plane.rooms.connect(port) as inside:
            other = {outside: inside, inside: outside}
            inside.settimeout(None)
            while True:
                for ready in select.select([outside, inside], [], [])[0]:
                    try:
                        if not (data := ready.recv(1 << 16)):
                            return
                        other[ready].sendall(data)
                    except OSError:
                        return

    def serve() -> None:
        while True:
            try:
                outside, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=carry, args=(outside,), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://localhost:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


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

"""JupyterHub on one machine with the configuration of examples/jupyter: its people's servers are tenants."""

import contextlib
import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE
from environments import python
from test_jupyterlab import BROWSER
from waiting import eventually

EXAMPLE = HERE.parents[1] / "examples" / "jupyter" / "jupyterhub_config.py"
TOKEN = "only-here"
# Its people have no accounts here; their servers run as who started the Hub, and sign in with a service's token.
CONFIG = """
load_subconfig({example!r})
c.JupyterHub.spawner_class, c.JupyterHub.authenticator_class = "simple", "dummy"
c.Authenticator.allow_all = True
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/{{username}}"
c.Spawner.environment = {{"ALIQUOT_RUNTIME_DIR": "{runtime}"}}
c.Spawner.args = ["--allow-root"]
c.JupyterHub.bind_url, c.JupyterHub.hub_port = "http://127.0.0.1:{ports[0]}", {ports[1]}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.JupyterHub.services = [{{"name": "test", "api_token": "{token}"}}]
scopes = ["admin:users", "admin:servers", "access:servers"]
c.JupyterHub.load_roles = [{{"name": "test", "services": ["test"], "scopes": scopes}}]
"""
CELL = """
import ctypes
cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(total.value >> 20)
"""


class Hub:
    """A Hub and its proxy, in a folder of its own."""

    def __init__(self, machine: dict[str, str], folder: Path) -> None:
        self.folder, self.machine = folder, machine
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            ports = [one.getsockname()[1] for one in sockets]
        names = {"example": str(EXAMPLE), "folder": folder, "runtime": machine["ALIQUOT_RUNTIME_DIR"]}
        (folder / "config.py").write_text(CONFIG.format(**names, ports=ports, token=TOKEN))
        (folder / "cell.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": [CELL]}]}))
        self.url = f"http://127.0.0.1:{ports[0]}"
        path = f"{machine['PATH']}:{python('hub').parent}"
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [python("hub").parent / "jupyterhub", "-f", folder / "config.py"], cwd=folder, stdout=log, stderr=log,
                env=machine | {"PATH": path},
            )  # fmt: skip

    @property
    def log(self) -> str:
        """What it has written."""
        return (self.folder / "log").read_text(errors="replace")

    def __call__(self, method: str, path: str) -> Any:
        """Call the Hub's API."""
        headers = {"Authorization": f"token {TOKEN}"}
        request = urllib.request.Request(f"{self.url}/hub/api{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=180) as answer:
            return json.loads(answer.read() or b"null")

    def is_up(self) -> bool:
        """Whether it answers through its proxy."""
        assert self.process.poll() is None, self.log
        with contextlib.suppress(OSError):
            return bool(self("GET", "/"))
        return False

    def start(self, name: str) -> None:
        """Start a person's server, and wait until it is ready."""
        self("POST", f"/users/{name}")
        self("POST", f"/users/{name}/server")
        eventually(
            lambda: self("GET", f"/users/{name}")["servers"][""]["ready"], f"the server of {name}: {self.log}", 90
        )

    def cell(self, name: str) -> str:
        """What a cell of a notebook prints in a person's server."""
        words = [f"{self.url}/user/{name}", TOKEN, self.folder / "cell.ipynb"]
        done = subprocess.run([python("hub"), "-c", BROWSER, *words], capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    def tenants(self) -> list[tuple[int, int, int]]:
        """Request, limit and memory of each tenant."""
        command = ["aliquot", "get", "tenants", "-o", "json"]
        listed = subprocess.run(command, env=self.machine, check=True, capture_output=True)
        pieces = [tenant["slices"][0] for tenant in json.loads(listed.stdout)]
        return [(piece["request_milli"], piece["limit_milli"], piece["memory_mib"]) for piece in pieces]


@pytest.fixture
def hub(machine: dict[str, str], tmp_path: Path) -> Iterator[Hub]:
    """A Hub that is up."""
    folder = tmp_path / "hub"
    folder.mkdir()
    one = Hub(machine, folder)
    try:
        eventually(one.is_up, "the Hub answers", 60)
        yield one
    finally:
        one.process.terminate()
        one.process.wait(timeout=60)


@pytest.mark.timeout(600)
def test_two_people_of_a_hub_have_a_share_each(hub: Hub):
    """A server and its kernels have what the configuration says until the Hub stops it; one without room is refused,
    and the Hub's log has the sentence."""
    for name in ("ann", "bob"):
        hub.start(name)
    seen, both = [hub.cell(name) for name in ("ann", "bob")], hub.tenants()
    with subprocess.Popen(["aliquot", "run", "--gpu-request", ".3", "--", "sleep", "600"], env=hub.machine) as other:
        eventually(lambda: len(hub.tenants()) == 3, "another program has its share")
        with pytest.raises((urllib.error.HTTPError, AssertionError)):
            hub.start("eve")
        other.terminate()
    hub("DELETE", "/users/bob/server")
    eventually(lambda: len(hub.tenants()) == 1, "the share has ended with the server")

    assert ["4096\n", "4096\n"] == seen
    assert [(300, 600, 4096)] * 2 == both
    assert "aliquot: GPU 0 has 0.10 free, 0.30 were asked" in hub.log, hub.log

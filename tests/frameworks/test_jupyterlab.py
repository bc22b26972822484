"""JupyterLab under one share, as a person starts it: the server, a kernel through its API, and a notebook of numba."""

import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE
from environments import python
from gpuruns import Room

NOTEBOOK = HERE.parents[1] / "examples" / "jupyter" / "saxpy.ipynb"
TOKEN = "only-here"
SHARE = ("--gpu-request", ".3", "--gpu-limit", ".6", "--gpu-mem", "2Gi")
START_S = 120
# Runs every code cell of a notebook in a new kernel of a server, as a browser does, and prints what the cells printed.
BROWSER = """
import json, sys, uuid, websocket, urllib.request
url, token, path = sys.argv[1:]
def ask(place, method="GET"):
    request = urllib.request.Request(url + place, method=method, headers={"Authorization": "token " + token})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read() or b"null")
kernel = ask("/api/kernels", "POST")["id"]
socket = websocket.create_connection(
    url.replace("http", "ws", 1) + f"/api/kernels/{kernel}/channels", header=["Authorization: token " + token],
    timeout=240)
for cell in json.load(open(path))["cells"]:
    if cell["cell_type"] != "code":
        continue
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s", "username": ""}
    header["version"] = "5.3"
    content = {"code": "".join(cell["source"]), "silent": False, "store_history": True, "allow_stdin": False}
    socket.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content,
                            "channel": "shell", "buffers": []}))
    while True:
        said = json.loads(socket.recv())
        if said["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        if said["msg_type"] == "stream" and said["content"]["name"] == "stdout":
            print(said["content"]["text"], end="")
        if said["msg_type"] == "error":
            sys.exit("\\n".join(said["content"]["traceback"]))
        if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
            break
ask(f"/api/kernels/{kernel}", "DELETE")
"""


@pytest.fixture
def homes(tmp_path: Path) -> dict[str, str]:
    """Folders of Jupyter's that go away."""
    return {
        name: str(tmp_path / name.lower())
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "NUMBA_CACHE_DIR")
    }


@pytest.mark.timeout(600)
def test_a_notebook_of_nbclient_runs_under_a_share(room: Room, tmp_path: Path, homes: dict[str, str]):
    """`jupyter execute` writes a notebook whose cells saw the share's memory and launched their kernels."""
    done = tmp_path / "done.ipynb"
    command = [python("jupyter").parent / "jupyter", "execute", f"--output={done}", "--timeout=300", NOTEBOOK]
    run = room.start("substitute", command, share=SHARE, **homes)
    run.process.communicate(timeout=300)

    assert 0 == run.process.returncode, run.errors
    assert ["NVIDIA H100 80GB HBM3, 2048 MiB\n", "0 of 65536 elements are right\n"] == printed(done)


def printed(notebook: Path) -> list[str]:
    """What each code cell wrote to its standard output."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    outputs = (cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    return ["".join(part for each in cell if each.get("name") == "stdout" for part in each["text"]) for cell in outputs]


@pytest.mark.timeout(600)
def test_jupyterlab_and_its_kernels_are_one_tenant(room: Room, tmp_path: Path, homes: dict[str, str]):
    """JupyterLab starts under `aliquot run`; a kernel that it starts sees the share, and Ctrl-C ends them together."""
    lab = room.start(
        "substitute",
        [python("jupyter").parent / "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root",
         f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={tmp_path}"],
        share=SHARE, **homes,
    )  # fmt: skip
    url = address(Path(homes["JUPYTER_RUNTIME_DIR"]), lab)
    page = urllib.request.Request(f"{url}/lab", headers={"Authorization": f"token {TOKEN}"})
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert b"JupyterLab" in answer.read()
    browser = room.start("alone", [python("jupyter"), "-c", BROWSER, url, TOKEN, NOTEBOOK])
    out, _ = browser.process.communicate(timeout=300)
    lab.process.send_signal(signal.SIGTERM)
    lab.process.communicate(timeout=60)

    assert 0 == browser.process.returncode, browser.errors + lab.errors
    assert "NVIDIA H100 80GB HBM3, 2048 MiB\n0 of 65536 elements are right\n" == out


def address(runtime: Path, lab: Any) -> str:
    """Where the server listens, from the file that it writes once it does."""

    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and lab.process.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            if file.stat().st_size:
                return str(json.loads(file.read_text())["url"]).rstrip("/")
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start: {lab.errors}")

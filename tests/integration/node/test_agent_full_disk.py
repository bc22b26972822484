"""The agent's first start on a disk without room for its files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rights import rooms

pytestmark = rooms

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}


def start_agent(folder: Path, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    """An agent with all of its folders in one, until it ends."""
    command = [sys.executable, "-m", "aliquot.cli", "node", "--emulate", "v100", "--node-name", "n"]
    command += ["--kubeconfig", str(kubeconfig), "--display-port", "0"]
    for name in ("state", "runtime", "cdi", "kubelet"):
        command += [f"--{name}-dir", str(folder / name)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("size", ["64k", "256k", "512k", "900k", "1200k"])
def test_an_agents_first_start_without_room_ends_with_one_sentence(tmp_path: Path, size: str):
    """Whichever file finds no room, the last line of the agent's log says so and names a place on the disk; kubelet
    starts it again."""
    disk, kubeconfig = tmp_path / "d", tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        ended = start_agent(disk, kubeconfig)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    last = ended.stderr.splitlines()[-1]
    assert 1 == ended.returncode
    assert "Traceback" not in ended.stderr
    assert last.startswith("aliquot: ") and f" {disk}/" in last.partition("; ")[0]
    assert "no space left on device" in last.lower()

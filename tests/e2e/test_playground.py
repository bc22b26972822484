"""`make cluster` and `make demo-cluster`, as a person runs them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.namespaces import PREFIX
from cluster.ours import ROOT
from cluster.prepare import Parts

from aliquot_lab.bench.fig6 import TOLERANCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HALF = "kubectl apply -f {file} && kubectl wait --for=condition=Ready --timeout=60s pod/half && {look}"
LOOK = "until kubectl logs half | grep uuid; do sleep 0.5; done; kubectl get pod half -o jsonpath={.spec.nodeName}"


def environment() -> dict[str, str]:
    """As the Makefile sets it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "e2e")])}


def command_lines() -> list[str]:
    """Of every process of the machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_an_example_runs_on_the_real_node_of_make_cluster(cluster_parts: Parts):
    """Beside fake nodes, a Pod of the examples lands on the real one and its program sees its half of a GPU."""
    script = HALF.format(file=ROOT / "examples/cluster/half.yaml", look=LOOK)
    command = [sys.executable, "-m", "cluster", "--nodes", "2", "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())

    assert 0 == done.returncode, done.stdout + done.stderr
    *_, said, node = done.stdout.splitlines()
    (gpu,) = json.loads(said)["gpus"]
    assert (4096, "node-1") == (gpu["total_mib"], node)
    assert done.stderr.endswith("everything is gone\n")


def test_the_plugin_of_kubectl_finds_no_fault_in_make_cluster(cluster_parts: Parts):
    """`doctor`, `inspect`, `top` and the dashboard reach the scheduler and the real node's agent, as with the chart."""
    half = f"kubectl apply -f {ROOT}/examples/cluster/half.yaml && kubectl wait --for=condition=Ready pod/half"
    looks = "kubectl aliquot doctor && kubectl aliquot inspect && kubectl aliquot top -o json | tr -d '\\n ' && echo"
    pods = "kubectl get pods -n aliquot-system --no-headers"
    script = f"{half} && {looks} && {pods} && wget -qO- $ALIQUOT_DASHBOARD/api/v1/nodes"
    command = [sys.executable, "-m", "cluster", "--nodes", "1", "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "ok     scheduler" in done.stdout and "\nfault " not in done.stdout
    assert "the scheduler and the pods agree about 12 GPUs" in done.stdout
    assert "1 report what is used" in done.stdout and '"memory_used_mib":null' not in done.stdout
    assert re.search(r"^aliquot-scheduler +1/1 +Running", done.stdout, re.MULTILINE)
    assert '"name":"node-1"' in done.stdout.replace(" ", "")


def test_ctrl_c_ends_make_cluster_and_leaves_nothing(cluster_parts: Parts):
    """The interrupt of a terminal ends every part, and the cluster's folder is gone."""
    command = [sys.executable, "-m", "cluster", "--nodes", "1"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
    ) as cluster:
        assert cluster.stderr
        told = ""
        while "ends with this program" not in told:
            told += cluster.stderr.readline()
            assert cluster.poll() is None, told
        place = Path(told.partition("KUBECONFIG=")[2].split()[0]).parent
        assert place.name.startswith(PREFIX) and place.is_dir()

        cluster.send_signal(signal.SIGINT)

        assert 0 == cluster.wait(60)
    assert not place.exists()
    assert [] == [line for line in command_lines() if str(place) in line]


def test_fig6_is_kept_in_containers(cluster_parts: Parts, tmp_path: Path):
    """Three SharePods on one GPU of the real node are charged their due in every phase, within 0.02; the exit status
    says whether their programs, by their own count, had it too, which a busy machine may deny them."""
    command = [sys.executable, "-m", "cluster.demo", "-o", "json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())

    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["max_error"] <= TOLERANCE) == (done.returncode == 0)
    for phase in told["phases"]:
        assert pytest.approx(phase["expected"], abs=TOLERANCE) == phase["charged"], phase["name"]
    assert told == json.loads((tmp_path / "fig6.json").read_text())
    assert [1, 2, 3, 2] == [len(phase["measured"]) for phase in told["phases"]]
    assert {"fig6.json", "fig6.png", "fig6.svg"} == {path.name for path in tmp_path.iterdir()}

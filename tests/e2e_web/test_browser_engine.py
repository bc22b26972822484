"""The dashboard of a real engine: `aliquot up` on emulated GPUs, with CUDA programs that share one."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aliquot
from aliquot.driver.native import EMULATED_CUDA, EMULATED_NVML, HOOK, NativePartMissing, native_part

from .conftest import Visit

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser").expect
Open = Callable[..., Visit]


class Up:
    """A running `aliquot up` with its dashboard."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="alq-"))
        sources = str(Path(aliquot.__file__).parents[1])
        self.env = os.environ | {"ALIQUOT_RUNTIME_DIR": str(self.folder / "run"), "PYTHONPATH": sources}
        words = ["up", "--emulate", "v100x2", "--window", "2", "--port", "0"]
        self.process = subprocess.Popen(self._command(*words), stdout=subprocess.PIPE, text=True, env=self.env)
        said = ""
        assert self.process.stdout is not None
        while not said.startswith("ready"):
            said = self.process.stdout.readline()
            assert said, "aliquot up ended before it was ready"
            if found := re.match(r"dashboard at (\S+)", said):
                self.url = found[1]

    def apply(self, name: str, command: list[str], **gpu: object) -> None:
        """One SharePod more."""
        container = {"name": "main", "command": command}
        spec = {"gpu": gpu, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
        pod = {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": name}, "spec": spec}
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(pod))
        subprocess.run(self._command("apply", "-f", str(file)), check=True, env=self.env, capture_output=True)

    def busy(self, name: str, **gpu: object) -> None:
        """A SharePod that always wants the GPU."""
        program = [sys.executable, "-m", "aliquot_lab.bench.client", "sync", "--kernel-ms", "5"]
        self.apply(name, [*program, "--progress", str(self.folder / f"{name}.progress")], **gpu)

    def get(self, path: str) -> dict:
        """An answer of the API."""
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def close(self) -> None:
        """End it; it must end in order."""
        self.process.terminate()
        status = self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert 0 == status

    @staticmethod
    def _command(*words: str) -> list[str]:
        return [sys.executable, "-m", "aliquot.cli", *words]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """Two tenants that always want GPU 0, and one that waits for two whole GPUs."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: no CUDA program to look at")
    try:
        for part in (HOOK, EMULATED_CUDA, EMULATED_NVML):
            native_part(part)
    except NativePartMissing as error:
        pytest.skip(str(error))
    running = Up()
    try:
        running.busy("a", request=0.5, limit=0.7, memory="4Gi", gpuID="shared")
        running.busy("b", request=0.3, memory="2Gi", gpuID="shared")
        running.apply("waits", ["true"], request=2)
        until_s = time.monotonic() + 40
        while sum(share["windows"] for gpu in running.get("api/v1/gpus")["items"] for share in gpu["shares"]) < 4:
            assert time.monotonic() < until_s, "no window was counted"
            time.sleep(0.2)
        yield running
    finally:
        running.close()


@pytest.mark.real_time
def test_shares_under_load_are_shown(visit: Open, up: Up):
    """Two tenants that always want the GPU are shown with what they get, and their promise as kept."""
    page = visit(up.url).go("/")
    gpus = {gpu["index"]: gpu for gpu in up.get("api/v1/gpus")["items"]}
    shared = next(gpu for gpu in gpus.values() if gpu["shares"])
    usage = {share["tenant"]: share["usage_milli"] for share in shared["shares"]}
    row = page.locator(f'li.gpu:has(a[href="/gpus/{shared["uuid"]}"])')

    assert "shared" == shared["state"] == shared["vgpu"]
    assert usage["default/a"] >= 450 and usage["default/b"] >= 250
    expect(row).to_contain_text("default/a")
    expect(row).to_contain_text("default/b")
    assert all(share["kept_percent"] >= 50 for share in shared["shares"])
    assert re.search(r"Promise kept\s+[\d.]+ %", page.locator("#summary").inner_text())


def test_what_happens_is_seen(visit: Open, up: Up):
    """A SharePod that is applied comes onto the open page, and is gone when it is deleted."""
    seen = visit(up.url)
    page = seen.go("/workloads")
    seen.live()
    up.apply("newcomer", ["sleep", "60"], request=0.1)
    expect(page.locator("#workloads")).to_contain_text("default/newcomer", timeout=30_000)
    subprocess.run(up._command("delete", "newcomer"), check=True, env=up.env, capture_output=True)

    expect(page.locator("#workloads")).not_to_contain_text("default/newcomer", timeout=30_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_topology_is_the_machines(visit: Open, up: Up, scheme: str):
    """The drawn tree has every GPU once, and the table says the link of each pair."""
    page = visit(up.url, color_scheme=scheme).go("/topology")
    leaves = page.locator("svg.tree .leaf text").evaluate_all("(all) => all.map((each) => each.textContent)")

    assert ["GPU 0", "GPU 1"] == sorted(text for text in leaves if text.startswith("GPU"))
    assert [] == page.evaluate((Path(__file__).parent / "checks.js").read_text())
    page.locator("summary").click()
    expect(page.locator("table.matrix")).to_contain_text("NV1")

"""What only a real GPU can prove: `python3 tests/gpu/run.py --out DIR [NAME...]`, in nine minutes.

On a machine with an NVIDIA driver, from a checkout, with the Python that has the frameworks to be tried (PyTorch, CuPy,
Triton, numba, JAX, cuda-bindings, nvidia-ml-py; what is missing is skipped and said). Nothing has to be installed:
hook and programs are built into build/gpu with gcc and cmake. Of what the package imports, click, numpy, pyyaml,
nvidia-ml-py and prometheus-client are on most images for GPUs; where there is no package index, bring the others:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --dest wheels msgspec structlog     (elsewhere)
    pip install --no-index --no-deps --target site wheels/*.whl && PYTHONPATH=$PWD/site python3 tests/gpu/run.py

Checks run in the order of checks.py, each in a process of its own and within its own limit, all within --budget-s. The
limits add up to 51 minutes: they end what hangs; what the budget does not reach is said, and so is what is missing.
The report is printed and written to DIR/report.json with date, GPU and driver.
`--emulate h100` tries the checks themselves where there is no GPU, and proves nothing about one.

Exit status: 0 when every check passed or was skipped for what the machine lacks, 1 when one failed, 2 when there is
nothing to run on or nothing to run, 3 when none failed but some were not reached within the budget.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "gpu"
BUDGET_S = 540.0
LEAST_S = 5
"""With less than this left a check is not begun."""
PARTS = {"libaliquot.so": "aliquot", "libaliquot_cuda.so": "aliquot", "bench/aliquot-bench-client": "aliquot_lab"}
"""The native parts that checks need, and the package that installs each."""
WANTED = ("msgspec", "structlog", "click", "yaml", "prometheus_client", "numpy", "pynvml")


def prepare_paths(emulate: str | None) -> None:
    """The checkout's package and native parts, for this process and all it starts."""
    for path in (ROOT / "src", HERE.parent, HERE):
        sys.path.insert(0, str(path))
    paths = [str(ROOT / "src"), str(HERE), str(HERE / "programs"), str(HERE.parent)]
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *([inherited] if inherited else [])])
    os.environ.setdefault("ALIQUOT_NATIVE_DIR", str(BUILD / "native"))
    if emulate:
        os.environ["ALIQUOT_GPU_EMULATE"] = emulate


def is_built() -> bool:
    """Whether all native parts are there, in ALIQUOT_NATIVE_DIR or installed."""
    from aliquot.driver.native import NativePartMissing, native_part

    try:
        return all(native_part(part, package) for part, package in PARTS.items())
    except NativePartMissing:
        return False


def build() -> None:
    """Compile hook and bench programs unless they are there."""
    if is_built():
        return
    subprocess.run(["cmake", "-S", ROOT, "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", BUILD, "-j", str(os.cpu_count() or 2)], check=True, stdout=sys.stderr)


def what_is_missing() -> str:
    """Why nothing can run here, as a sentence; empty where it can."""
    from base import has

    if absent := [name for name in WANTED if not has(name)]:
        return f"this Python lacks {', '.join(absent)}; see the head of {Path(__file__).name} for how to bring them"
    tools = [tool for tool in ("cmake", "cc") if not shutil.which(tool)]
    if tools and not is_built():
        return f"the native parts are not built and there is no {' and no '.join(tools)}"
    return ""


def machine(emulate: str | None) -> dict[str, str]:
    """What this runs on; `gpu` is empty where none answers."""
    facts = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "kernel": platform.release()}
    facts |= {"python": platform.python_version(), "driver": "", "memory": ""}
    if emulate:
        return facts | {"gpu": f"{emulate}, emulated"}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        seen = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except (FileNotFoundError, subprocess.TimeoutExpired):
        seen = ""
    row = [part.strip() for part in seen.splitlines()[0].split(",")] if seen else []
    return facts | dict(zip(("gpu", "driver", "memory"), [*row, "", "", ""], strict=False))


def run_one(name: str, timeout_s: float, out: Path) -> dict:
    """One check in a process group of its own, so that nothing of it is left when its time is over."""
    began = time.monotonic()
    argv = [sys.executable, str(HERE / "run.py"), "--only", name, "--out", str(out)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return {"name": name, "verdict": "failed", "why": f"not done after {timeout_s:.0f} s", "log": stderr[-1500:]}
    lines = [line for line in stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        why = f"ended with {process.returncode} and no result"
        return {"name": name, "verdict": "failed", "why": why, "log": (stdout + stderr)[-1500:]}
    result = json.loads(lines[-1].removeprefix("RESULT "))
    result |= {"name": name, "seconds": round(time.monotonic() - began, 1)}
    if result["verdict"] == "failed":
        result["log"] = stderr[-1500:]
    return result


def run_here(name: str) -> int:
    """The inner side of run_one."""
    from checks import CHECKS, Missing

    try:
        result = {"verdict": "passed", "figures": CHECKS[name][1]()}
    except Missing as missing:
        result = {"verdict": "skipped", "why": str(missing)}
    except Exception as error:
        traceback.print_exc()
        result = {"verdict": "failed", "why": f"{type(error).__name__}: {error}"[:2000]}
    print("RESULT " + json.dumps(result), flush=True)
    return 0


def show(result: dict) -> None:
    """One line for a check, and the text that it wants to be read."""
    figures = dict(result.get("figures", {}))
    text = figures.pop("text", "")
    figures.pop("facts", None)
    shown = figures or {key: result[key] for key in ("why", "log") if key in result}
    print(f"{result['verdict'].upper():9} {result['name']:30} {json.dumps(shown)}", flush=True)
    if text:
        print(text, flush=True)


def run_all(names: list[str], out: Path, budget_s: float, report: dict) -> None:
    """Run what was asked for in the order of checks.py; `report` is on disk after each check."""
    from base import PATIENCE
    from checks import CHECKS

    until = time.monotonic() + budget_s
    for name, (limit_s, _) in CHECKS.items():
        timeout_s = limit_s * PATIENCE
        if names and not name.startswith(tuple(names)):
            continue
        left_s = until - time.monotonic()
        if left_s < LEAST_S:
            result = {"name": name, "verdict": "unreached", "why": f"{budget_s:.0f} s were over"}
        else:
            result = run_one(name, min(timeout_s, left_s), out)
            if result["verdict"] == "failed" and left_s < timeout_s and "not done after" in result["why"]:
                result |= {"verdict": "unreached", "why": f"{budget_s:.0f} s were over while it ran"}
        report["checks"].append(result)
        show(result)
        (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def status_of(verdicts: list[str]) -> int:
    """See the head of this file."""
    if not verdicts:
        return 2
    return 1 if "failed" in verdicts else 3 if "unreached" in verdicts else 0


def main() -> int:
    """Run the checks that were asked for and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="checks to run, by the beginning of their names; all when none")
    parser.add_argument("--out", type=Path, default=Path("gpu-out"))
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="for all checks together (%(default)s)")
    parser.add_argument("--emulate", metavar="SPEC", help="on an emulated GPU such as h100: tries the checks")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    prepare_paths(asked.emulate)
    if asked.only:
        return run_here(asked.only)
    report: dict = {"machine": machine(asked.emulate), "checks": []}
    if not report["machine"]["gpu"]:
        print("SKIPPED: no NVIDIA GPU answers here, so nothing of tests/gpu was checked", flush=True)
        return 2
    if why := what_is_missing():
        print(f"SKIPPED: {why}", flush=True)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    os.environ["ALIQUOT_GPU_OUT"] = str(asked.out)
    print(json.dumps(report["machine"]), flush=True)
    build()
    run_all(asked.names, asked.out, asked.budget_s, report)
    verdicts = [result["verdict"] for result in report["checks"]]
    counts = (f"{verdicts.count(word)} {word}" for word in ("passed", "failed", "skipped", "unreached"))
    print(" ".join(counts), flush=True)
    return status_of(verdicts)


if __name__ == "__main__":
    raise SystemExit(main())

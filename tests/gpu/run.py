"""What only a real GPU can prove: `python3 tests/gpu/run.py --out DIR [NAME...]`.

For a machine with an NVIDIA driver and, for all of it, PyTorch, CuPy, Triton, numba and cuda-bindings. Run it from a
checkout with the Python that has them; msgspec and structlog may come by PYTHONPATH. The native parts are built into
build/gpu with gcc and cmake where they are not there yet.

Every check runs in a process of its own and within its own time; what a machine lacks is skipped and said. The report
is printed and written to DIR/report.json with date, GPU and driver. Exit status: 0 when no check failed, 1 when one
did, 2 when there is nothing to run on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "gpu"
WHOLE_RUN_S = 520


def prepare_paths() -> None:
    """The checkout's package and native parts, for this process and all it starts."""
    for path in (ROOT / "src", HERE):
        sys.path.insert(0, str(path))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *([inherited] if inherited else [])])
    os.environ.setdefault("ALIQUOT_NATIVE_DIR", str(BUILD / "native"))


def build() -> None:
    """Compile hook and bench programs unless they are there."""
    native = Path(os.environ["ALIQUOT_NATIVE_DIR"])
    if (native / "libaliquot.so").exists() and (native / "bench" / "aliquot-bench-driver").exists():
        return
    subprocess.run(["cmake", "-S", ROOT, "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", BUILD, "-j", str(os.cpu_count() or 2)], check=True, stdout=sys.stderr)


def machine() -> dict[str, str]:
    """What this ran on."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip()
    except FileNotFoundError:
        gpu = ""
    name, driver, memory = ([part.strip() for part in gpu.splitlines()[0].split(",")] if gpu else ["", "", ""])[:3]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": name,
        "driver": driver,
        "memory": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


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


def main() -> int:
    """Run the checks that were asked for, in the order of checks.py, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="checks to run, by the beginning of their names; all when none")
    parser.add_argument("--out", type=Path, default=Path("gpu-out"))
    parser.add_argument("--only", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    prepare_paths()
    if asked.only:
        return run_here(asked.only)
    from checks import CHECKS

    asked.out.mkdir(parents=True, exist_ok=True)
    os.environ["ALIQUOT_GPU_OUT"] = str(asked.out)
    report: dict = {"machine": machine(), "checks": []}
    if not report["machine"]["gpu"]:
        print("SKIPPED: no NVIDIA GPU answers here, so nothing of tests/gpu was checked", flush=True)
        return 2
    print(json.dumps(report["machine"]), flush=True)
    build()
    until = time.monotonic() + WHOLE_RUN_S
    for name, (timeout_s, _) in CHECKS.items():
        if asked.names and not name.startswith(tuple(asked.names)):
            continue
        left_s = until - time.monotonic()
        if left_s < 5:
            result = {"name": name, "verdict": "skipped", "why": "the whole run's time was over"}
        else:
            result = run_one(name, min(timeout_s, left_s), asked.out)
        report["checks"].append(result)
        shown = result.get("figures") or {key: result[key] for key in ("why", "log") if key in result}
        print(f"{result['verdict'].upper():8} {name:28} {json.dumps(shown)}", flush=True)
        (asked.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    verdicts = [result["verdict"] for result in report["checks"]]
    print(" ".join(f"{verdicts.count(word)} {word}" for word in ("passed", "failed", "skipped")), flush=True)
    return 1 if "failed" in verdicts else 0


if __name__ == "__main__":
    raise SystemExit(main())

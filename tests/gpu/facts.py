"""What this machine's driver answers where Aliquot relies on it, beside what the emulated driver answers.

`programs/facts.c` asks; `assumed.json` has the emulated driver's answers, as it is and with `strict=0`. A difference is
flagged and is not a failure: it says where the emulated driver is to be made better, and which tests prove less than
they seem to.

    python3 tests/gpu/facts.py --assume     writes assumed.json anew, on the emulated driver
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ASSUMED = HERE / "assumed.json"
MODES = ("emulated", "lenient")
# How often a group runs: a process that leaves while the driver works is right nearly always even where it is not safe.
TIMES = {"leaving": 20}
GROUP_S = 30.0
NONE = "-"


class Fact(NamedTuple):
    """One question: this driver's answer, and the emulated one's as it is and lenient; `-` where there is none."""

    group: str
    question: str
    answer: str
    emulated: str
    lenient: str

    @property
    def differs(self) -> bool:
        """Whether the emulated driver answers otherwise; a measurement, which begins with ~, never does."""
        return self.answer != self.emulated and not self.answer.startswith("~")


def compiled(folder: Path) -> Path:
    """The program, built where it has room."""
    program = folder / "facts"
    source = HERE / "programs" / "facts.c"
    subprocess.run(["cc", "-O2", "-w", "-pthread", "-o", program, source, "-ldl"], check=True)
    return program


def ask(program: Path, environment: dict[str, str]) -> dict[str, dict[str, str]]:
    """Group -> question -> answer; what ended badly is an answer too."""
    groups = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    return {group: _group(program, group, environment) for group in groups}


def _group(program: Path, group: str, environment: dict[str, str]) -> dict[str, str]:
    answers: dict[str, str] = {}
    ends: list[str] = []
    for _ in range(TIMES.get(group, 1)):
        try:
            done = subprocess.run(
                [program, group], capture_output=True, text=True, timeout=GROUP_S, env=environment, check=False
            )
        except subprocess.TimeoutExpired as late:
            printed = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
            answers |= dict(line.split("\t", 1) for line in printed.splitlines() if "\t" in line)
            ends.append(f"not done after {GROUP_S:.0f} s")
            break
        answers |= dict(line.split("\t", 1) for line in done.stdout.splitlines())
        if done.returncode:
            ends.append(_end(done.returncode, done.stderr))
    if ends:
        answers[f"the end of {group}"] = f"{len(ends)} of {TIMES.get(group, 1)}: {ends[-1]}"
    return answers


def _end(status: int, stderr: str) -> str:
    reason = stderr.strip().splitlines()[-1:] or [""]
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status} {reason[0]}".strip()


def table(seen: dict[str, dict[str, str]]) -> list[Fact]:
    """Every question that this driver or the emulated one answered."""
    assumed = json.loads(ASSUMED.read_text())
    facts = []
    for group, answers in seen.items():
        columns = [answers, *(assumed[mode].get(group, {}) for mode in MODES)]
        for question in dict.fromkeys(question for column in columns for question in column):
            facts.append(Fact(group, question, *(column.get(question, NONE) for column in columns)))
    return facts


def as_text(facts: list[Fact]) -> str:
    """The table for people; a row that begins with ! differs."""
    lines = [f"  {'question':<86} {'this driver':<44} {'emulated':<34} strict=0"]
    for group in dict.fromkeys(fact.group for fact in facts):
        lines.append(f"{group}:")
        for fact in facts:
            if fact.group == group:
                mark = "!" if fact.differs else " "
                lines.append(
                    f"{mark} {fact.question:<86} {fact.answer:<44} {fact.emulated:<34} {fact.lenient}".rstrip()
                )
    return "\n".join(lines)


def emulated(spec: str, folder: Path, mode: str) -> dict[str, str]:
    """The environment in which a program finds an emulated driver."""
    from aliquot.driver.emulation import prepare

    machine = prepare(folder, spec, extra=(f"strict={int(mode == 'emulated')}",))
    return os.environ | {"LD_LIBRARY_PATH": str(machine.directory)}


def assume() -> None:
    """Write the emulated driver's answers to assumed.json, without what it only measures."""
    answers = {}
    with tempfile.TemporaryDirectory(prefix="aliquot-facts-") as folder:
        program = compiled(Path(folder))
        for mode in MODES:
            environment = emulated("h200", Path(folder) / mode, mode)
            answers[mode] = steady(ask(program, environment))
    ASSUMED.write_text(json.dumps(answers, indent=1) + "\n")


def steady(answers: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Without what differs from run to run."""
    return {
        group: {question: text for question, text in rows.items() if not text.startswith("~")}
        for group, rows in answers.items()
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["--assume"]:
        sys.exit(__doc__)
    assume()

"""The room in which a page's commands are typed: a folder, a runtime directory, the emulated driver.

What a page says for your GPU is done on emulated ones: `aliquot up`, `aliquot run` and `aliquot share create` get
`--emulate` where they name no profile: two H100 for `up`, else one. An engine that a page starts serves the rest of it.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
import dockube
from docpages import ROOT, Block, Step

from aliquot.cli.kubectl import cli as kubectl_cli
from aliquot.cli.main import cli as aliquot_cli

COMMAND_LIMIT_S = 90.0
SLOW_LIMIT_S = 1200.0
READY_LIMIT_S = 60.0
SHARED = ("examples", "deploy", "tests", "bench", "pyproject.toml")
PROFILES = {"up": "h100x2", "run": "h100", "share create": "h100"}
NO_PROFILE = re.compile(r"\baliquot (up|run|share create)\b(?![^&;|]*--emulate)")
NO_PORT = re.compile(r"\baliquot up\b(?![^&;|]*--port)")
NEEDS_A_NETWORK = re.compile(r"^(pip|uv|git|apt-get|docker|ssh|nvidia-smi)\b")
OUR_PORT = re.compile(r"127\.0\.0\.1:8765")
NUMBERS = re.compile(r"\d+(?:[.,:]\d+)*")
SAME = ((re.compile(r"GPU-[0-9a-f-]+"), "GPU-#"), (re.compile(r"[█░│▏▎▍▌▋▊▉]+"), "▒"))


class Complaint(AssertionError):
    """A command that does not do what its page says."""


class Room:
    """A folder with everything that pages take for granted; `counts` says how each command was looked at.

    `slow` runs what takes long as well. `only_read` runs nothing and checks the options: for pages of which each
    command stands for itself, in no order.
    """

    def __init__(self, counts: Counter[str], *, slow: bool = False, only_read: bool = False) -> None:
        self.counts, self.slow, self.only_read = counts, slow, only_read
        self.home = Path(tempfile.mkdtemp(prefix="docs-"))
        self.folder = self.home / "work"
        self.folder.mkdir()
        for name in SHARED:
            (self.folder / name).symlink_to(ROOT / name)
        self._shims()
        self.environment = self._environment()
        self._engine: subprocess.Popen[str] | None = None
        self._dashboard = "127.0.0.1:8765"
        # Ends the page's engine with this process, also where a signal or a time-out ends that without a word.
        end = 'read -r _; cd "$0/run" && test -S engine.sock && aliquot down; flock . true; rm -rf "$0"'
        self._end = subprocess.Popen(
            ["sh", "-c", end, str(self.home)], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def _shims(self) -> None:
        for place in (self.home / "bin", self.folder / ".venv" / "bin"):
            place.mkdir(parents=True)
            for name, module in (("aliquot", "aliquot.cli"), ("kubectl-aliquot", "aliquot.cli.kubectl")):
                (place / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
                (place / name).chmod(0o755)
            for name in ("python", "python3"):
                (place / name).symlink_to(sys.executable)

    def _environment(self) -> dict[str, str]:
        sources = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
        kept = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "PYTHONHOME")}
        return kept | {
            "PYTHONPATH": sources, "PATH": f"{self.home}/bin:{os.environ['PATH']}", "HOME": str(self.home),
            "ALIQUOT_RUNTIME_DIR": str(self.home / "run"), "ALIQUOT_STATE_DIR": str(self.home / "state"),
            "NO_COLOR": "1", "COLUMNS": "120", "LC_ALL": "C.UTF-8",
            "ALIQUOT_NATIVE_DIR": os.environ.get("ALIQUOT_NATIVE_DIR", ""),
        }  # fmt: skip

    def close(self) -> None:
        """End the engine, if the page started one, and leave nothing."""
        self._end.communicate(timeout=60)
        if self._engine is not None:
            self._engine.wait(30)

    def keep(self, block: Block) -> None:
        """Save a block under its name."""
        (self.folder / block.file).write_text(block.text)

    def program(self, block: Block) -> None:
        """Run a Python program that has no name of its own."""
        if block.file:
            self.keep(block)
            return
        self.counts["run"] += 1
        self._expect_zero(block.place, "python", [sys.executable, "-c", block.text], COMMAND_LIMIT_S)

    def commands(self, block: Block) -> None:
        """Do what a block says, command by command."""
        for step in block.steps:
            place = f"{block.page}:{step.line}: {step.command}"
            first = shlex.split(step.command, comments=True)[0]
            if self.only_read:
                self.counts["of the reference, options checked"] += 1
                understand(place, step.command)
            elif first in ("kubectl", "helm"):
                self.ask_kube(place, block, step)
            elif first == "make":
                self.counts["make, printed and not done"] += 1
                self._expect_zero(
                    place, "make -n", ["make", "-n", "-C", str(ROOT), *shlex.split(step.command, comments=True)[1:]], 30
                )
            elif block.takes_long(step) and not self.slow:
                self.counts["too slow for every run, options checked"] += 1
                understand(place, step.command)
            elif NEEDS_A_NETWORK.match(first):
                raise Complaint(f"{place}: {first} cannot be run here; say above the block why nobody runs it")
            else:
                self.counts["run"] += 1
                self.type(place, block, step)

    def ask_kube(self, place: str, block: Block, step: Step) -> None:
        """kubectl and helm are read, not obeyed: there is no cluster in this room."""
        words = shlex.split(step.command, comments=True)
        if words[:2] == ["kubectl", "aliquot"]:
            self.counts["kubectl and helm, read without a cluster"] += 1
            understand(place, step.command)
        elif not dockube.find(words[0]):
            self.counts[f"not looked at: no {words[0]} here (make cluster ARGS=--prepare)"] += 1
        else:
            self.counts["kubectl and helm, read without a cluster"] += 1
            if said := dockube.complaint(step.command, self.folder):
                raise Complaint(f"{place}\n{said}")

    def type(self, place: str, block: Block, step: Step) -> None:
        """Do one command and compare."""
        command = self._for_this_machine(step.command)
        if re.match(r"(\.venv/bin/)?aliquot up\b", command):
            self._up(place, command)
            return
        limit_s = SLOW_LIMIT_S if block.takes_long(step) else COMMAND_LIMIT_S
        status, printed = self._bash(place, command, limit_s)
        if (status != 0) != ("fails" in block.words and step is block.steps[-1]):
            raise Complaint(f"{place}\nended with {status}:\n{printed}")
        if step.printed is not None and not alike(step.printed, printed, exact="exact" in block.words):
            raise Complaint(f"{place}\nthe page says:\n{step.printed}\n\nprinted was:\n{printed}")

    def _for_this_machine(self, command: str) -> str:
        """The same on emulated GPUs, and at the port that was free."""
        command = NO_PORT.sub(r"\g<0> --port 0", OUR_PORT.sub(self._dashboard, command))
        if self._engine is None:
            command = NO_PROFILE.sub(lambda found: f"{found[0]} --emulate {PROFILES[found[1]]}", command)
        return command

    def _up(self, place: str, command: str) -> None:
        """`aliquot up` stays for the rest of the page; a page starts one engine."""
        if self._engine is not None:
            raise Complaint(f"{place}: this page has started an engine before")
        log = (self.home / "engine.log").open("w+")
        self._engine = subprocess.Popen(
            shlex.split(command), cwd=self.folder, env=self.environment, stdout=log, stderr=log, text=True
        )
        until_s = time.monotonic() + READY_LIMIT_S
        while "\nready at " not in (said := (self.home / "engine.log").read_text()):
            if self._engine.poll() is not None or time.monotonic() > until_s:
                raise Complaint(f"{place}\nthe engine is not ready:\n{said}")
            time.sleep(0.05)
        if found := re.search(r"dashboard at http://(\S+?)/?\s", said):
            self._dashboard = found[1]

    def _expect_zero(self, place: str, what: str, argv: list[str], limit_s: float) -> None:
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=limit_s
        )
        if done.returncode:
            raise Complaint(f"{place}\n{what} ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def _bash(self, place: str, command: str, limit_s: float) -> tuple[int, str]:
        """Status and everything printed; who takes too long is ended with all that it started."""
        process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", command], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            printed, _ = process.communicate(timeout=20)
            raise Complaint(f"{place}\nwas not done within {limit_s:.0f} s:\n{printed}") from None
        return process.returncode, printed


def understand(place: str, command: str) -> None:
    """Every option of one of our commands exists and takes the value shown; nothing is run."""
    words = shlex.split(command, comments=True)
    group: click.Command = kubectl_cli if words[:2] == ["kubectl", "aliquot"] else aliquot_cli
    if Path(words[0]).name not in ("aliquot", "kubectl"):
        raise Complaint(f"{place}: only our own commands may be slow")
    rest = words[2:] if group is kubectl_cli else words[1:]
    try:
        while isinstance(group, click.Group):
            if rest[:1] == ["--help"]:
                return
            found = group.get_command(click.Context(group), rest.pop(0))
            if found is None:
                raise Complaint(f"{place}: there is no such command")
            group = found
        group.make_context("docs", rest)
    except click.exceptions.Exit:
        pass  # --help
    except click.ClickException as error:
        raise Complaint(f"{place}: {error.format_message()}") from None
    except IndexError:
        raise Complaint(f"{place}: the command is not named to its end") from None


def alike(said: str, printed: str, *, exact: bool = False) -> bool:
    """Whether that is printed what the page says: blanks do not count, `...` is anything, numbers are any numbers."""
    said, printed = (_plain(text, exact) for text in (said, printed))
    pattern = ".*".join(re.escape(piece.strip()) for piece in said.split("..."))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def _plain(text: str, exact: bool) -> str:
    for pattern, sign in SAME:
        text = pattern.sub(sign, text)
    return " ".join((text if exact else NUMBERS.sub("#", text)).split())

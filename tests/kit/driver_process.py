"""A process of its own that makes the calls of a test, by `driver_calls`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .driver_calls import AS_DESCRIPTOR, Answer, Argument, Driver, DriverError, Out, from_json, to_json


class DriverProcess(Driver):
    """Calls made by a process that the test starts. `on` names another thread of it, whose calls run beside these."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kit.driver_calls"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        self._answers: dict[int, Any] = {}
        self._asked = 0
        self._unread = b""
        self.thread = ""

    def call(self, name: str, *arguments: Argument) -> Answer:
        return self.begin(name, *arguments).answer()

    def begin(self, name: str, *arguments: Argument) -> Pending:
        """Make a call and go on; its answer is waited for later."""
        return self.start("call", name, *arguments)

    def start(self, operation: str, *arguments: Any) -> Pending:
        """Begin an operation and go on."""
        return Pending(self, self._ask(operation, *arguments))

    def do(self, operation: str, *arguments: Any) -> Any:
        """One operation of the process's own driver, by name, in one line."""
        answer = self._wait(self._ask(operation, *arguments))
        return Answer(answer[0], tuple(answer[1])) if operation in ("allocate", "create", "take") else answer

    def on(self, thread: str) -> OtherThread:
        """Another thread of the process, which has no context yet."""
        return OtherThread(self, thread)

    def host_bytes(self, size: int) -> int:
        return int(self.do("host_bytes", size))

    def long(self, name: str, *arguments: Argument) -> int:
        return int(self.do("long", name, *arguments))

    def read(self, address: int, size: int) -> bytes:
        return bytes(self.do("read", address, size))

    def write(self, address: int, data: bytes) -> None:
        self.do("write", address, data)

    def forked(self, name: str, *arguments: Argument) -> int:
        """What a call answers in a child of the process."""
        return int(self.do("forked", name, *arguments))

    def posix(self, name: str, *arguments: Any) -> Any:
        """A function of `os`, called there."""
        return self.do("posix", name, *arguments)

    def imported(self, exporter: DriverProcess, descriptor: int) -> Answer:
        """Import the memory that a descriptor of another process shows; neither has the descriptor after that."""
        taken = self.posix("open", f"/proc/{exporter.process.pid}/fd/{descriptor}", os.O_RDWR)
        exporter.posix("close", descriptor)
        answer = self.call("cuMemImportFromShareableHandle", Out(), taken, AS_DESCRIPTOR)
        self.posix("close", taken)
        return answer

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        """Let the process end; its status and what it said on stderr."""
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors.decode()

    def _ask(self, operation: str, *arguments: Any) -> int:
        self._asked += 1
        line = {"id": self._asked, "on": self.thread, "do": operation, "with": to_json(arguments)}
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(line).encode() + b"\n")
            self.process.stdin.flush()
        return self._asked

    def _wait(self, number: int, timeout_s: float = 60.0) -> Any:
        assert self.process.stdout is not None
        until = time.monotonic() + timeout_s
        while number not in self._answers:
            if not select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise DriverError(f"no answer within {timeout_s} s")
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise ProcessEnded(*self.end())
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                said = json.loads(line)
                self._answers[said["id"]] = said
        said = self._answers.pop(number)
        if "error" in said:
            raise DriverError(said["error"])
        return from_json(said["answer"])


class ProcessEnded(AssertionError):
    """The process ended before it answered."""

    def __init__(self, status: int, errors: str) -> None:
        super().__init__(f"the process ended with {status}: {errors}")
        self.status, self.errors = status, errors


class OtherThread(DriverProcess):
    """A thread of such a process."""

    def __init__(self, process: DriverProcess, thread: str) -> None:
        Driver.__init__(self)
        self._of, self.thread = process, thread

    def _ask(self, operation: str, *arguments: Any) -> int:
        before, self._of.thread = self._of.thread, self.thread
        try:
            return self._of._ask(operation, *arguments)
        finally:
            self._of.thread = before

    def _wait(self, number: int, timeout_s: float = 60.0) -> Any:
        return self._of._wait(number, timeout_s)


@dataclass
class Pending:
    """An operation that was begun."""

    driver: DriverProcess
    number: int

    def answer(self, timeout_s: float = 60.0) -> Answer:
        """Wait for what the call answers."""
        code, values = self.result(timeout_s)
        return Answer(code, tuple(values))

    def result(self, timeout_s: float = 60.0) -> Any:
        """Wait for what the operation returns."""
        return self.driver._wait(self.number, timeout_s)

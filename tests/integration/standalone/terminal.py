"""A program in a terminal of its own: a pseudo-terminal and just enough of a screen to know what a person sees."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

ROWS, COLUMNS = 30, 110
_STEP = re.compile(r"\x1b\[([?>]?)([0-9;]*)([A-Za-z])|\x1b[=>78()][0AB]?|\r|\n|\x07|[^\x1b\r\n\x07]+", re.S)


class Screen:
    """What the characters so far have left on the screen; an unknown control sequence is kept in `strange`."""

    def __init__(self) -> None:
        self.lines = [""] * ROWS
        self.row = self.column = 0
        self.cursor_shown = True
        self.alternate = False
        self.widest = 0
        self.strange: list[str] = []

    def feed(self, text: str) -> None:
        """Carry out what a terminal would."""
        for step in _STEP.finditer(text):
            if step[3]:
                self._control(step[1], [int(n or 0) for n in step[2].split(";")], step[3])
            elif step[0] == "\r":
                self.column = 0
            elif step[0] == "\n":
                self._down()
            elif step[0][0] not in "\x1b\x07":
                self._write(step[0])

    def text(self) -> str:
        """The screen, without the empty end of lines."""
        return "\n".join(line.rstrip() for line in self.lines)

    def _write(self, text: str) -> None:
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text) :]
        self.column += len(text)
        self.widest = max(self.widest, self.column)

    def _down(self) -> None:
        self.row += 1
        if self.row == ROWS:
            self.lines = [*self.lines[1:], ""]
            self.row -= 1

    def _control(self, mark: str, numbers: list[int], letter: str) -> None:
        number = max(1, numbers[0])
        if letter == "A":
            self.row = max(0, self.row - number)
        elif letter == "K":
            self.lines[self.row] = "" if numbers[0] == 2 else self.lines[self.row][: self.column]
        elif letter == "H":
            self.row, self.column = number - 1, (max(1, numbers[1]) if len(numbers) > 1 else 1) - 1
        elif letter == "J":
            self.lines = [""] * ROWS
        elif letter in "hl" and mark == "?":
            self._mode(numbers[0], on=letter == "h")
        elif letter != "m":
            self.strange.append(f"{mark}{numbers}{letter}")

    def _mode(self, number: int, *, on: bool) -> None:
        if number == 25:
            self.cursor_shown = on
        elif number == 1049:
            self.alternate = on
            self.lines = [""] * ROWS


class Terminal:
    """A running program whose controlling terminal is ours; `screen` follows what it writes."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], columns: int = COLUMNS) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("4H", ROWS, columns, 0, 0))
        self.settings = termios.tcgetattr(self._slave)
        self.screen = Screen()
        self._rest = b""
        self.process = subprocess.Popen(
            argv,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def watch(self, seen: Callable[[Screen], bool], timeout_s: float) -> None:
        """Follow the screen until something is seen on it."""
        end_s = time.monotonic() + timeout_s
        while not seen(self.screen):
            assert time.monotonic() < end_s, f"not seen in {timeout_s} s:\n{self.screen.text()}"
            assert self.process.poll() is None, self.screen.text()
            self._follow(0.1)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait(self, timeout_s: float) -> int:
        """The exit status, once it has ended and said its last."""
        end_s = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < end_s, f"still there after {timeout_s} s:\n{self.screen.text()}"
            self._follow(0.05)
        while self._follow(0.05):
            pass
        return self.process.returncode

    @property
    def settings_now(self) -> list[object]:
        """The terminal's settings as they are left."""
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        """End what still runs and give the terminal back."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def _follow(self, wait_s: float) -> bool:
        if not select.select([self._master], [], [], wait_s)[0]:
            return False
        data = self._rest + os.read(self._master, 65536)
        whole = data.decode("utf-8", errors="ignore")
        self._rest = data[len(whole.encode()) :]
        self.screen.feed(whole)
        return True

"""A terminal as people have it: one window of a tmux server of its own."""

from __future__ import annotations

import os
import re
import subprocess
import time
import uuid


class Terminal:
    """What runs in it is ended with `close`."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._server = f"alq-{uuid.uuid4().hex[:8]}"

    def __call__(self, *words: str) -> str:
        """A tmux command."""
        command = ["tmux", "-L", self._server, "-f", os.devnull, *words]
        return subprocess.run(command, env=self._env, capture_output=True, text=True, check=False).stdout

    def start(self, *words: str, size: tuple[int, int] = (140, 40)) -> None:
        """Run a program in the window, which stays when it ends."""
        width, height = (str(number) for number in size)
        self("new-session", "-d", "-x", width, "-y", height, *words, ";", "set", "remain-on-exit", "on")

    def keys(self, *keys: str) -> None:
        """Press keys."""
        self("send-keys", *keys)

    def wait(self, pattern: str, timeout_s: float = 40.0) -> str:
        """The window once it shows something."""
        until_s = time.monotonic() + timeout_s
        while re.search(pattern, shown := self("capture-pane", "-p"), re.M) is None:
            assert time.monotonic() < until_s, f"the screen does not show {pattern}:\n{shown}"
            time.sleep(0.1)
        return shown

    def close(self) -> None:
        """End it with what runs in it."""
        self("kill-server")

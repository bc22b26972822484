"""A terminal as people have it: one window of a tmux server of its own."""

import os
import re
import subprocess
import time
import uuid

# tmux's own word for the end of a program does not always come: it may miss that a child has ended.
_SHELL = ("sh", "-c", 'trap : INT; "$@"; echo "ended with status $?"; exec sleep 1000', "sh")


class Tmux:
    """What runs in it is ended with `close`."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._server = f"alq-{uuid.uuid4().hex[:8]}"

    def __call__(self, *words: str) -> str:
        command = ["tmux", "-L", self._server, "-f", os.devnull, *words]
        return subprocess.run(command, env=self._env, capture_output=True, text=True, check=False).stdout

    def start(self, *words: str, size: tuple[int, int] = (140, 40), **env: str) -> None:
        """Run a program in the window; when it ends, its status is shown there (`ended`)."""
        width, height = (str(number) for number in size)
        settings = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        self("new-session", "-d", "-x", width, "-y", height, *settings, *_SHELL, *words)

    def keys(self, *keys: str) -> None:
        self("send-keys", *keys)

    def screen(self, *, colours: bool = False) -> str:
        """What the window shows."""
        return self("capture-pane", "-p", *(["-e"] if colours else []))

    def wait(self, *patterns: str, timeout_s: float = 40.0) -> str:
        """The window once it shows all of something at once: a look may fall in the middle of a frame."""
        until_s = time.monotonic() + timeout_s
        while True:
            shown = self.screen()
            missing = [pattern for pattern in patterns if re.search(pattern, shown, re.M) is None]
            if not missing:
                return shown
            assert time.monotonic() < until_s, f"the screen does not show {missing}:\n{shown}"
            time.sleep(0.1)

    def ended(self) -> int:
        """The exit status of the program, once it has one."""
        found = re.search(r"ended with status (\d+)", self.wait(r"ended with status \d+"))
        assert found is not None
        return int(found[1])

    def close(self) -> None:
        """End it with what runs in it."""
        self("kill-server")

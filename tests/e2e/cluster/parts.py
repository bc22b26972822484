"""A program of the cluster: started, known to be ready, ended, killed, restarted."""

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from .namespaces import Inside, Namespaces

T = TypeVar("T")
POLL_S = 0.05
READY_S = 60.0
MAX_OF_A_LINE = 300


def until(look: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """Looks again and again until the answer is true, and returns it. What cannot be seen yet may raise OSError.

    Raises:
        TimeoutError: it did not come; the text names `what` and the last answer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            if last := look():
                return last  # type: ignore[return-value]
        except OSError as error:
            last = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s, last seen: {last!r}")
        time.sleep(POLL_S)


class Part:
    """One program with its command line (asked anew at every start), its log and the sign that it is ready."""

    def __init__(
        self,
        name: str,
        rooms: Namespaces,
        command: Callable[[], list[str]],
        ready: Callable[[], bool],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log: Path = rooms.state / "logs" / f"{name}.log"
        self._rooms = rooms
        self._command = command
        self._ready = ready
        self._environment = environment
        self._process: Inside | None = None

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process, as the machine counts them; 0 when it does not run."""
        return self._process.pid if self._process and self.running else 0

    def launch(self) -> None:
        """Starts it and does not wait; nothing happens when it runs."""
        if self.running:
            return
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = self._rooms.popen(self._command(), environment=self._environment, output=log)

    def start(self) -> None:
        """Starts it and waits until it is ready.

        Raises:
            RuntimeError: it ended, or was not ready in time; the text has the end of its log.
        """
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Waits until it is ready; raises like `start`."""

        def look() -> bool:
            if not self.running:
                raise RuntimeError(f"{self.name} ended at its start; its log ends:\n{self.tail()}")
            return self._ready()

        try:
            until(look, self.name, READY_S)
        except TimeoutError as error:
            raise RuntimeError(f"{error}; its log ends:\n{self.tail()}") from None

    def stop(self) -> None:
        """Ends it with TERM, and KILL if it does not listen."""
        if self._process:
            self._process.end()
        self._process = None

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self._process:
            self._process.send(signal.SIGKILL)
            self._process.wait(READY_S)
        self._process = None

    def pause(self) -> None:
        """Lets it hang: alive, and answering nothing."""
        if self._process:
            self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Ends a `pause`."""
        if self._process:
            self._process.send(signal.SIGCONT)

    def restart(self) -> None:
        """`stop`, then `start`."""
        self.stop()
        self.start()

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else "(no log)"
        return "\n".join(line[:MAX_OF_A_LINE] for line in text.splitlines()[-lines:])

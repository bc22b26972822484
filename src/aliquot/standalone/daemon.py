"""The engine that `aliquot run` starts if none is running: it starts with the first run and ends with the last.

Says on stdout, in one JSON line, that it is ready or why it is not, then closes stdout. If the run that started it has
ended in the meantime, as by Ctrl-C, it ends too, unless another run has a lease by then.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from aliquot.driver.gpu_lock import GpuTaken
from aliquot.model.errors import AliquotError
from aliquot.standalone.engine import Engine
from aliquot.standalone.paths import EngineLock, RuntimeDir
from aliquot.standalone.pods import Pods
from aliquot.standalone.server import EngineServer
from aliquot.standalone.shares import Shares
from aliquot.standalone.wire import AnyAnswer, EngineRefusal, Ready, encode_answer

FIRST_CALLER_S: Final = 20.0
REST_EVERY_S: Final = 5.0
PREDECESSOR_S: Final = 15.0


def _say(answer: AnyAnswer) -> bool:
    """Answer the run that started this engine; returns whether it is still there."""
    try:
        os.write(1, encode_answer(answer))
    except BrokenPipeError:
        return False
    finally:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.close(devnull)
    return True


def main() -> int:
    """Serve until no tenant is left."""
    parser = argparse.ArgumentParser(prog="python -m aliquot.standalone.daemon")
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--state-dir", type=Path, default=None)
    parser.add_argument("--emulate", default=None)
    options = parser.parse_args()
    runtime = RuntimeDir(options.runtime_dir)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with EngineLock(runtime, wait_s=PREDECESSOR_S) as lock:
            if lock is None:  # another run was faster; its engine serves us too
                _say(Ready())
                return 0
            with Engine.start(options.emulate, runtime=runtime, state_dir=options.state_dir) as engine:
                idle = threading.Event()
                server = EngineServer(engine, Pods(engine), Shares(engine, idle.set), idle.set)
                try:
                    first_s = time.monotonic() + FIRST_CALLER_S
                    ended = not _say(Ready()) and server.close_if_idle()
                    while not ended:
                        ran_out = idle.wait(REST_EVERY_S)
                        idle.clear()
                        ended = (ran_out or time.monotonic() > first_s) and server.close_if_idle()
                        if not ended:
                            lock.watch_directory()
                            engine.rest()
                finally:
                    server.close()
    except AliquotError as error:
        of_machine = isinstance(error, GpuTaken) and error.of_machine
        _say(EngineRefusal(str(error), error.exit_code, of_machine))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

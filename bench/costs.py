"""What a running program has taken of the machine, by its process id."""

from __future__ import annotations

import os
import re
from pathlib import Path


def cpu_s(pid: int) -> float:
    """CPU seconds so far, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    """What it has in memory (resident, with what it shares)."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024

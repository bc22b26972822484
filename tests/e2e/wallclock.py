"""A program's own date and time, which a test sets while the program runs; its other clocks are the machine's."""

import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_s;

__attribute__((constructor)) static void look(void)
{
    int file = open(getenv("WALLCLOCK"), O_RDONLY | O_CLOEXEC);
    ahead_s = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    if (ahead_s == MAP_FAILED)
        _exit(97);
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && ahead_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed && now && ahead_s)
        now->tv_sec += *ahead_s;
    return failed;
}

time_t time(time_t *kept)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept)
        *kept = now.tv_sec;
    return now.tv_sec;
}
"""


class WallClock:
    """`environment` is for the program whose clock it is."""

    def __init__(self, folder: Path) -> None:
        source, library = folder / "wallclock.c", folder / "wallclock.so"
        source.write_text(SOURCE)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self._ahead = folder / "wallclock"
        self.set(0)
        self.environment = {"LD_PRELOAD": str(library), "WALLCLOCK": str(self._ahead)}

    def set(self, ahead_s: int) -> None:
        """Let it be so many seconds later than it is, from now on; earlier if negative."""
        if not self._ahead.exists():
            self._ahead.write_bytes(bytes(8))
        with self._ahead.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", ahead_s))

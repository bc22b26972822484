"""The driver's end: at exit in strict mode, and a process that stands still."""

import os
import signal
import subprocess
import time
from pathlib import Path

from kit.compiling import compile_c

EXIT = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int (*query)(void *), (*sync_)(void *);
static void *stream;
static void *ask(void *x) { for (;;) query(stream); return x; }
static void *wait_(void *x) { sync_(stream); return x; }
__attribute__((destructor)) static void late(void) 
{
    printf("destructor %d\n", query(stream));
    fflush(stdout);
    usleep(20000);
}
static void handler(void) { printf("handler %d\n", query(stream)); }
int main(void)
{
    unsigned long ns = 1000000;
    int dev;
    void *c, *m, *f, *p[] = {&ns}, *l = dlopen("libcuda.so.1", RTLD_NOW);
    pthread_t t;
#define F(n) ((int (*)())dlsym(l, #n))
    if (F(cuInit)(0) || F(cuDeviceGet)(&dev, 0) || F(cuDevicePrimaryCtxRetain)(&c, dev) || F(cuCtxSetCurrent)(c))
        return 1;
    query = F(cuStreamQuery); sync_ = F(cuStreamSynchronize);
    if (F(cuModuleLoadData)(&m, ".visible .entry spin_ns(.param .u64 ns){ret;}") ||
        F(cuModuleGetFunction)(&f, m, "spin_ns") || F(cuStreamCreate)(&stream, 1))
        return 2;
    for (int i = 0; i < 200; i++) F(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, stream, p, NULL);
    atexit(handler);
    pthread_create(&t, NULL, ask, NULL); pthread_create(&t, NULL, wait_, NULL);
    usleep(3000);
    return 0;
}
"""


def test_a_program_leaves_while_its_threads_are_in_the_driver(clients, tmp_path: Path):
    """Handlers registered later than cuInit still have a driver, destructors get CUDA_ERROR_DEINITIALIZED; status 0."""
    machine = clients("a100", "strict=1").machine
    (tmp_path / "leave.c").write_text(EXIT, "utf-8")
    program = compile_c(tmp_path / "leave", tmp_path / "leave.c")
    env = {**os.environ, "LD_LIBRARY_PATH": str(machine.directory)}

    for _ in range(20):
        done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=20, check=False)
        assert (0, "handler 600\ndestructor 4\n") == (done.returncode, done.stdout)


def test_a_stopped_process_loses_the_gpu_after_its_slice(clients):
    """Others go on beside a process that was stopped in the middle of a kernel, and so does it when it is continued."""
    machine = clients("a100")
    held = machine.start("open_gpu(); k = Spinner(); k.launch(3_000_000_000); answer(1); k.sync(); answer(2)")
    held.stdout.readline()
    time.sleep(0.1)
    held.send_signal(signal.SIGSTOP)
    done = machine.run("open_gpu(); k = Spinner()\nfor _ in range(3): k.launch(1_000_000); k.sync()\nanswer('done')")
    held.send_signal(signal.SIGCONT)

    assert ("done", 2) == (done, machine.answer(held))


def test_cancelled_threads_take_no_lock_along(clients, tmp_path: Path):
    """Threads that are cancelled while they launch, wait and allocate leave a driver that works for the others."""
    machine = clients("a100").machine
    program = compile_c(tmp_path / "cancelled", Path(__file__).with_name("cancelled.c"))
    env = {**os.environ, "LD_LIBRARY_PATH": str(machine.directory)}

    done = subprocess.run([program, "200"], env=env, capture_output=True, text=True, timeout=40, check=False)

    assert (0, "done\n") == (done.returncode, done.stdout)

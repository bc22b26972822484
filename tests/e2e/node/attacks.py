"""Runs in a container: tries one after the other what a program can do against its share, and tells what came of it.

Prints one line of JSON, attack -> outcome. With ctypes alone. `python3 attacks.py all FACTS` runs each attack in a
process of its own; FACTS is JSON, see `Facts`. A program that gets past Aliquot stays for a while under its attack's
name, so that the node's audit has time to find it.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HELD, BYPASSED, REFUSED = "held", "bypassed", "refused"
NO_RUN, NOBODY, NONE, OWN = "does not run", "reaches none", "finds none", "sees its own only"
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
STAYS_S = 4.0
PROCESSES = 6
PROT_WRITE = 2
WAYS = Path("/ways")


class Facts:
    """What the test tells: the share's memory, the other GPU's UUID, and two messages to the arbiter as hex."""

    def __init__(self, text):
        told = json.loads(text)
        self.limit_mib, self.other = told["limit_mib"], told["other"]
        self.hello, self.attach = bytes.fromhex(told["hello"]), bytes.fromhex(told["attach"])
        self.refused = told["refused"]
        conf = dict(line.partition("=")[::2] for line in _conf().read_text().splitlines())
        self.socket, self.driver = conf["socket"], Path(conf["libcuda"])


def _conf():
    """The tenant's file, by the folder that is mounted; a tenant may read it."""
    mounts = Path("/proc/self/mounts").read_text()
    return Path(re.search(r" (/\S+/tenants/\w+) ", mounts)[1]) / "tenant.conf"


def total_mib(cuda):
    """The device's memory as a driver tells it; 0 where it gives no context."""
    device, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    statuses = [cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0)]
    statuses.append(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    statuses.append(cuda.cuCtxSetCurrent(context))
    statuses.append(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return 0 if any(statuses) else total.value >> 20


def judged(seen, facts):
    """What a device's memory means: the share's, or more."""
    return HELD if seen == facts.limit_mib else REFUSED if seen == 0 else BYPASSED


# -- ways of opening the driver ---------------------------------------------------------------------------------------


def opens(facts, command, env=None):
    """A program of the table of ways; it prints the device's memory."""
    program = WAYS / command[0]
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, env=env, timeout=60)
    said = done.stdout.strip()
    return judged(int(said), facts) if said.isdigit() else NO_RUN


def opens_with_another_environment(facts):
    """Every variable that leads to the library or to the share is another."""
    wrong = {"LD_LIBRARY_PATH": "/nowhere", "ALIQUOT_TENANT": "a/b/c", "ALIQUOT_RUNTIME_DIR": "/tmp", "PATH": "/bin"}
    return opens(facts, ["ways", "plain"], wrong)


def opens_another_gpu(facts):
    """The GPU of others, by the variable that names GPUs."""
    os.environ["CUDA_VISIBLE_DEVICES"] = facts.other
    return judged(total_mib(ctypes.CDLL("libcuda.so.1")), facts)


def starts_many(facts):
    """Processes with a context each: together they have the share's memory and no more."""
    code = (
        "import ctypes, sys\n"
        "context, cuda = ctypes.c_void_p(), ctypes.CDLL('libcuda.so.1')\n"
        "cuda.cuInit(0)\n"
        "print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), flush=True)\n"
        "sys.stdin.readline()\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    answers = [child.stdout.readline().strip() for child in children]
    for child in children:
        child.communicate("\n")
    # Each context takes some hundred MiB: not all of them fit, and those that did were given out of the share.
    return HELD if set(answers) == {"0", "2"} else f"contexts: {answers}"


# -- tampering --------------------------------------------------------------------------------------------------------


def tampers(action):
    """Whether the system refuses it."""
    try:
        action()
    except OSError:
        return REFUSED
    return BYPASSED


def writes_library(facts):
    """Into the file that stands for the driver's."""
    return tampers(lambda: LIBRARY.open("r+b").write(b"x"))


def replaces_library(facts):
    """By another file in its place."""
    other = LIBRARY.with_name("other")
    other.write_bytes(facts.driver.read_bytes())
    return tampers(lambda: other.rename(LIBRARY))


def unmounts_library(facts):
    """So that what the image has there is seen again."""
    libc = ctypes.CDLL(None, use_errno=True)
    return REFUSED if libc.umount2(str(LIBRARY).encode(), 2) else BYPASSED


def writes_conf(facts):
    """Another socket, another driver."""
    return tampers(lambda: _conf().write_text("socket=/tmp/mine\n"))


def removes_socket(facts):
    """To put its own there."""
    return tampers(lambda: Path(facts.socket).unlink())


def writes_page(facts):
    """Opens the gate for itself: the grant page in its own memory."""
    total_mib(ctypes.CDLL("libcuda.so.1"))
    found = re.search(r"^(\w+)-(\w+) .*aliquot-grant", Path("/proc/self/maps").read_text(), re.MULTILINE)
    start, end = int(found[1], 16), int(found[2], 16)
    libc = ctypes.CDLL(None, use_errno=True)
    return REFUSED if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), PROT_WRITE) else BYPASSED


def asks_for_another_gpu(facts):
    """Of the arbiter itself, by a program that speaks its language."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(facts.socket)
        sock.send(facts.hello)
        sock.recv(256)
        sock.send(facts.attach)
        answer = sock.recv(256)
    return REFUSED if answer[0] == facts.refused else BYPASSED


def finds_admin(facts):
    """The sockets by which tenants are made."""
    folder = Path(facts.socket).parents[2]
    return NONE if not list(folder.glob("*.sock")) else BYPASSED


def kills_all(facts):
    """Everybody it can name; the test looks who lives."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    return NOBODY


def lists_processes(facts):
    """Of all tenants, by NVML."""
    total_mib(ctypes.CDLL("libcuda.so.1"))
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device, count, rows = ctypes.c_void_p(), ctypes.c_uint(64), (ctypes.c_uint64 * 512)()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    status = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows)
    pids = [rows[3 * row] & 0xFFFFFFFF for row in range(count.value)]
    return OWN if (status, pids) == (0, [os.getpid()]) else f"status {status}, processes {pids}"


# -- going past -------------------------------------------------------------------------------------------------------


def opens_drivers_file(facts):
    """The driver's own library, whose path stands in the tenant's file."""
    return stays(judged(total_mib(ctypes.CDLL(str(facts.driver))), facts))


def opens_a_copy(facts):
    """A library that it brought along."""
    folder = Path("/tmp/own")
    folder.mkdir()
    for file in facts.driver.parent.iterdir():
        if file.suffix == ".shm":
            (folder / file.name).symlink_to(file)  # the machine itself, as /dev/nvidia0 would be
        elif file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    return stays(judged(total_mib(ctypes.CDLL(str(folder / facts.driver.name))), facts))


def opens_both(facts):
    """Registers as it should, and then takes what it likes by the driver's own library in the same process.

    What it took that way is measured and charged, so afterwards it is given nothing more.
    """
    ours, theirs = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(str(facts.driver))
    pointer = ctypes.c_uint64()
    if judged(total_mib(ours), facts) != HELD:
        return "does not register"
    outcome = judged(total_mib(theirs), facts)
    taken = theirs.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 * facts.limit_mib << 20))
    stays(outcome)
    more = ours.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20))
    return outcome if (taken, more) == (0, 2) else f"{outcome}, took {taken}, more {more}"


def stays(outcome):
    """For as long as the audit needs."""
    time.sleep(STAYS_S)
    return outcome


ATTACKS = {
    "plain": lambda f: opens(f, ["ways", "plain"]),
    "thread": lambda f: opens(f, ["ways", "thread"]),
    "exec": lambda f: opens(f, ["ways", "exec"]),
    "deepbind": lambda f: opens(f, ["ways", "deepbind"]),
    "namespace": lambda f: opens(f, ["ways", "namespace"]),
    "no-env": lambda f: opens(f, ["ways", "plain"], {}),
    "other-env": opens_with_another_environment,
    "go": lambda f: opens(f, ["ways-go"]),
    "go-no-env": lambda f: opens(f, ["ways-go"], {}),
    "static": lambda f: opens(f, ["ways-static", "plain"]),
    "many": starts_many,
    "other-gpu": opens_another_gpu,
    "ask-gpu": asks_for_another_gpu,
    "write-lib": writes_library,
    "replace-lib": replaces_library,
    "unmount-lib": unmounts_library,
    "write-conf": writes_conf,
    "unlink-socket": removes_socket,
    "write-page": writes_page,
    "admin": finds_admin,
    "kill": kills_all,
    "list": lists_processes,
    "drivers-file": opens_drivers_file,
    "own-copy": opens_a_copy,
    "both": opens_both,
}


def main(words):
    """`all FACTS`, or `one NAME FACTS`."""
    if words[0] == "one":
        Path("/proc/self/comm").write_text(words[1])
        print(ATTACKS[words[1]](Facts(words[2])))
        return
    seen = {}
    for name in ATTACKS:
        if name.startswith("go") and not (WAYS / "ways-go").exists():
            continue
        command = [sys.executable, __file__, "one", name, words[1]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        seen[name] = done.stdout.strip() or f"failed: {done.stderr.strip()[-300:]}"
    print(json.dumps(seen), flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The part of a GPU that a Ray actor or task asks for, kept by Aliquot: copy this file beside your program.

    @ray.remote(**share(0.3, "4Gi"))
    class Model: ...

Ray counts with `num_gpus` and starts the worker process by `py_executable`; `aliquot run` there makes that process, and
all that it starts, a tenant with this share.
"""

import shlex
import sys


def share(num_gpus, memory, *options):
    """Options of an actor or task: so much of a GPU, such a memory, further options of `aliquot run`.

    The worker waits for its share where one that has just ended still has it. Which GPU it is, Aliquot says, so Ray
    does not set CUDA_VISIBLE_DEVICES there.
    """
    request = ["--gpu-request", str(num_gpus), "--gpu-mem", memory, *options]
    return {
        "num_gpus": num_gpus,
        "runtime_env": {
            "py_executable": shlex.join(["aliquot", "run", "--wait", *request, "--", sys.executable]),
            "env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"},
        },
    }

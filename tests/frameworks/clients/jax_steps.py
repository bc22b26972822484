"""A training loop in JAX that runs two steps ahead: `jax_steps.py PROGRESS`."""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path

from jax._src import hardware_utils
from stepping import Steps

# JAX looks for a device file before it asks the driver, and the emulated one makes none.
hardware_utils._NVIDIA_GPU_DEVICES = ["/dev/null"]
os.environ.setdefault("JAX_PLATFORMS", "cuda")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax  # noqa: E402 - reads the environment
import jax.numpy as jnp  # noqa: E402

AHEAD = 2
LAYERS = 3


def loss(weights: list[jax.Array], inputs: jax.Array) -> jax.Array:
    """Of a few layers."""
    for each in weights:
        inputs = jnp.tanh(inputs @ each)
    return (inputs**2).mean()


@jax.jit
def learn(weights: list[jax.Array], inputs: jax.Array) -> list[jax.Array]:
    """One step of gradient descent."""
    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, inputs), strict=True)]


def main(path: Path) -> None:
    """Train until SIGTERM."""
    weights, inputs, in_flight = [jnp.ones((64, 64))] * LAYERS, jnp.ones((32, 64)), deque()
    jax.block_until_ready(learn(weights, inputs))
    steps = Steps(path)
    steps.done()
    while steps.go_on():
        weights = learn(weights, inputs)
        in_flight.append(weights)
        if len(in_flight) > AHEAD:
            jax.block_until_ready(in_flight.popleft())
            steps.done()
    jax.block_until_ready(weights)
    steps.note()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

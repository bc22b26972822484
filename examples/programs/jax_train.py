"""Training in JAX: `aliquot run --gpu-request .3 --gpu-mem 4Gi -- python jax_train.py --steps 50`.

JAX takes three quarters of the memory that it sees at its first operation. Under a share it sees the share, so nothing
has to be set. XLA_PYTHON_CLIENT_PREALLOCATE=false takes memory as it is needed. On an emulated GPU losses are
meaningless numbers.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp


def loss(weights: list[jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean square error of a network with one hidden layer."""
    first, second = weights
    return jnp.mean((jax.nn.relu(inputs @ first) @ second - targets) ** 2)


@jax.jit
def step(weights: list[jax.Array], inputs: jax.Array, targets: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """One step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(weights, inputs, targets)
    return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], value


def main() -> None:
    """Train, and report."""
    parser = argparse.ArgumentParser(description="Trains a small network on a GPU.")
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    (device,) = jax.devices("gpu")
    keys = jax.random.split(jax.random.PRNGKey(7), 4)
    weights = [jax.random.normal(keys[0], (256, 512)) * 0.1, jax.random.normal(keys[1], (512, 8)) * 0.1]
    inputs, targets = jax.random.normal(keys[2], (128, 256)), jax.random.normal(keys[3], (128, 8))
    weights, value = step(weights, inputs, targets)  # compiles
    began_s = time.monotonic()
    for _ in range(given.steps):
        weights, value = step(weights, inputs, targets)
    print(f"{device.device_kind}: loss {float(value):.4f}", flush=True)
    memory = device.memory_stats() or {}
    facts = {"steps": given.steps, "seconds": round(time.monotonic() - began_s, 3)}
    print(json.dumps(facts | {"may_take_mib": memory.get("bytes_limit", 0) >> 20}))


if __name__ == "__main__":
    main()

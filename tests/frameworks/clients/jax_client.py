"""JAX as people use it: each function is a feature."""

from __future__ import annotations

import os

from jax._src import hardware_utils
from running import feature, main, sys

# JAX looks for a device file before it asks the driver, and the emulated one makes none.
hardware_utils._NVIDIA_GPU_DEVICES = ["/dev/null"]
os.environ.setdefault("JAX_PLATFORMS", "cuda")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax  # noqa: E402 - reads the environment
import jax.numpy as jnp  # noqa: E402

BLOCK = 256 << 20


@feature
def arrays():
    """Creation, arithmetic, copies there and back."""
    assert "gpu" == jax.devices()[0].platform
    there = jax.device_put(list(range(100)))
    assert list(range(100)) == [int(each) for each in jax.device_get(there)]
    (jnp.ones((256, 256)) * 2).sum().block_until_ready()


@feature
def compiled():
    """jit, grad and vmap."""
    run = jax.jit(jax.vmap(jax.grad(lambda x: jnp.tanh(x) ** 2)))
    run(jnp.ones(64)).block_until_ready()


@feature
def matmul():
    """cuBLAS in two precisions."""
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jnp.ones((256, 256), dtype)
        (x @ x).block_until_ready()


@feature
def convolution():
    """cuDNN's convolution and its gradient."""
    kernel = jnp.ones((4, 3, 3, 3))
    loss = jax.jit(jax.grad(lambda k, x: jax.lax.conv(x, k, (1, 1), "SAME").sum()))
    loss(kernel, jnp.ones((1, 3, 16, 16))).block_until_ready()


@feature
def random_numbers():
    """Random numbers from a key."""
    jax.random.normal(jax.random.key(0), (100,)).block_until_ready()


@feature
def training_step():
    """A small network learns for a few steps in one compiled loop."""

    @jax.jit
    def learn(weights, inputs):
        def step(_, w):
            return w - 0.1 * jax.grad(lambda v: ((inputs @ v) ** 2).mean())(w)

        return jax.lax.fori_loop(0, 5, step, weights)

    learn(jnp.ones((64, 8)), jnp.ones((32, 64))).block_until_ready()


@feature
def linear_algebra():
    """cuSOLVER."""
    jnp.linalg.qr(jnp.eye(16))[0].block_until_ready()


@feature
def out_of_memory():
    """An array larger than the memory is refused by an error that is caught; after it everything goes on."""
    try:
        jnp.zeros((96 << 30,), jnp.uint8).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error), error
    else:
        raise AssertionError("96 GiB were given")
    jnp.ones(64).sum().block_until_ready()


if __name__ == "__main__":
    main(sys.argv[1:], {"JAX": jax.__version__})

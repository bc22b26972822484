"""JAX as people use it: each function is a feature."""

from __future__ import annotations

import os

import numpy
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


def fill() -> int:
    """Blocks of 256 MiB until there is no memory for another; that many."""
    blocks = []
    try:
        while len(blocks) < 1000:
            blocks.append(jnp.zeros((BLOCK,), jnp.uint8).block_until_ready())
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error), error
    return len(blocks)


@feature
def out_of_memory():
    """Filling the memory ends in RESOURCE_EXHAUSTED, which is caught; after it everything goes on."""
    blocks = fill()
    training_step()
    assert 8 < blocks < 1000
    return {"blocks": blocks}


@feature
def memory_statistics():
    """What JAX reports of its memory follows an array that comes and goes."""
    before = jax.devices()[0].memory_stats()["bytes_in_use"]
    block = jnp.zeros((BLOCK,), jnp.uint8).block_until_ready()
    assert BLOCK <= jax.devices()[0].memory_stats()["bytes_in_use"] - before
    block.delete()
    assert before == jax.devices()[0].memory_stats()["bytes_in_use"]


@feature
def pinned_memory():
    """An array goes to pinned memory of the host and back, unchanged."""
    device = jax.devices()[0]
    pinned = jax.device_put(numpy.arange(1024), jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host"))
    back = jax.device_put(pinned, jax.sharding.SingleDeviceSharding(device, memory_kind="device"))
    assert (numpy.asarray(back) == numpy.arange(1024)).all()


@feature
def mixed_precision():
    """A network of half precision with its gradients in single precision."""

    def loss(weights, inputs):
        return (inputs.astype(jnp.float16) @ weights.astype(jnp.float16)).astype(jnp.float32).mean()

    jax.jit(jax.value_and_grad(loss))(jnp.ones((64, 8)), jnp.ones((32, 64)))[1].block_until_ready()


@feature
def preallocated():
    """JAX's default: three quarters of the memory are taken at the start."""
    assert "true" == os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]
    training_step()
    return {"limit_mib": jax.devices()[0].memory_stats()["bytes_limit"] >> 20}


@feature
def cuda_malloc_async():
    """The driver's pools behind the allocator; started with XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async."""
    assert "cuda_async" == os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"]
    training_step()
    assert 8 < fill() < 1000
    training_step()


if __name__ == "__main__":
    main(sys.argv[1:], {"JAX": jax.__version__})

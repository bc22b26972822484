"""Processes beyond the number that a tenant may have: a refusal is an answer."""

import pytest


@pytest.mark.parametrize("at", ["hello", "attach"])
def test_a_process_too_many_is_out_of_memory_at_once(tenant, at):
    """It gets OUT_OF_MEMORY without waiting for an arbiter, one line that names the limit, and rarely asks again."""
    scene = tenant(auto_grant=True, crowded=at)
    program = scene.run("cuda = Cuda(); time.sleep(2.5); say(made=cuda.retained)")
    facts = program.read(30)
    _, errors = program.process.communicate(timeout=20)

    assert {"made": 2} == facts
    assert (
        f"aliquot: 256 processes of tenant t use its GPU, and no more may; process {program.process.pid} has no share "
        "and no memory until one of them ends\n"
    ) == errors
    assert 1 <= scene.arbiter.refusals <= 3


@pytest.mark.parametrize("at", ["hello", "attach"])
def test_a_process_too_many_gets_its_share_when_another_ends(tenant, at):
    """When there are fewer processes it is let in, without being started again."""
    scene = tenant(auto_grant=True, crowded=at)
    program = scene.run(
        "cuda = Cuda(); say(made=cuda.retained); context = ctypes.c_void_p(); made = 2\n"
        "while made: time.sleep(0.05); made = cuda.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)\n"
        "cuda.lib.cuCtxSetCurrent(context); say(launched=cuda.launch(cuda.spin(), 1000), done=cuda.sync())"
    )
    first = program.read(30)
    scene.arbiter.crowded = ""

    assert ({"made": 2}, {"launched": 0, "done": 0}) == (first, program.read(30))

"""Which GPUs of a machine are shared."""

import pytest

from aliquot.driver.choice import NoGpuLeft, choose
from aliquot.driver.gpu import Gpu

GPUS = [
    Gpu(0, "GPU-aa", "Tesla V100-SXM2-16GB", 16384, links=["X", "NV1", "SYS"]),
    Gpu(1, "GPU-bb", "NVIDIA A100-SXM4-40GB", 40960, links=["NV1", "X", "PHB"]),
    Gpu(3, "GPU-cc", "NVIDIA A100-SXM4-40GB", 40960, links=["SYS", "PHB", "X"], mig=True),
]


@pytest.mark.parametrize(
    ("only", "excluded", "left"),
    [
        ("", "", [0, 1]), ("1", "", [1]), ("0, GPU-BB", "", [0, 1]), ("a100", "", [1]), ("", "V100", [1]),
        ("0,1", "GPU-aa", [1]), ("0,9,H100", "GPU-zz", [0]),
    ],
)  # fmt: skip
def test_gpus_are_named_by_index_uuid_and_model(only, excluded, left):
    """A name that no GPU answers to names nothing; a GPU in MIG mode is left out whatever is named."""
    assert left == [gpu.index for gpu in choose(GPUS, only=only, excluded=excluded).gpus]


def test_a_gpu_that_is_left_out_is_said_with_the_reason():
    """Each GPU that is not shared has a reason, and the others keep the links among them."""
    found = choose(GPUS, excluded="0")

    assert {"GPU-aa", "GPU-cc"} == found.left_out.keys()
    assert "is among --not-gpus 0" == found.left_out["GPU-aa"]
    assert found.left_out["GPU-cc"].startswith("is in MIG mode")
    assert ["X"] == found.gpus[0].links


def test_no_gpu_left_is_an_error_that_names_all():
    """Lists that leave nothing are refused with the reason of each GPU."""
    with pytest.raises(NoGpuLeft, match=r"GPU 0 \(Tesla V100-SXM2-16GB\) is not among --only-gpus H100; .*GPU 3"):
        choose(GPUS, only="H100")

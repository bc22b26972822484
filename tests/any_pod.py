"""Any pod: right, wrong and odd words for GPUs in any of its fields, as hypothesis draws them."""

from typing import Any

from hypothesis import strategies as st

from aliquot.kube import names

RESOURCES = (
    *names.RESOURCES,
    *("tencent.com/vcuda-core", "tencent.com/vcuda-memory", "aliyun.com/gpu-mem", "aliyun.com/gpu-count"),
    *("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"),
    *("nvidia.com/priority", "cpu", "memory"),
)
NOTES = (
    *names.ASK_ANNOTATIONS,
    *(names.PLAN, names.DIALECT, "aliquot.dev/other", "sharedgpu/gpu_request", "sharedgpu/gpu_mem"),
    *("nvidia.com/use-gputype", "nvidia.com/nouse-gpuuuid"),
)
LABELS = ("sharedgpu/gpu_request", "sharedgpu/gpu_limit", "sharedgpu/gpu_mem", "sharedgpu/priority")
ODD_NUMBERS = ("", "0", "-1", "1E", "1e63", "1e999", "9" * 70, "NaN", "0.0000000001", "+3", "5.", "4GiB", "7Ei", "x")
ODD_TEXTS = ("0.5", "1", "1e9", "-1", "", "0.1,0.2", "!GPU-a", "GPU-a,!GPU-b", "50%", "99999999999", "٣", "1,,2", "\n")

number = st.integers(-5, 300) | st.sampled_from(ODD_NUMBERS) | st.floats(allow_nan=False, allow_infinity=False)
text = st.sampled_from(ODD_TEXTS) | st.text(max_size=12)
name = st.sampled_from(["a", "b", "a#2", "c.d", ""])
note = st.sampled_from(NOTES) | st.builds("{}.{}".format, st.sampled_from(NOTES), name)


def pods(number: st.SearchStrategy[Any] = number) -> st.SearchStrategy[dict[str, Any]]:
    """Pods whose amounts are such numbers."""
    amounts = st.dictionaries(st.sampled_from(RESOURCES), number, max_size=4)
    container = st.fixed_dictionaries(
        {"name": name, "resources": st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})},
        optional={"restartPolicy": st.sampled_from(["Always", ""])},
    )
    return st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries(
                {"name": st.just("p"), "namespace": st.just("n")},
                optional={
                    "annotations": st.dictionaries(note, text, max_size=5),
                    "labels": st.dictionaries(st.sampled_from(LABELS), text, max_size=3),
                },
            ),
            "spec": st.fixed_dictionaries(
                {"containers": st.lists(container, max_size=3)},
                optional={"initContainers": st.lists(container, max_size=2), "overhead": amounts},
            ),
        }
    )

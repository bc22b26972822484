"""The variables by which CUDA shows a tenant's programs their GPUs: by number, wherever the numbers are certain.

Many programs read CUDA_VISIBLE_DEVICES as numbers and end at a UUID. CUDA numbers the GPUs that a process can open,
with CUDA_DEVICE_ORDER=PCI_BUS_ID in the order of their PCI addresses; without it the fastest GPU comes first.

Sources: CUDA programming guide, "CUDA environment variables"; NVIDIA MIG user guide, "Device enumeration".
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.driver.discovery import Gpu


def cuda_variables(given: Sequence[str], seen: Sequence[Gpu]) -> dict[str, str]:
    """The variables for a program that is given the GPUs of these UUIDs, in this order, and can open those of `seen`.

    They have UUIDs where one of these is not in `seen`, and beside a GPU in MIG mode, which changes how CUDA counts.
    """
    numbers = {gpu.uuid: str(number) for number, gpu in enumerate(sorted(seen, key=_place))}
    if any(gpu.mig for gpu in seen) or not numbers.keys() >= set(given):
        return {"CUDA_VISIBLE_DEVICES": ",".join(given)}
    return {"CUDA_VISIBLE_DEVICES": ",".join(numbers[uuid] for uuid in given), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _place(gpu: Gpu) -> tuple[str, int]:
    return gpu.pci.lower(), gpu.index

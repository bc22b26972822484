"""Which machines can be asked for, and what their devices say of themselves."""

import pytest

from aliquot.driver.emulation import PROFILES, UnknownProfile, parse_spec

FACTS = """
ck(d.cuInit(0))
of = lambda a: ck(d.cuDeviceGetAttribute(getattr(d.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + a), 0))
answer([ck(d.cuDeviceGetCount()), ck(d.cuDeviceTotalMem(0)) >> 20, of("MULTIPROCESSOR_COUNT"),
        f"{of('COMPUTE_CAPABILITY_MAJOR')}.{of('COMPUTE_CAPABILITY_MINOR')}"])
"""


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_devices_are_those_of_the_profile(clients, name):
    """Number, memory, multiprocessors and compute capability are the profile's."""
    profile = PROFILES[name]

    assert clients(f"{name}x16").run(FACTS) == [16, profile.memory_mib, profile.sms, profile.compute_capability]


@pytest.mark.parametrize("spec", ["k80", "v100x0", "v100x17", "v100x", "x4", ""])
def test_unknown_specifications_are_refused(spec):
    """A specification without a known profile, or with other than 1 to 16 GPUs, is refused."""
    with pytest.raises(UnknownProfile):
        parse_spec(spec)


def test_a_name_alone_is_one_gpu():
    """`a100-80g` is one GPU of that profile."""
    assert parse_spec("a100-80g") == (PROFILES["a100-80g"], 1)

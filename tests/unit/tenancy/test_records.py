"""What the arbiter is told of a tenant, and what of that cannot work."""

import pytest

from aliquot.driver.emulation import PROFILES
from aliquot.tenancy.records import no_context_fits


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_memory_is_refused_exactly_below_the_context_of_the_model(profile):
    """The memory that a context takes on a model is enough; one MiB less is not."""
    assert "" == no_context_fits(profile.context_mib, profile.model)
    why = no_context_fits(profile.context_mib - 1, profile.model)
    assert f"{profile.context_mib - 1} MiB of GPU memory is less than one CUDA context needs" in why
    assert why.endswith("ask for more")


def test_a_number_that_was_meant_as_gib_is_recognised():
    """4 is 4 MiB; the sentence says what a context needs and what was probably meant."""
    assert (
        "4 MiB of GPU memory is less than one CUDA context needs (about 500 MiB on NVIDIA H100 80GB HBM3); "
        "did you mean 4Gi?"
    ) == no_context_fits(4, "NVIDIA H100 80GB HBM3")


def test_a_model_without_a_known_context_has_a_low_floor():
    """Where the context's size is not known, only memory that is too little on any GPU is refused."""
    assert ("", True) == (no_context_fits(64, "unknown"), "did you mean 8Gi?" in no_context_fits(8, "unknown"))

"""Kubernetes quantities, read exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kube.quantities import format_mib_quantity, mib_up, milli, parse_count, parse_quantity
from aliquot.model.quantities import BadQuantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.3", Fraction(3, 10)),
        ("300m", Fraction(3, 10)),
        (".5", Fraction(1, 2)),
        ("1.", Fraction(1)),
        ("4Gi", Fraction(4 * 1024**3)),
        ("4G", Fraction(4 * 10**9)),
        ("129e6", Fraction(129_000_000)),
        ("1E3", Fraction(1000)),
        ("1E", Fraction(10**18)),
        ("5n", Fraction(5, 10**9)),
        ("-1", Fraction(-1)),
        (7, Fraction(7)),
    ],
)
def test_every_form_of_a_quantity(text: str, value: Fraction):
    """Decimal, binary and exponent forms mean what the API says."""
    assert value == parse_quantity(text)


@pytest.mark.parametrize("text", ["", "x", "4Qi", "1 Gi", "1e", "1e999999", "9" * 100, "0x10", "1_000", "nan"])
def test_what_is_no_quantity_is_refused(text: str):
    """Anything else is an error, also what Python would take for a number."""
    with pytest.raises(BadQuantity):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["0.5", "-1", "1m"])
def test_counts_are_whole(text: str):
    """Extended resources are counted in integers."""
    with pytest.raises(BadQuantity):
        parse_count(text)


def test_amounts_are_rounded_as_kubernetes_does():
    """CPU is rounded up to milli-cores; memory to MiB, always up."""
    assert (1, 100, 1500) == (milli("1u"), milli("0.1"), milli("1.5"))
    assert (1, 4096) == (mib_up("1"), mib_up("4Gi"))


@given(st.integers(0, 10**7))
def test_mib_survive_as_quantities(mib: int):
    """Any number of MiB is read back from its quantity."""
    assert mib == mib_up(format_mib_quantity(mib))

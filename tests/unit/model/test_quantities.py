"""Text to integers: fractions of a GPU, amounts of memory."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.quantities import BadQuantity, format_mib, format_milli, parse_memory, parse_milli


@pytest.mark.parametrize(
    ("text", "milli"), [("0.3", 300), ("300m", 300), (".5", 500), ("1", 1000), ("2.5", 2500), (0.333, 333), ("0", 0)]
)
def test_fractions_are_exact_thousandths(text, milli):
    """A fraction is read as whole milli-GPU, whichever way it is written."""
    assert milli == parse_milli(text)


@pytest.mark.parametrize(
    ("percent", "number"), [("30%", "0.3"), ("33.3%", ".333"), ("100%", "1"), ("0.1%", "1m"), ("30 %", "300m")]
)
def test_a_percentage_is_the_same_share_as_the_number(percent, number):
    """30% and 0.3 are one share, exactly."""
    assert parse_milli(number) == parse_milli(percent)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("130%", '"130%" is more than one GPU; a percentage is at most 100%, write 1.3'),
        ("33.33%", '"33.33%" is finer than a thousandth of a GPU; write at most one decimal'),
    ],
)
def test_a_percentage_is_of_one_gpu(text, sentence):
    """More than 100 % and less than a tenth of a per cent are refused, with what to write."""
    with pytest.raises(BadQuantity) as refused:
        parse_milli(text)

    assert sentence == str(refused.value)


@pytest.mark.parametrize("text", ["", "abc", "-0.3", "0.3334", "3 0%", "1e3", "0.3 GPU", "nan", "0.5m"])
def test_what_is_no_fraction_is_refused_with_the_text_in_the_message(text):
    """A text that is no fraction, or finer than a thousandth, is refused and quoted."""
    with pytest.raises(BadQuantity, match=r"0\.3|three decimals"):
        parse_milli(text)


@given(st.integers(0, 16_000))
def test_a_formatted_fraction_reads_back_as_itself(milli):
    """Formatting and parsing a fraction are inverse."""
    assert milli == parse_milli(format_milli(milli))


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("4Gi", 4096),
        ("512Mi", 512),
        ("4096", 4096),
        (4096, 4096),
        ("1.5Gi", 1536),
        ("4G", 3814),
        ("4GiB", 4096),
        ("4.0 GiB", 4096),
        ("300 MiB", 300),
    ],
)
def test_memory_is_whole_mebibytes(text, mib):
    """An amount of memory is MiB, whatever unit it is written in; a plain number is MiB."""
    assert mib == parse_memory(text).on(16384)


def test_a_part_of_memory_is_of_the_device_it_falls_on():
    """25 % of a device is a quarter of that device."""
    assert (4096, 20480) == (parse_memory("25%").on(16384), parse_memory("25%").on(81920))


@pytest.mark.parametrize("text", ["", "4X", "-1Gi", "0", "0%", "101%", "1Ki", "lots", "4GB", "4iB", "4giB"])
def test_what_is_no_memory_is_refused(text):
    """A text that is not an amount of memory, or less than a MiB, is refused."""
    with pytest.raises(BadQuantity):
        parse_memory(text)


def test_memory_is_shown_with_its_unit():
    """Amounts from 1 GiB on are shown in GiB, smaller ones in MiB."""
    assert ("4.0 GiB", "300 MiB") == (format_mib(4096), format_mib(300))


@pytest.mark.parametrize(
    "text",
    ["9" * 5000, "0." + "3" * 5000, "9" * 5000 + "Gi", 10**5000, "\u0663", "1e400"],
    ids=["digits", "decimals", "unit", "int", "arabic digit", "exponent"],
)
@pytest.mark.parametrize("parse", [parse_milli, parse_memory])
def test_numbers_of_any_length_are_refused_in_one_short_sentence(parse: Callable[[str | int], object], text: str | int):
    """Python's own limits on long numbers never show, and the message does not repeat thousands of digits."""
    with pytest.raises(BadQuantity) as refused:
        parse(text)

    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("text", ["0.5", 0.5])
def test_memory_as_a_fraction_is_refused_with_its_percentage(text):
    """A plain number is MiB, so the refusal of half a MiB says how half of a device is written."""
    with pytest.raises(BadQuantity, match=r'"0\.5" is less than 1 MiB of memory; for that part of a device write 50%'):
        parse_memory(text)

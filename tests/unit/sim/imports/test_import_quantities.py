"""Times, durations, memory and TRES as accounting tools write them."""

from collections.abc import Callable
from datetime import timedelta, timezone

import pytest

from aliquot_lab.sim.imports.quantities import (
    Unreadable,
    gpus_of_gres,
    gpus_of_tres,
    parse_elapsed,
    parse_memory_mib,
    parse_quantity,
    parse_time,
    parse_tres,
)  # fmt: skip

NOON = 1_767_355_200.0


@pytest.mark.parametrize(
    "text",
    ["1767355200", "1767355200000", "1767355200.0", "2026-01-02T12:00:00", "2026-01-02 12:00:00",
     "2026-01-02T12:00:00Z", "2026-01-02T13:00:00+01:00", "2026-01-02 04:00:00 PST"],
)  # fmt: skip
def test_a_time_is_read_in_every_usual_form(text: str):
    """Seconds and milliseconds since 1970 and ISO 8601 with and without a zone are the same moment."""
    assert NOON == parse_time(text)


def test_a_time_without_a_zone_is_of_the_zone_given():
    """Noon in a zone one hour ahead of UTC is an hour earlier; a time with its own zone keeps it."""
    ahead = timezone(timedelta(hours=1))

    assert (NOON - 3600, NOON) == (parse_time("2026-01-02T12:00:00", ahead), parse_time("2026-01-02T12:00:00Z", ahead))


@pytest.mark.parametrize("text", ["Unknown", "None", "", "N/A", "NaN", "null"])
def test_an_unknown_time_or_duration_is_none(text: str):
    """What accounting tools write for a time that has not come is no error."""
    assert (None, None) == (parse_time(text), parse_elapsed(text))


@pytest.mark.parametrize(
    ("parse", "allowed", "texts"),
    [
        (parse_time, "2026-01-02T03:04:05", ["yesterday", "2026-13-40T00:00:00", "-5", "inf"]),
        (parse_elapsed, "3600", ["soon", "10 parsecs", "-3", "1:2:3:4"]),
    ],
)
def test_what_is_no_time_or_duration_is_refused(parse: Callable[[str], object], allowed: str, texts: list[str]):
    """The sentence says what a time or a duration looks like."""
    for text in texts:
        with pytest.raises(Unreadable, match=f"allowed are {allowed}"):
            parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(93_784, "1-02:03:04"), (3_600, "01:00:00"), (43.9, "00:43.900"), (90.5, "90.5"), (600, "10m"), (9_000, "2h 30m"),
     (86_400, "1 day"), (0.25, "250ms")],
)  # fmt: skip
def test_a_duration_is_read_in_every_usual_form(seconds: float, text: str):
    """Slurm's elapsed times, bare seconds, and amounts with units."""
    assert seconds == parse_elapsed(text)


@pytest.mark.parametrize(
    ("mib", "text"),
    [(65_536, "64G"), (30_000, "30000M"), (1_572_864, "1.5T"), (1, "1K"), (65_536, "64GiB"), (0, ""), (12, "12")],
)
def test_memory_has_slurms_suffixes(mib: int, text: str):
    """K, M, G and T are powers of 1024; a bare number is MiB and a part of one is rounded up."""
    assert mib == parse_memory_mib(text)


def test_older_slurms_memory_is_by_node_or_by_cpu():
    """`4Gn` is for each node of the job, `2Gc` for each CPU."""
    assert (8_192, 16_384) == (parse_memory_mib("4Gn", nodes=2), parse_memory_mib("2Gc", cpus=8))


@pytest.mark.parametrize(
    ("milli", "model", "text"),
    [
        (2000, "", "billing=4,cpu=4,gres/gpu=2,mem=32G,node=1"),
        (2000, "a100", "cpu=4,gres/gpu:a100=2"),
        (2000, "a100", "gres/gpu:a100=2,gres/gpu=2"),
        (3000, "", "gres/gpu:a100=1,gres/gpu:v100=2,gres/gpu=3"),
        (285, "1g.5gb", "gres/gpu:1g.5gb=2"),
        (428, "a100_3g.20gb", "gres/gpu:a100_3g.20gb=1,gres/gpu=1"),
        (0, "", "billing=4,cpu=4,mem=4G,node=1"),
        (0, "", ""),
    ],
)
def test_gpus_of_a_tres_list(milli: int, model: str, text: str):
    """A typed count is not added to the total, several types make no model, and a MIG slice counts its sevenths."""
    assert (milli, model) == gpus_of_tres(parse_tres(text))


@pytest.mark.parametrize(
    ("milli", "model", "text"),
    [(2000, "", "gpu:2"), (2000, "tesla", "gpu:tesla:2(IDX:0-1)"), (1000, "", "gpu"), (0, "", "mic:1"), (0, "", "")],
)
def test_gpus_of_an_older_gres_list(milli: int, model: str, text: str):
    """The lists of Slurm before TRES say type and count between colons."""
    assert (milli, model) == gpus_of_gres(text)


@pytest.mark.parametrize(("value", "text"), [(2, "2"), (0.5, "500m"), (64 * 2**30, "64Gi"), (3e9, "3G"), (4, 4)])
def test_quantities_of_kubernetes(value: float, text: object):
    """Decimal and binary suffixes, and bare numbers of a JSON document."""
    assert value == parse_quantity(text)

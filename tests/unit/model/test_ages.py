"""Ages read as in kubectl."""

import pytest

from aliquot.model.ages import DAY, HOUR, MINUTE, YEAR, format_age


@pytest.mark.parametrize(
    ("expected", "seconds"),
    [
        ("0s", -1),
        ("0s", 0.9),
        ("90s", 90),
        ("119s", 119.99),
        ("2m", 120),
        ("2m5s", 125),
        ("9m59s", 10 * MINUTE - 1),
        ("10m", 10 * MINUTE + 59),
        ("179m", 3 * HOUR - 1),
        ("3h", 3 * HOUR + 59),
        ("4h10m", 4 * HOUR + 10 * MINUTE + 59),
        ("7h59m", 8 * HOUR - 1),
        ("8h", 9 * HOUR - 1),
        ("47h", 2 * DAY - 1),
        ("2d", 2 * DAY + HOUR - 1),
        ("3d5h", 3 * DAY + 5 * HOUR),
        ("7d23h", 8 * DAY - 1),
        ("8d", 9 * DAY - 1),
        ("729d", 2 * YEAR - 1),
        ("2y", 2 * YEAR + DAY - 1),
        ("3y7d", 3 * YEAR + 7 * DAY),
        ("7y364d", 8 * YEAR - 1),
        ("8y", 9 * YEAR - 1),
    ],
)
def test_ages_have_the_steps_of_kubectl(expected: str, seconds: float):
    """Seconds below two minutes, then two units while the larger is small, and whole ones after that."""
    assert expected == format_age(seconds)

"""GPU-hours on a terminal: tables, files and fields of the sums that the dashboard's page shows."""

import csv
import io
import json

import pytest
import yaml

from aliquot.cli.forms import FormType
from aliquot.cli.hours import HoursView
from aliquot.model.errors import UserError
from aliquot.status import HourLine, Hours

LINES = [
    HourLine("lab", "Job/train", "V100", 120.5, 100.0, 10.0, 5.5, 25.0, 3.25),
    HourLine("lab", "Job/train", "A100", 1.5, 0.5, 0.0, 0.0, 1.0, 0.0),
    HourLine("web", "Deployment/api", "V100", 2.0, 0.25, 0.0, 0.75, 1.0, 0.0),
]
NOTHING = HourLine("", "", "", 0, 0, 0, 0, 0, 0)


def shown(
    capsys: pytest.CaptureFixture[str], form: str = "text", *, by: str = "", namespace: str = "", **more: str
) -> str:
    view = HoursView("24h", by, FormType(("text", "wide", "json", "yaml", "csv")).convert(form, None, None), namespace)
    view.print(Hours(0, 86_400, 192.0, LINES, NOTHING, **more))
    return capsys.readouterr().out


def test_the_table_has_a_line_for_each_controller_and_the_total(capsys: pytest.CaptureFixture[str]):
    """The largest promise comes first, models are summed, and numbers stand under each other."""
    assert shown(capsys).splitlines() == [
        "NAMESPACE  CONTROLLER      PROMISED   USED  LENT   IDLE",
        "lab        Job/train          122.0  100.5  5.50  26.00",
        "web        Deployment/api      2.00   0.25  0.75   1.00",
        "TOTAL                         124.0  100.8  6.25  27.00",
    ]


def test_wide_adds_models_and_what_was_borrowed_and_waited(capsys: pytest.CaptureFixture[str]):
    """-o wide sums by everything there is, unless --by says otherwise."""
    head, first, *_ = (line.split() for line in shown(capsys, "wide").splitlines())
    narrow = shown(capsys, "wide", by="model").splitlines()

    assert ["NAMESPACE", "CONTROLLER", "MODEL", "PROMISED", "USED", "LENT", "IDLE", "BORROWED", "WAITED"] == head
    assert ["lab", "Job/train", "V100", "120.5", "100.0", "5.50", "25.00", "10.00", "3.25"] == first
    assert ["MODEL", "V100", "A100", "TOTAL"] == [line.split()[0] for line in narrow]


def test_programs_get_the_facts_of_the_api(capsys: pytest.CaptureFixture[str]):
    """JSON and YAML are the record of /api/v1/hours, CSV its lines, and templates pick from it."""
    found = json.loads(shown(capsys, "json"))
    lines = list(csv.DictReader(io.StringIO(shown(capsys, "csv", by="namespace"))))

    assert (124.0, ["lab", "web"]) == (found["total"]["promised"], [line["namespace"] for line in found["lines"]])
    assert found == yaml.safe_load(shown(capsys, "yaml"))
    assert [("lab", 122.0), ("web", 2.0)] == [(line["namespace"], float(line["promised_gpu_hours"])) for line in lines]
    assert "124.0" == shown(capsys, "jsonpath={.total.promised}")
    assert ["WHO  USED", "lab  100.5", "web  0.25"] == shown(
        capsys, "custom-columns=WHO:.namespace,USED:.used"
    ).splitlines()  # fmt: skip


def test_a_namespace_is_shown_alone(capsys: pytest.CaptureFixture[str]):
    """-n leaves the lines of a namespace, of which the total is; another one has no hours."""
    assert ["web", "TOTAL"] == [line.split()[0] for line in shown(capsys, namespace="web").splitlines()[1:]]
    assert "" == shown(capsys, namespace="other")


def test_what_is_missing_is_said_on_stderr(capsys: pytest.CaptureFixture[str]):
    """A note about the history is not among the facts for programs."""
    view = HoursView("", "", FormType(("json",)).convert("json", None, None))
    view.print(Hours(0, 900, 0.0, [], NOTHING, note="The history cannot be read: disk on fire"))
    out, err = capsys.readouterr()

    assert ([], "aliquot: The history cannot be read: disk on fire\n") == (json.loads(out)["lines"], err)


def test_the_time_that_is_summed_is_said_on_stderr(capsys: pytest.CaptureFixture[str]):
    """Whole quarter hours may be more than was asked for."""
    HoursView("24h", "", FormType(("text",)).convert("text", None, None)).print(Hours(900, 87_300, 1.0, LINES, NOTHING))

    assert "aliquot: GPU-hours from 1970-01-01 00:15 to 1970-01-02 00:15 UTC, in whole quarter hours\n" == (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("since", ["15m", "36h", "30d", "7d", "1h30m", "900"])
def test_any_time_up_to_thirty_days_can_be_asked(since: str):
    """--since takes what other durations take, and days."""
    assert since == HoursView(since, "", FormType(("text",)).convert("text", None, None)).since


@pytest.mark.parametrize(
    ("since", "by"), [("31d", ""), ("0h", ""), ("7", ""), ("14m", ""), ("a week", ""), ("7d", "colour")]
)
def test_unknown_words_are_named_with_their_option(since: str, by: str):
    """The sentence begins with the option and what was given."""
    option, word = ("--by", by) if by else ("--since", since)
    with pytest.raises(UserError, match=f'^{option} "{word}" is unknown; '):
        HoursView(since, by, FormType(("text",)).convert("text", None, None))

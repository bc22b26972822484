"""The forms of -o that pick fields: templates and columns as kubectl has them."""

import pytest

from aliquot.cli.forms import CustomColumns, Form, FormType, Template
from aliquot.cli.tables import aligned
from aliquot.model.errors import UserError

PODS = [
    {"name": "a", "labels": {"app": "web", "aliquot.dev/team": "x"}, "gpus": [0, 1], "phase": "Running", "mib": 512},
    {"name": "b", "labels": {}, "gpus": [], "phase": "Pending", "mib": 4096, "numa": None},
]
LIST = {"items": PODS}


@pytest.mark.parametrize(
    ("expected", "template"),
    [
        ("a b", "{.items[*].name}"),
        ("a b", "{$.items[*].name}"),
        ("a b", "{.items[*]['name']}"),
        ("a", "{items[0].name}"),
        ("b", "{.items[-1].name}"),
        ("a b", "{..name}"),
        ("a 512", "{.items[0]['name','mib']}"),
        ("x", r"{.items[0].labels.aliquot\.dev/team}"),
        ("x", "{.items[0].labels['aliquot.dev/team']}"),
        ("a", '{.items[?(@.phase=="Running")].name}'),
        ("b", "{.items[?(@.mib>1000)].name}"),
        ("[0, 1] 512", "{.items[0].gpus} {.items[0].mib}"),
        ('{"app": "web", "aliquot.dev/team": "x"}', "{.items[0].labels}"),
        ("", "{.items[0].nothing}"),
        ("", "{.items[1].numa}"),
        ('}"{ a', '{"}\\"{"} {.items[0].name}'),  # a brace or a quote within quotes ends nothing
    ],
)
def test_templates_read_as_in_kubectl(expected: str, template: str):
    """Paths with names, wildcards, filters, slices and escaped dots; a field that is not there is empty."""
    assert expected == Template(template).filled(LIST)


def test_a_range_is_filled_for_each_thing():
    """Within a range a path is from the thing at hand, `$` from the whole; text in quotes has escapes."""
    template = Template(
        "{range .items[*]}{.name}{\"\\t\"}{@.phase}: {range .gpus[*]}<{@}>{end}{'\\n'}{end}{$.items[0].mib}"
    )

    assert "a\tRunning: <0><1>\nb\tPending: \n512" == template.filled(LIST)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("has no path in braces", ".items"),
        ("has no closing brace", "{.items"),
        ("has no closing quote", '{"x}'),
        ("{end} has no {range} before it", "{.a}{end}"),
        ("{range} has no {end} after it", "{range .items[*]}{.name}"),
        ('".items[" is not a path', "{.items[}"),
        ('"a b" is not a path', "{a b}"),
        ("a path is empty", "{range}{end}"),
        ("a path is empty", "{}"),
        ("has nothing to pick", ""),
    ],
)
def test_templates_that_cannot_be_read_are_named(reason: str, text: str):
    """One sentence says which part of the template is wrong."""
    with pytest.raises(UserError) as refused:
        FormType(("text", "json")).convert(f"jsonpath={text}", None, None)

    assert str(refused.value).startswith("-o jsonpath") and reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_columns_are_a_table():
    """Each column has a header and a path; several values have commas between, and what is not there is <none>."""
    table = CustomColumns(
        "NAME:.name,GPUS:.gpus[*],TEAM:.labels['aliquot.dev/team'],NUMA:{.numa},BOTH:.['name','mib']"
    ).table(PODS)

    assert [["NAME", "GPUS", "TEAM", "NUMA", "BOTH"], ["a", "0,1", "x", "<none>", "a,512"]] == table[:2]
    assert ["b", "<none>", "<none>", "<none>", "b,4096"] == table[2]


@pytest.mark.parametrize(
    "text", ["NAME", "NAME:", ":.name", "NAME:.name,", "NAME:.name,NAME:.mib", "NAME:.items[", "A:{.x", "A:.x}"]
)
def test_columns_that_cannot_be_read_are_named(text: str):
    """One sentence says which column is wrong."""
    with pytest.raises(UserError, match=r"^-o custom-columns: ") as refused:
        FormType(("text",)).convert(f"custom-columns={text}", None, None)

    assert "\n" not in str(refused.value)


def test_an_unknown_form_is_refused_with_those_there_are():
    """The message lists the words and the two forms that pick fields."""
    with pytest.raises(
        UserError, match=r'^-o "jsn" is unknown; write text, json, jsonpath=TEMPLATE or custom-columns='
    ):
        FormType(("text", "json")).convert("jsn", None, None)
    assert Form("json") == FormType(("text", "json")).convert("json", None, None)


def test_tables_have_one_line_a_row_whatever_is_in_a_cell():
    """A cell may be another account's text: a terminal gets its control characters escaped."""
    assert list(aligned([["A"], ["a\x1b[31m\nGPU 9"]])) == ["A", "a\\x1b[31m\\nGPU 9"]

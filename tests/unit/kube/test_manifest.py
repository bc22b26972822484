"""Reading the YAML that people write."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kube.manifest import MAX_DEPTH, BadYaml, read_yaml, read_yaml_file


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
@pytest.mark.parametrize("levels", [200, 3_000])
def test_deep_nesting_is_one_sentence(opening: str, levels: int):
    """However deep a text nests, the reader answers with a sentence and the process goes on."""
    with pytest.raises(BadYaml) as refused:
        read_yaml(opening * levels, "deep.yaml")

    assert str(refused.value).startswith("deep.yaml is not readable as YAML: line 1: ")


def test_the_deepest_manifest_that_is_read():
    """A value nested as deeply as allowed is read, one level more is refused."""
    assert [[]] != read_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(BadYaml, match=f"nested more than {MAX_DEPTH} levels"):
        read_yaml("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


ALIAS_BOMB = "a0: &a0 {k: v}\n" + "".join(
    f"a{level}: &a{level} {{{', '.join(f'k{i}: *a{level - 1}' for i in range(9))}}}\n" for level in range(1, 13)
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ALIAS_BOMB, id="mappings of mappings"),
        pytest.param(f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 101)}]", id="a long text, often"),
        pytest.param("a: &a {b: *a}", id="a mapping within itself"),
        pytest.param("&a [*a]", id="a list within itself"),
    ],
)
def test_aliases_that_expand_without_bound_are_refused(text: str):
    """What a text stands for when its aliases are written out is bounded, however short the text is."""
    with pytest.raises(BadYaml, match=r"^bomb.yaml is not readable as YAML: line \d+: its aliases stand for more than"):
        read_yaml(text, "bomb.yaml")


def test_aliases_that_repeat_a_value_are_read():
    """An alias stands for its value, also as a key and in a merge."""
    assert [{"a": {"k": "v"}, "b": [{"k": "v"}] * 500}] == read_yaml(f"a: &a {{k: v}}\nb: [{', '.join(['*a'] * 500)}]")
    assert [{"a": "x", "x": 1}] == read_yaml("a: &a x\n*a : 1")
    assert [{"a": {"k": 1}, "b": {"k": 1, "l": 2}}] == read_yaml("a: &a {k: 1}\nb: {<<: *a, l: 2}")


@pytest.mark.parametrize(
    ("text", "line", "key", "first"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a", 1),
        ("spec:\n  gpu:\n    request: 0.3\n    limit: 1\n    request: 0.5\n", 5, "request", 3),
        ("list:\n- {a: 1, a: 2}\n", 2, "a", 2),
        ('{"a": {"b": 1},\n "a": 2}', 2, "a", 1),
    ],
)
def test_a_key_that_is_written_twice_is_refused_with_both_lines(text, line, key, first):
    """Of two values of one key none is chosen silently."""
    with pytest.raises(BadYaml) as refused:
        read_yaml(text, "pod.yaml")

    expected = f'line {line}: the key "{key}" stands in line {first} already; write it once'
    assert f"pod.yaml is not readable as YAML: {expected}" == str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "a: a\nb: a\n",
        "- {a: 1}\n- {a: 2}\n",
        "a: 1\n---\na: 2\n",
        "a: {b: 1}\nb: [a, a]\n",
        "x: &x {a: 1}\ny: {<<: *x, a: 2}\n",
    ],
)
def test_a_word_may_stand_in_several_mappings(text):
    """Keys are compared within one mapping, and not with values, lists or other documents."""
    assert read_yaml(text)


@pytest.mark.parametrize("text", ["a: 2001-99-99", "a: " + "9" * 5000, "a: !!timestamp x"])
def test_a_value_that_cannot_be_made_is_one_sentence(text: str):
    """Dates that do not exist and numbers too long for Python are the author's mistakes."""
    with pytest.raises(BadYaml, match="not readable as YAML"):
        read_yaml(text)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML is built without libyaml here")
def test_manifests_are_read_by_libyaml(monkeypatch: pytest.MonkeyPatch):
    """PyYAML's own scanner, which takes seconds for a large manifest, is not used where libyaml is there."""
    monkeypatch.delattr(yaml.scanner.Scanner, "fetch_more_tokens")

    assert [[{"name": 1}]] == read_yaml("- name: 1\n")


def test_empty_documents_are_left_out():
    """Separators and comments between documents count for nothing."""
    assert [{"a": 1}, {"b": 2}] == read_yaml("---\n---\na: 1\n---\n# nothing\n---\nb: 2\n")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff\xfe", "is not readable as YAML: it is not UTF-8 text"),
        (b"a: [", "is not readable as YAML: line 1"),
        (b"a: 1\n---\nb: 2\n", "holds 2 YAML documents; it takes one"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, sentence: str):
    """The message begins with the file."""
    file = tmp_path / "settings.yaml"
    file.write_bytes(content)
    with pytest.raises(BadYaml) as refused:
        read_yaml_file(file)

    assert str(refused.value).startswith(f"{file} {sentence}")


@given(st.text(max_size=200) | st.text(alphabet="[]{}:-?&*!|>'\"\n a1", max_size=200))
def test_any_text_is_read_or_refused(text: str):
    """No text ends in another exception."""
    try:
        read_yaml(text)
    except BadYaml as refused:
        assert "\n" not in str(refused)

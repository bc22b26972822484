"""What `aliquot get -o` prints for one thing that is named, and for several."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from aliquot.cli import get as command
from aliquot.standalone.wire import PodFacts, Reply


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with two SharePods and two tenants."""
    pods = [PodFacts(f"default/{name}", "Running", [0], ["GPU-0"], 300, 600, 2048, 0, 5.0) for name in "ab"]
    tenants: list[dict[str, Any]] = [{"name": pod.name, "slices": []} for pod in pods]
    replies = {"pods": Reply(pods=pods), "tenants": Reply(tenants=tenants)}
    monkeypatch.setattr(command, "ask_engine", lambda verb, **_: replies[verb])


def printed(*words: str) -> str:
    """What the command prints."""
    done = CliRunner().invoke(command.get, words, catch_exceptions=False)
    assert 0 == done.exit_code, done.output
    return done.stdout


@pytest.mark.parametrize("words", [("pod", "a"), ("sharepod/a",), ("tenants", "a")])
def test_one_name_gives_the_object(words: tuple[str, ...]):
    """`get KIND NAME -o json` prints that object and no list, and so does yaml, as kubectl has it."""
    assert "default/a" == json.loads(printed(*words, "-o", "json"))["name"]
    assert "default/a" == yaml.safe_load(printed(*words, "-o", "yaml"))["name"]
    assert "default/a" == printed(*words, "-o", "jsonpath={.name}")


@pytest.mark.parametrize("words", [(), ("pods",), ("pods", "a", "b"), ("tenants",)])
def test_several_names_or_none_give_a_list(words: tuple[str, ...]):
    """Without a name, and with several, `-o json` prints a list, which templates have as `.items`."""
    assert ["default/a", "default/b"] == [each["name"] for each in json.loads(printed(*words, "-o", "json"))]
    assert ["default/a", "default/b"] == [each["name"] for each in yaml.safe_load(printed(*words, "-o", "yaml"))]
    assert "default/a default/b" == printed(*words, "-o", "jsonpath={.items[*].name}")


def test_columns_of_one_name_are_its_row():
    """Columns are a table of one row for one name."""
    assert ["NAME", "default/b"] == printed("pod", "b", "-o", "custom-columns=NAME:.name").split()

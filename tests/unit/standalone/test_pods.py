"""One SharePod that cannot be placed, beside others that can."""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

import pytest

from aliquot.standalone.engine import Engine
from aliquot.standalone.pods import Pods


def sharepod(name: str) -> str:
    """A SharePod that asks for half a GPU."""
    spec = {"gpu": {"request": 0.5}, "template": {"spec": {"containers": [{"name": "main", "command": ["true"]}]}}}
    return json.dumps(
        {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": name}, "spec": spec}
    )


class Failing:
    """An engine in which a defect shows whenever a tenant is admitted; its ledger takes every request."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.asked: list[str] = []

    def check_possible(self, *_: Any) -> None:
        """There would be room."""

    def admit(self, name: str, *_: Any, **__: Any) -> NoReturn:
        """Fail."""
        self.asked.append(name)
        raise self._error


@pytest.mark.parametrize("error", [ValueError("bad state"), PermissionError(13, "", "/x"), MemoryError("none")])
def test_an_unforeseen_error_is_the_reason_of_one_sharepod_and_stops_no_other(error):
    """Whatever goes wrong while a SharePod is placed, it waits with that as its reason, and the next is looked at."""
    engine = Failing(error)
    pods = Pods(cast(Engine, engine))
    pods.apply(sharepod("a") + "\n---\n" + sharepod("b"))
    pods.place_waiting()
    assert ["default/a", "default/b"] * 2 == engine.asked
    assert ["Pending", "Pending"] == [facts.phase for facts in pods.facts()]
    assert all(type(error).__name__ in facts.message for facts in pods.facts())

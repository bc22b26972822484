"""Pages say how old their facts are, and that there is no news."""

from __future__ import annotations

import re
import time

import pytest
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient

from aliquot.status import NamespacedView
from aliquot.web.pages.news import STALE_S, stale_since

PATHS = ["/", "/gpus", "/workloads", "/topology", "/pool", "/try"]


@pytest.mark.parametrize("path", PATHS)
def test_old_facts_are_said_on_every_page(visitor: TestClient, facts: MadeUpFacts, path: str):
    """When nothing was read for a while each page has a banner with the time of the last reading; then it goes."""
    assert "No news since" not in visitor.get(path).text
    facts.hold(time.time() - STALE_S - 1)
    assert re.search(r"No news since <b>[\d: -]{8,20} \S+</b>", visitor.get(path).text)
    facts.hold(None)
    assert "No news since" not in visitor.get(path).text


def test_without_scripts_a_page_says_when_its_facts_were_made(visitor: TestClient):
    """The time of the facts is in each page for browsers that run no scripts."""
    assert re.search(r"<noscript> · as of [\d:]{8} \S+, reload for newer</noscript>", visitor.get("/").text)


def test_a_page_of_no_facts_has_no_time(visitor: TestClient):
    """A page that is not there does not claim a time of facts."""
    assert "as of" not in visitor.get("/nowhere").text


def test_age_is_the_same_for_every_viewer(facts: MadeUpFacts):
    """A viewer of a namespace sees the age of the cluster's facts."""
    facts.hold(time.time() - 100)

    assert facts.as_of_s == stale_since(NamespacedView(facts, frozenset({"web"})))


def test_a_silent_nodes_last_answer_is_in_the_list(visitor: TestClient, facts: MadeUpFacts):
    """The list says of a silent node since when there is no news."""
    facts.silence("node-000", "away", time.time() - 60)

    assert re.search(r"not known, no news since <b>[\d:]{8} \S+</b>: away", visitor.get("/gpus?node=node-000").text)

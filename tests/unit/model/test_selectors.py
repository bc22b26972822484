"""Label selectors as kubectl takes them."""

import pytest

from aliquot.model.selectors import BadSelector, parse_selector, selects

WEB = {"app": "web", "tier": "front", "example.com/team": "a"}


@pytest.mark.parametrize(
    "text",
    [
        "", "app=web", "app==web", "app = web", "app!=cache", "app in (web,cache)", "app in (web)", "tier notin (back)",
        "missing!=x", "missing notin (x, y)", "app", "!missing", "app=web,tier=front", "example.com/team=a",
        "app in (web, cache),tier,!debug",
    ],
)  # fmt: skip
def test_a_selector_that_holds(text):
    """Every condition of Kubernetes' grammar holds where it does there; != and notin hold for a missing label."""
    assert selects(parse_selector(text), WEB)


@pytest.mark.parametrize(
    "text", ["app=cache", "app!=web", "app in (cache)", "app notin (web)", "missing", "!app", "app=web,tier=back", "x="]
)
def test_a_selector_that_does_not_hold(text):
    """One condition that does not hold is enough."""
    assert not selects(parse_selector(text), WEB)


@pytest.mark.parametrize("text", ["=web", "app=a b", "app in web", "app in (a", "a,,b", "app>1", "-x", "app in (a b)"])
def test_what_is_no_selector_is_refused_with_the_grammar(text):
    """A text outside the grammar is quoted, with what can be written."""
    with pytest.raises(BadSelector, match="is no condition on a label; write key=value"):
        parse_selector(text)

"""What if: a request, where it would be placed, why, and what would remain. Nothing is reserved."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import yaml

from aliquot.model.errors import UserError
from aliquot.model.sharepod import parse_sharepod
from aliquot.web.api import AskFor, Trial
from aliquot.web.facts import Facts
from aliquot.web.pages import Drawn, Query, commands
from aliquot.web.pages.bars import compute_bar, memory_bar
from aliquot.web.render import block

TEXT_BYTES: Final = 16_384
DEEPEST: Final = 40
_FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(AskFor))


class _Plain(yaml.SafeLoader):
    """YAML as far as a SharePod needs it: of aliases a few hundred bytes could be made into gigabytes."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """One more value; refused where it is more than plain."""
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        fault = ""
        if isinstance(event, yaml.AliasEvent):
            fault = f"an alias (*{event.anchor}) is not taken here"
        elif getattr(event, "tag", None):
            fault = "a tag (!) is not taken here"
        elif self.depth >= DEEPEST:
            fault = f"it is more than {DEEPEST} levels deep"
        if fault:
            raise _unreadable(event.start_mark, fault)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def draw(facts: Facts, query: Query) -> Drawn:
    """The form, and the answer if a request was entered."""
    trial, error, command = None, "", ""
    if any(query.get(name) for name in ("request", "yaml")):
        try:
            ask = ask_of(query)
            trial, command = facts.try_request(ask), commands.trial(facts, ask)
        except UserError as mistake:
            error = str(mistake)
    models = sorted({gpu.model for gpu in facts.gpus()})
    blocks = [block("trial", "blocks/trial.html", trial=trial, error=error, rows=_rows(trial))]
    return Drawn("What if", blocks, {"models": models, "command": command})


def ask_of(query: Query) -> AskFor:
    """The request of a query: its `yaml`, a SharePod, or else its fields.

    Raises:
        UserError: the text is not one SharePod.
    """
    text = query.get("yaml", "").strip()
    if not text:
        return AskFor(**{name: query[name].strip() for name in _FIELDS if query.get(name, "").strip()})
    if len(text) > TEXT_BYTES:
        raise UserError(f"the SharePod is longer than {TEXT_BYTES} characters; paste less")
    gpu = parse_sharepod(_one_document(text)).spec.gpu
    given = {name: getattr(gpu, name, None) for name in _FIELDS}
    return AskFor(**{name: str(value) for name, value in given.items() if value not in (None, "")})


def _one_document(text: str) -> Any:
    try:
        return yaml.load(text, _Plain)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None)
        raise _unreadable(getattr(error, "problem_mark", None), str(problem)) from None
    except ValueError as error:  # what looks like a date or a number and is none
        raise _unreadable(None, str(error)[:100]) from None


def _unreadable(mark: Any, problem: str) -> UserError:
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return UserError(f"not readable as YAML: {where}{problem}; paste one SharePod")


def _rows(trial: Trial | None) -> list[tuple[str, list[Any]]]:
    if trial is None or not trial.fits:
        return []
    groups = (("now", trial.before), ("with it", trial.after))
    return [(when, [(gpu, compute_bar(gpu), memory_bar(gpu)) for gpu in gpus]) for when, gpus in groups]

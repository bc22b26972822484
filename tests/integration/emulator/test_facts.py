"""The questions that a real driver is asked (tests/gpu/facts.py), put to the emulated one."""

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "gpu"))

from facts import ASSUMED, MODES, as_text, ask, compiled, emulated, steady, table

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
WRITE = "write them anew: python3 tests/gpu/facts.py --assume"


@pytest.mark.parametrize("mode", MODES)
def test_the_emulated_driver_answers_as_written_down(tmp_path: Path, mode: str):
    """What a real driver's answers are compared with is what the emulated driver answers now."""
    environment = emulated("h200", tmp_path / "gpu", mode)

    answers = steady(ask(compiled(tmp_path), environment))

    assert json.loads(ASSUMED.read_text())[mode] == answers, WRITE


def test_a_driver_that_answers_otherwise_is_flagged():
    """A row whose answer differs begins with an exclamation mark; a measurement is never a difference."""
    seen = json.loads(ASSUMED.read_text())["emulated"]
    seen["arrays"]["cuArrayGetMemoryRequirements of an ordinary array"] = "0"
    seen["events"]["us a launch"] = "~2.50"

    facts = table(seen)

    assert ["arrays"] == [fact.group for fact in facts if fact.differs]
    assert 1 == sum(line.startswith("!") for line in as_text(facts).splitlines())


def test_a_group_that_ends_badly_is_a_difference():
    """A driver that ends the process where the emulated one answers is flagged as well."""
    written = json.loads(ASSUMED.read_text())["emulated"]
    seen = dict(written)
    seen["handles"] = {"the end of handles": "1 of 1: signal SIGSEGV"}

    questions = {fact.question for fact in table(seen) if fact.differs}

    assert {"the end of handles", *written["handles"]} == questions

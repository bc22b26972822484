"""What `tools/native_layers.py` says of the hook, and of hooks made up to breach each of its rules."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIELDS = " ".join(f"int field{number};" for number in range(26))


def check(*arguments: object) -> tuple[int, str]:
    """The tool's exit status and what it prints."""
    command = [sys.executable, ROOT / "tools" / "native_layers.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_the_hook_calls_downward():
    """No layer of the hook calls, includes or touches one above it, and no files call each other in a circle."""
    assert (0, "") == check()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"link/a.c": "void low(void)\n{\n    high();\n}\n"}, "link/a.c: calls high of work/b.c"),
        ({"link/a.c": "static void low(void)\n{\n    quick();\n}\n"}, "link/a.c: calls quick of work/b.h"),
        ({"link/a.c": '#include "work/b.h"\n'}, "link/a.c: includes work/b.h"),
        (
            {"link/a.c": "int low(struct slot *slot)\n{\n    return slot->token.asked;\n}\n"},
            "link/a.c: uses slot.token",
        ),
        ({"a.c": ""}, "a.c: lies in no layer"),
        ({"link/a.h": f"struct wide {{ {FIELDS} }};\n"}, "link/a.h: struct wide has 26 fields"),
        (
            {"work/a.c": "void one(void)\n{\n    two();\n}\n", "work/c.c": "void two(void)\n{\n    one();\n}\n"},
            "call each other in a circle",
        ),
    ],
)
def test_a_breach_is_named(files: dict[str, str], said: str, tmp_path: Path):
    """Each breach is one line that names the file and what it may not do."""
    for name, text in {
        "work/b.c": "void high(void)\n{\n}\n",
        "work/b.h": "static inline void quick(void)\n{\n}\n",
        **files,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    status, lines = check(tmp_path)

    assert (1, 1) == (status, lines.count("\n"))
    assert said in lines


def test_comments_text_and_lower_layers_are_no_breach(tmp_path: Path):
    """A name in a comment or in quotes is no call, and a call downward is none either."""
    for name, text in {
        "link/a.c": '/* high() */\nconst char *low(void)\n{\n    return "high";\n}\n',
        "work/b.c": '#include "link/a.h"\nvoid high(void)\n{\n    low();\n}\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert (0, "") == check(tmp_path)

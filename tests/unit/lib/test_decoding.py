"""Decoding by several threads."""

import ast
import subprocess
import sys
from pathlib import Path

import aliquot

RACE = """
import sys, threading, msgspec
from aliquot.lib.decoding import convert_to, decode_json
sys.setswitchinterval(1e-6)
body = b'{"c0": {"b0": [{"a0": {"x": [1]}}]}, "c19": {"b19": [{"a19": {"x": [1]}}]}}'
for n in range(50):
    inner = msgspec.defstruct(f"I{n}", [(f"a{i}", dict[str, tuple[int, ...]] | None, None) for i in range(20)])
    middle = msgspec.defstruct(f"M{n}", [(f"b{i}", list[inner] | None, None) for i in range(20)])
    outer = msgspec.defstruct(f"O{n}", [(f"c{i}", middle | None, None) for i in range(20)])
    together, found = threading.Barrier(3), []
    def first():
        together.wait()
        found.append(decode_json(body, outer))
    def converted():
        together.wait()
        found.append(convert_to(outer, msgspec.json.decode(body)))
    threads = [threading.Thread(target=target) for target in (first, first, converted)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert [{"x": (1,)}] * 3 == [each.c19.b19[0].a19 for each in found]
"""


def test_threads_that_decode_a_type_for_the_first_time_at_once_all_get_it():
    """With msgspec alone the process of this test ends with SIGSEGV, at the latest in its tenth round."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, timeout=100)
    assert (0, "") == (done.returncode, done.stderr)


def test_types_are_decoded_here_alone():
    """Nothing else calls what builds a type, but `model`, which may not know threads and builds its own when loaded."""
    root = Path(aliquot.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                text = ast.unparse(node.func)
                typed = any(keyword.arg == "type" for keyword in node.keywords)
                if text in ("msgspec.convert", "msgspec.json.Decoder") or (text == "msgspec.json.decode" and typed):
                    found.add(str(path.relative_to(root)))
    assert {"lib/decoding.py", "model/sharepod.py"} == found

"""A test whose assertion depends on a clock, a rate or a share is measured apart from others; checked on the tests."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
CHECKED = ("unit", "property", "integration", "e2e", "e2e_web")
CLOCK = re.compile(r"\b(?:time\.)?(?:monotonic|perf_counter|process_time|thread_time)(?:_ns)?\(|\btime\.time(?:_ns)?\(")
# What programs that run beside others get or need; in unit and property tests these are figures of virtual time.
SHARES = re.compile(r"(?:^|_)(?:share|shares|rate|busy|usage)(?:_|$)")
BOUNDS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def marked(node: ast.AST, module: ast.Module) -> bool:
    """Whether a test, or its whole module, carries the marker `real_time`."""
    decorators = getattr(node, "decorator_list", [])
    assigned = [n.value for n in module.body if isinstance(n, ast.Assign) and "pytestmark" in ast.unparse(n.targets[0])]
    return any("real_time" in ast.unparse(part) for part in (*decorators, *assigned))


def spans(test: ast.FunctionDef | ast.AsyncFunctionDef, programs: set[str]) -> set[str]:
    """The names in a test that hold a difference of a clock's times, taken by the test or by a program that it runs.

    `programs` are the module's constants whose text reads a clock: what a test that names one gets back may be a time.
    """
    stamps: set[str] = set()
    found: set[str] = set()
    text = ast.unparse(test)
    measures = bool(CLOCK.search("".join(n.value for n in strings(test)))) or any(
        re.search(rf"\b{name}\b", text) for name in programs
    )
    for _ in range(3):  # until names of names are known
        for node in ast.walk(test):
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            if is_span(node.value, stamps, found) or (
                measures and re.search(r"\.(run|read|answer)\(|race\(", ast.unparse(node.value))
            ):
                found |= names
            elif CLOCK.search(ast.unparse(node.value)):
                stamps |= names
    return found


def strings(node: ast.AST) -> Iterator[ast.Constant]:
    """The texts in a piece of code."""
    return (n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def is_span(value: ast.AST, stamps: set[str], known: set[str]) -> bool:
    """Whether an expression has a difference of times, or a name that holds one."""
    for node in parts(value):
        if isinstance(node, ast.Name) and node.id in known:
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            words = ast.unparse(node)
            if CLOCK.search(words) or any(re.search(rf"\b{name}\b", words) for name in stamps):
                return True
    return False


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression, but for what `len` counts: that is chosen by its time and not bounded by it."""
    yield node
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "len"):
        for child in ast.iter_child_nodes(node):
            yield from parts(child)


def compares(test: ast.Assert) -> Iterator[ast.Compare]:
    """The comparisons of an assertion."""
    return (node for node in parts(test.test) if isinstance(node, ast.Compare))


def upper_bounds(test: ast.Assert) -> Iterator[ast.AST]:
    """What an assertion says to be below something, or near it: a busy machine makes times longer, not shorter."""
    for node in compares(test):
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(operator, ast.Lt | ast.LtE):
                yield left
            elif isinstance(operator, ast.Gt | ast.GtE):
                yield right
            elif "approx" in ast.unparse(node):
                yield node


def measured_words(test: ast.Assert) -> bool:
    """Whether an assertion bounds what programs get, such as a share or a rate, by more than its being there."""
    for node in compares(test):
        bounds = any(isinstance(operator, BOUNDS) for operator in node.ops) or "approx" in ast.unparse(node)
        others = [
            side for side in (node.left, *node.comparators) if not isinstance(side, ast.Constant) or side.value != 0
        ]
        named = [
            word
            for n in ast.walk(node)
            for word in (getattr(n, "id", ""), getattr(n, "attr", ""), getattr(n, "value", ""))
            if isinstance(word, str) and SHARES.search(word)
        ]
        if bounds and len(others) > 1 and named and any(isinstance(n, ast.Constant) for n in ast.walk(node)):
            return True
    return False


def unmarked(path: Path) -> list[str]:
    """The tests of a file that assert on a clock, a rate or a share and do not say so."""
    module = ast.parse(path.read_text())
    virtual = path.relative_to(TESTS).parts[0] in ("unit", "property")
    programs = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign) and any(CLOCK.search(text.value) for text in strings(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for test in ast.walk(module):
        if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) or not test.name.startswith("test_"):
            continue
        if marked(test, module):
            continue
        known = spans(test, programs)
        for node in ast.walk(test):
            if isinstance(node, ast.Assert) and (
                any(
                    is_span(side, set(), known) or (CLOCK.search(ast.unparse(side)) and "-" in ast.unparse(side))
                    for side in upper_bounds(node)
                )
                or (not virtual and measured_words(node))
            ):
                found.append(f"{path.relative_to(TESTS)}:{node.lineno} {test.name}: {ast.unparse(node.test)}")
    return found


def test_what_depends_on_time_is_measured_apart():
    """An assertion that bounds a time, a rate or a share stands in a test with the marker real_time."""
    paths = [path for folder in CHECKED for path in sorted((TESTS / folder).rglob("test_*.py"))]

    assert [] == [line for path in paths for line in unmarked(path)]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("t = time.monotonic(); work(); assert time.monotonic() - t < 5", 1),
        ("t = time.monotonic(); work(); took = time.monotonic() - t; assert took < 5", 1),
        ("t = time.monotonic(); work(); took = time.monotonic() - t; assert took > 5", 0),
        ("t = time.process_time(); work(); assert 5 > time.process_time() - t", 1),
        ("took = machine.run('t = time.monotonic(); answer(time.monotonic() - t)'); assert took < 1", 1),
        ("while True:\n        assert time.monotonic() < until_s", 0),
        ("assert scene.share > 0.98", 1),
        ("assert scene.share > 0", 0),
        ("assert 0.5 == pytest.approx(shares['a'], abs=0.1)", 1),
        ("assert len(events) < 5", 0),
    ],
)
def test_the_check_tells_a_bound_on_time_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, found: int
):
    """Upper bounds on times and any bound on a share are found; lower bounds on times and deadlines are not."""
    monkeypatch.setattr(f"{__name__}.TESTS", tmp_path)
    path = tmp_path / "integration" / "test_it.py"
    path.parent.mkdir()
    path.write_text(f"def test_it():\n    {body}\n")

    assert found == len(unmarked(path))

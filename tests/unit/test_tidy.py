"""What the code must look like, checked on the code itself."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON_LINES_HARD = 600
FUNCTION_LINES_HARD = 70
GENERATED = ("native/include/", "native/symbols/", "/gen/", "generated", "_pb2")
# A call is banned where another way is meant: the reason is the message.
BANNED_IN_C = {
    "exit": "the hook never ends its host",
    "abort": "the hook never ends its host",
    "signal": "signals belong to the application",
    "atexit": "what runs at exit is in own.c: it only keeps our threads out of the driver",
    "umask": "the umask belongs to the application",
    "strcpy": "use a bounded copy",
    "sprintf": "use snprintf",
    "__builtin_expect": "use LIKELY or UNLIKELY: it takes no pointer, as only the compiler of the wheels says",
}
# Textual calls the methods of the application and its dialogs.
CALLED_FROM_OUTSIDE = {"top_app.py", "top_dialogs.py"}
PASSIVE = {"property", "cached_property", "staticmethod", "classmethod", "cache", "dataclass"}
UNITLESS_TIME = re.compile(r"^(?:.*_)?(?:timeout|duration|interval|delay|elapsed|quota|window|deadline)$")


def tracked(*suffixes: str) -> list[Path]:
    """Files of the repository with one of these suffixes, in order."""
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / line for line in out.stdout.splitlines() if line.endswith(suffixes)]
    return sorted(path for path in files if path.exists())


def handwritten(paths: list[Path]) -> list[Path]:
    """Leaves out what a generator writes."""
    return [path for path in paths if not any(mark in str(path.relative_to(ROOT)) for mark in GENERATED)]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a Python file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_stay_short():
    """No handwritten file grows past the hard limit of 600 lines."""
    files = handwritten(tracked(".py", ".c", ".h"))
    long = {str(p.relative_to(ROOT)): n for p in files if (n := len(p.read_text().splitlines())) > PYTHON_LINES_HARD}

    assert {} == long


def test_functions_stay_short():
    """No Python function grows past the hard limit of 70 lines."""
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in tracked(".py")
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_HARD
    ]

    assert [] == long


@pytest.mark.parametrize(("call", "reason"), sorted(BANNED_IN_C.items()))
def test_the_hook_never_calls(call: str, reason: str):
    """The hook calls nothing that belongs to its host."""
    pattern = re.compile(rf"(?<![\w.>]){call}\s*\(")
    allowed = {"atexit": "own.c", "__builtin_expect": "base.h"}.get(call)
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {reason}"
        for path in handwritten(tracked(".c", ".h"))
        if "native/hook" in str(path) and path.name != allowed
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line) and not line.lstrip().startswith(("*", "/*", "//"))
    ]

    assert [] == hits


def test_times_carry_their_unit():
    """A public parameter that is a time says its unit in its name."""
    bare = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}({arg.arg})"
        for path in tracked(".py")
        if "src/aliquot" in str(path)
        for node in functions(path)
        for arg in (*node.args.args, *node.args.kwonlyargs)
        if UNITLESS_TIME.match(arg.arg)
        and isinstance(arg.annotation, ast.Name)
        and arg.annotation.id in {"int", "float"}
    ]

    assert [] == bare


def test_bounds_are_called_max():
    """The name of an upper bound has `max_`, as in Python's own library, and no other word for it."""
    named = re.compile(r"^_*most_|.most_(?:s|ms|us|ns|mib|milli|bytes)$", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked(".py")
        for word in sorted(set(re.findall(r"(?<![\w\"'])[A-Za-z_]\w*", path.read_text())))
        if named.search(word) and word not in ("most_", "most_common")
    ]

    assert [] == found


def test_public_modules_say_what_they_are():
    """Every module of the package that has code opens with a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked(".py")
        if "src/aliquot" in str(path)
        and path.read_text().strip()
        and not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert [] == silent


def test_every_test_file_has_a_name_of_its_own():
    """Two files of tests with one name cannot be collected together."""
    names = Counter(path.name for path in tracked(".py") if path.name.startswith("test_"))
    assert [] == [name for name, count in names.items() if count > 1]


def test_every_decision_has_a_number_of_its_own():
    """No two decisions have one number; each has a status and a date under its title, and its line in the index."""
    files = sorted(path for path in tracked(".md") if path.parent.name == "decisions" and path.name != "README.md")
    numbers = Counter(path.name[:4] for path in files)
    assert [] == [number for number, count in numbers.items() if count > 1]
    form = re.compile(r"# (\d{4}): ([^\n]+)\n\nStatus: (accepted|superseded by \d{4}), (\d{4}-\d\d-\d\d)\.")
    heads = [form.match(path.read_text()) for path in files]
    assert [path.name[:4] for path in files] == [head and head[1] for head in heads]
    index = (ROOT / "docs/decisions/README.md").read_text()
    lines = [f"| {h[1]} | [{h[2]}]({path.name}) | {h[3]}, {h[4]} |" for path, h in zip(files, heads, strict=True) if h]
    assert lines == [line for line in index.splitlines() if line.startswith("| 0")]


def test_every_test_states_a_behaviour():
    """Every test has a docstring, which is a sentence of the specification."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in tracked(".py")
        if "tests/" in str(path)
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]

    assert [] == silent


def test_native_files_are_all_built():
    """No C or assembly file lies in native/ without a CMakeLists that names it or its folder's glob."""
    orphans = []
    for path in tracked(".c", ".S"):
        if "native/" not in str(path):
            continue
        lists = [p / "CMakeLists.txt" for p in path.parents if (p / "CMakeLists.txt").exists() and p != ROOT]
        text = "".join(p.read_text() for p in lists)
        if path.name not in text and "GLOB" not in text:
            orphans.append(str(path.relative_to(ROOT)))

    assert [] == orphans


@pytest.mark.parametrize("generator", ["gen_abi.py", "gen_symbols.py", "gen_hook.py", "gen_figures.py"])
def test_generated_files_are_fresh(generator: str):
    """What a generator would write is what is committed."""
    done = subprocess.run([sys.executable, ROOT / "tools" / generator, "--check"], capture_output=True, text=True)

    assert 0 == done.returncode, done.stderr


def test_every_definition_is_used():
    """Every function and class of the package is named once more somewhere in what is shipped, not in tests alone."""
    texts = [
        path.read_text(errors="ignore") for path in tracked(".py", ".toml", ".html", ".txt", ".js") if shipped(path)
    ]
    named = Counter(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text))
    dead = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in handwritten(tracked(".py"))
        if "src/aliquot" in str(path) and path.name not in CALLED_FROM_OUTSIDE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not node.name.startswith("__") and named[node.name] == 1 and not called_by_decorator(node)
    ]

    assert [] == dead


def shipped(path: Path) -> bool:
    """Whether a file is more than a test."""
    return str(path.relative_to(ROOT)).startswith(("src/", "tools/", "bench/", "examples/", "pyproject.toml"))


def called_by_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a decorator hands the definition to what calls it: a command, a route; a property does not."""
    return any(ast.unparse(d).partition("(")[0] not in PASSIVE for d in node.decorator_list)


def words_that_are_not_used() -> list[tuple[str, str, tuple[str, ...]]]:
    """The rows of the glossary's last table: a word, what to write instead, and the texts that keep it.

    A word counts with its endings, also as a part of a name such as `has_books`.
    """
    table = (ROOT / "docs/glossary.md").read_text().partition("## Words that are not used")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return [
        (
            rf"(?<![a-z]){word.removeprefix('to ')}(?:s|ed|ing|ings)?(?![a-z])",
            instead,
            tuple(re.findall("`(.+?)`", kept)),
        )
        for words, instead, kept in rows[2:]
        for word in words.split(", ")
    ]


@pytest.mark.parametrize(
    ("words", "instead", "kept"), [(r"\bcan" + r" not\b", "cannot", ()), *words_that_are_not_used()]
)
def test_words_that_are_not_used(words: str, instead: str, kept: tuple[str, ...]):
    """No file or its name has words for which the glossary has others; names on the wire stay as they are."""
    pattern = re.compile(words, re.IGNORECASE)
    found = [
        f"{name}:{number}: write {instead}"
        for path in tracked(".py", ".c", ".h", ".S", ".md", ".yaml", ".toml", ".html", ".sh", ".txt")
        if (name := str(path.relative_to(ROOT))) not in ("docs/glossary.md", "tests/unit/test_tidy.py")
        and "vendor" not in name
        and "tests/data" not in name
        for number, line in enumerate([name, *path.read_text(errors="ignore").splitlines()])
        if pattern.search(line) and not any(text in line for text in kept)
    ]

    assert [] == found


@pytest.mark.parametrize("word", ["some" + "body", "no" + "body", "every" + "body", "who" + "ever"])
def test_prose_names_its_subject(word: str):
    """Documentation, comments and messages name the program or person that acts instead of an indefinite pronoun."""
    pattern = re.compile(rf'(?<!")\b{word}\b(?!")', re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: name the subject"
        for path in tracked(".py", ".c", ".h", ".md", ".yaml", ".toml", ".html")
        if str(path.relative_to(ROOT)).startswith(("src/", "native/", "docs/", "deploy/", "README.md"))
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
        if pattern.search(line)
    ]

    assert [] == found

"""Prints how the package is built, as a table of counts and below it what is counted.

Nothing is imported or run: the figures come from parsing `src` without generated files. An import counts wherever it
stands, also within a function or for types alone; cycles are counted with and without those. Lines of code, and what a
reader has to jump between (files, functions, imports), are of the product alone; the rest is of product and laboratory
together.

    tools/structure.py [--details]
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = "aliquot"
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
GPU = re.compile(r"^_?(Gpu|Device|Whole|Card)(?!Plugin)")
IDENTITY = {"uuid", "gpu", "gpu_uuid"}
TEXT = re.compile(r"(Annotated\[)?(str|GpuUuid)\b")
NUMBER = {"index", "id"}
SIZE = re.compile(r"memory|mib|milli|share|used")
TIME = re.compile(r"_(ns|us|ms|s)$")
AMOUNT = {"request", "request_milli", "whole"}
LABELS = {"labels", "affinity"}
SENTENCES = 3
LACK = re.compile(r"unreserved|were asked|takes no pods|has no GPU|GPUs that Aliquot knows of|not together")
FILLS = {"write", "write_text", "write_bytes", "copyfile", "dump"}
MOVES = {"replace", "rename", "mkdir"}


@dataclass
class Module:
    """One file; `always` and `sometimes` are what it imports of the package when it is loaded, and otherwise."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    always: set[str] = field(default_factory=set)
    sometimes: set[str] = field(default_factory=set)
    names: set[tuple[str, str]] = field(default_factory=set)


def modules(source: Path) -> dict[str, Module]:
    """Every handwritten module of the packages by its dotted name, with its imports resolved."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        if "_pb2" in path.name:
            continue
        text = path.read_text()
        dotted = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        found[dotted] = Module(dotted, path, text, ast.parse(text))
    for module in found.values():
        _imports(module, module.tree, found, late=False)
    return found


def _imports(module: Module, node: ast.AST, known: Mapping[str, Module], *, late: bool) -> None:
    for child in ast.iter_child_nodes(node):
        typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        for target, name in _targets(module, child):
            whole = f"{target}.{name}" if f"{target}.{name}" in known else target
            if whole in known and whole != module.name:
                (module.sometimes if late else module.always).add(whole)
                module.names.add((whole, name))
        _imports(module, child, known, late=late or typing or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def _targets(module: Module, node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        folder = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
        above = folder.split(".")[: len(folder.split(".")) - node.level + 1]
        base = ".".join([*above, node.module or ""]).rstrip(".") if node.level else node.module or ""
        yield from ((base, alias.name) for alias in node.names)


def classes(found: Mapping[str, Module]) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Every class with its module."""
    for module in found.values():
        yield from ((module, node) for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def _fields(node: ast.ClassDef) -> dict[str, str]:
    """The fields that a class has beyond its bases', with their types as written."""
    return {
        f.target.id: ast.unparse(f.annotation)
        for f in node.body
        if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
    }


def gpu_classes(found: Mapping[str, Module]) -> list[str]:
    """Records of a GPU: with an identity and a size among their fields, or called so; with who else imports each.

    A class that is called so has to say which GPU it is about: the path of a device file, an id that kubelet counts and
    the turns on a GPU are no copies of its facts. Nor are requests, which name a GPU to ask for it; they have their own
    row.

    The identity is the GPU's UUID as text, or in a class that is called so its number. A field `gpu` of another type is
    no copy: it holds a record that is counted itself, as the state of a grant does, or says by number which GPU an
    explanation or a process is about. Times are not sizes: what a tenant was charged belongs to the tenant. A class
    that extends a record has its fields once, where the record is.
    """
    lines = []
    requests = {*request_forms(found)}
    for module, node in classes(found):
        fields = _fields(node)
        named = {f for f in fields.keys() & IDENTITY if TEXT.match(fields[f])}
        record = named and any(SIZE.search(f) and not TIME.search(f) for f in fields)
        called = GPU.match(node.name) and (named or fields.keys() & NUMBER)
        if (called or record) and f"{module.name}.{node.name}" not in requests:
            users = sum((module.name, node.name) in other.names for other in found.values())
            lines.append(f"{module.name}.{node.name} ({users} other modules)")
    return sorted(lines)


def request_forms(found: Mapping[str, Module]) -> list[str]:
    """Classes that are a request for GPUs: with an amount, labels and the name of a vGPU among their fields."""
    lines = []
    for module, node in classes(found):
        fields = _fields(node)
        if fields.keys() & AMOUNT and fields.keys() & LABELS and "gpu_id" in fields:
            lines.append(f"{module.name}.{node.name}")
    return sorted(lines)


def lack_words(found: Mapping[str, Module]) -> list[str]:
    """Modules with three or more sentences about what a node or GPU lacks for a request; docstrings do not count."""
    lines = []
    for module in found.values():
        said = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
        texts = [n for n in ast.walk(module.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        count = sum(bool(LACK.search(n.value)) for n in texts if id(n) not in said)
        if count >= SENTENCES:
            lines.append(f"{module.name} ({count} texts)")
    return sorted(lines)


def code_lines(module: Module) -> int:
    """Lines that hold code: no docstrings, comments or blank lines."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def functions(found: Mapping[str, Module]) -> list[str]:
    """Every function and method."""
    return [
        f"{module.name}.{node.name}"
        for module in found.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def single_callers(found: Mapping[str, Module]) -> list[str]:
    """Private functions whose name stands once more in their file."""
    lines = []
    for module in found.values():
        words = Counter(re.findall(r"[A-Za-z_]\w*", module.text))
        lines += [
            name
            for name in functions({module.name: module})
            if re.match(r"_[^_]", short := name.rpartition(".")[2]) and words[short] == 2
        ]
    return lines


def fragments(found: Mapping[str, Module]) -> list[str]:
    """Modules that exactly one other module imports."""
    importers = defaultdict(list)
    for module in found.values():
        for target in module.always | module.sometimes:
            importers[target].append(module.name)
    return [f"{name} <- {importers[name][0]}" for name in sorted(found) if len(importers[name]) == 1]


def widest(found: Mapping[str, Module]) -> list[str]:
    """What the module imports that imports the most of our own."""
    module = max(found.values(), key=lambda m: len(m.always | m.sometimes))
    return [f"{module.name} -> {other}" for other in sorted(module.always | module.sometimes)]


def shared_names(found: Mapping[str, Module]) -> list[str]:
    """Public names that two or more classes have, but for those that are private to their module."""
    where = defaultdict(list)
    for module, node in classes(found):
        if not node.name.startswith("_"):
            where[node.name].append(module.name.removeprefix("aliquot."))
    return [f"{name}: {', '.join(at)}" for name, at in sorted(where.items()) if len(at) > 1]


def cycles(found: Mapping[str, Module], *, late: bool) -> list[str]:
    """Groups of modules that import one another, round about."""
    graph = {m.name: m.always | (m.sometimes if late else set()) for m in found.values()}
    reach = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset(o for o in reach[name] if name in reach[o]) for name in graph if name in reach[name]}
    return [", ".join(sorted(group)) for group in sorted(groups, key=sorted)]


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(graph[name])
    return seen


def _calls(node: ast.AST) -> Iterator[tuple[str, str, int, int]]:
    """Calls of methods that fill or move files: of what, which, with how many arguments, in which line."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in FILLS | MOVES:
            yield ast.unparse(call.func.value), call.func.attr, len(call.args), call.lineno


def whole_writers(found: Mapping[str, Module]) -> list[str]:
    """Functions that fill a file and then put it in another's place.

    One that moves a file away before it writes rotates a log, and one that makes what it moves with mkdir moves a
    folder: neither could be `write_whole`.
    """
    lines = []
    for module in found.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = list(_calls(node))
                filled = [line for _, name, _, line in calls if name in FILLS]
                folders = {of for of, name, _, _ in calls if name == "mkdir"}
                moved = [
                    line for of, name, arguments, line in calls
                    if name in ("replace", "rename") and arguments == 1 and of not in folders
                ]  # fmt: skip
                if filled and moved and min(filled) < max(moved):
                    lines.append(f"{module.name}.{node.name}")
    return lines


def servers(found: Mapping[str, Module]) -> list[str]:
    """Modules that configure or start uvicorn."""
    return [
        m.name for m in found.values() if re.search(r"^import uvicorn|^\s+import uvicorn", m.path.read_text(), re.M)
    ]


def measures(found: Mapping[str, Module]) -> dict[str, list[str]]:
    """What is counted, by what it is."""
    product = {name: module for name, module in found.items() if name.partition(".")[0] == PRODUCT}
    return {
        "files of the product": [name for name, module in product.items() if code_lines(module)],
        "functions of the product": functions(product),
        "private functions with one caller": single_callers(product),
        "modules with one importer": fragments(product),
        "modules that one module imports, at most": widest(product),
        "records of a GPU": gpu_classes(found),
        "forms of a request": request_forms(found),
        "modules that word what a request lacks": lack_words(found),
        "public class names with more than one class": shared_names(found),
        "import cycles when loaded": cycles(found, late=False),
        "import cycles with late and typing imports": cycles(found, late=True),
        "functions that write a file whole": whole_writers(found),
        "modules that start uvicorn": servers(found),
        "import-linter contracts": [
            contract["name"]
            for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        ],
    }


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--details", action="store_true", help="also print what is counted")
    details = parser.parse_args(arguments).details
    found = modules(ROOT / "src")
    counted = measures(found)
    for package, what in ((PRODUCT, "the product"), ("aliquot_lab", "the laboratory")):
        lines = sum(code_lines(m) for m in found.values() if m.name.partition(".")[0] == package)
        print(f"{lines:7}  lines of code of {what}")
    for what, listed in counted.items():
        print(f"{len(listed):7}  {what}")
    for what, listed in counted.items() if details else ():
        print(f"\n{what}", *(f"  {line}" for line in listed), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

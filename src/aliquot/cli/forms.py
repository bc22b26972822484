"""The forms of `-o`, and kubectl's two that pick fields: `jsonpath=TEMPLATE` and `custom-columns=SPEC`.

Paths are evaluated by python-jsonpath (RFC 9535). What kubectl has around them is here: text between braces, quoted
text, `{range}` and `{end}`, dots that are escaped by a backslash, and columns. As in kubectl a field that is not there
is empty in a template and `<none>` in a column.

Source: https://kubernetes.io/docs/reference/kubectl/jsonpath/
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from aliquot.model.errors import UserError

Command = TypeVar("Command", bound=Callable[..., Any])
JSONPATH: Final = "jsonpath"
COLUMNS: Final = "custom-columns"
NONE: Final = "<none>"
_EXAMPLES: Final = {JSONPATH: "'{.items[*].name}'", COLUMNS: "NAME:.name,MEMORY:.memory_mib"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_QUOTED: Final = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')""")
_BRACED: Final = re.compile(rf"""\{{((?:{_QUOTED.pattern}|[^}}"'])*)""")
_NAME: Final = re.compile(r"\.((?:\\.|[^.\[\\\]])+)")
_ESCAPED: Final = re.compile(r"\\(.)")


class BadPath(UserError):
    """A template or a path that cannot be read."""


@dataclass(frozen=True)
class Path:
    """A path from the object at hand, or from the whole (`$`)."""

    text: str
    from_root: bool
    compiled: Any

    @classmethod
    def of(cls, text: str) -> Path:
        """From `.name`, `name`, `$.name`, `@`, `.` or `['name']`.

        Raises:
            BadPath: it is no path.
        """
        from jsonpath import JSONPathEnvironment
        from jsonpath.exceptions import JSONPathError

        written = text.strip()
        if not written:
            raise BadPath("a path is empty; write one such as .name or .gpus[0]")
        rest = written.lstrip("$@") if written[:1] in ("$", "@") else written
        if rest and rest[0] not in ".[":
            rest = f".{rest}"
        elif rest.startswith(".["):
            rest = rest[1:]

        def bracketed(match: re.Match[str]) -> str:
            """A name with escaped dots as a name in brackets."""
            name = _ESCAPED.sub(r"\1", match[1])
            return match[0] if name == match[1] else f"[{json.dumps(name)}]"

        parts = _QUOTED.split(rest if rest != "." else "")  # every second part is quoted text, which stays as it is
        parts[::2] = [_NAME.sub(bracketed, part) for part in parts[::2]]
        try:
            compiled = JSONPathEnvironment().compile(f"${''.join(parts)}")
        except (JSONPathError, ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise BadPath(f'"{written:.60}" is not a path: {reason}; write one such as .name or .gpus[0]') from None
        return cls(written, written.startswith("$"), compiled)

    def found(self, here: Any, root: Any) -> list[Any]:
        """What it leads to."""
        return list(self.compiled.findall(root if self.from_root else here))


@dataclass(frozen=True)
class _Range:
    """`{range PATH}...{end}`: its body for each thing that the path leads to."""

    path: Path
    body: list[str | Path | _Range]


class Template:
    """Text with paths in braces."""

    def __init__(self, text: str) -> None:
        """Read it.

        Raises:
            BadPath: it is no template.
        """
        self._parts: list[str | Path | _Range] = []
        open_parts = [self._parts]
        for braced, piece in _pieces(text):
            word = piece.strip()
            if not braced:
                open_parts[-1].append(piece)
            elif _QUOTED.fullmatch(word):
                open_parts[-1].append(_ESCAPED.sub(lambda match: _ESCAPES.get(match[1], match[1]), word[1:-1]))
            elif word == "end":
                if len(open_parts) == 1:
                    raise BadPath("{end} has no {range} before it")
                open_parts.pop()
            elif word == "range" or word.startswith("range "):
                inner = _Range(Path.of(word.removeprefix("range")), [])
                open_parts[-1].append(inner)
                open_parts.append(inner.body)
            else:
                open_parts[-1].append(Path.of(word))
        if len(open_parts) > 1:
            raise BadPath("{range} has no {end} after it")
        if not self.paths:
            raise BadPath(f'"{text:.60}" has no path in braces; write one such as {_EXAMPLES[JSONPATH]}')

    def filled(self, whole: Any) -> str:
        """The text for an object."""
        return "".join(_filled(self._parts, whole, whole))

    @property
    def paths(self) -> list[Path]:
        """The paths from the whole object, without those inside of ranges."""
        return [part.path if isinstance(part, _Range) else part for part in self._parts if not isinstance(part, str)]


def _filled(parts: Sequence[str | Path | _Range], here: Any, root: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Path):
            yield " ".join(_text(value) for value in part.found(here, root))
        else:
            for each in part.path.found(here, root):
                yield from _filled(part.body, each, root)


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Whether in braces, and what is there.

    Raises:
        BadPath: a brace or a quote is not closed.
    """
    at = 0
    while at < len(text):
        inner = _BRACED.match(text, at)
        if inner is None:
            piece = text[at:].partition("{")[0]
            yield False, piece
            at += len(piece)
            continue
        closed = inner.end()
        if closed == len(text):
            raise BadPath(f'"{text[at:][:61]}" has no closing brace')
        if text[closed] != "}":
            raise BadPath(f"{text[closed:][:60]} has no closing quote")
        yield True, inner[1]
        at = closed + 1


def _text(value: Any) -> str:
    """A value as kubectl prints it: text plain, everything else as JSON, nothing for null."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class CustomColumns:
    """`HEADER:PATH,HEADER:PATH`: a table with a row for each object."""

    def __init__(self, text: str) -> None:
        """Read it.

        Raises:
            BadPath: it is no list of columns.
        """
        self._paths: dict[str, Path] = {}
        columns, depth, at = [""], 0, 0
        while at < len(text):  # commas in brackets or in quotes part no columns
            quoted = _QUOTED.match(text, at)
            piece = quoted[0] if quoted else text[at]
            depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(piece, 0)
            if piece == "," and depth == 0:
                columns.append("")
            else:
                columns[-1] += piece
            at += len(piece)
        for column in columns:
            header, colon, path = column.partition(":")
            if not (header.strip() and colon and path.strip()):
                raise BadPath(f'"{column:.60}" is not a column; write HEADER:PATH, such as {_EXAMPLES[COLUMNS]}')
            if header.strip() in self._paths:
                raise BadPath(f'the column "{header.strip():.60}" is there twice; give each a header of its own')
            path = path.strip()
            if path.startswith("{") != path.endswith("}"):
                missing = "closing" if path.startswith("{") else "opening"
                raise BadPath(f'"{path:.60}" has no {missing} brace')
            self._paths[header.strip()] = Path.of(path.removeprefix("{").removesuffix("}"))

    @property
    def paths(self) -> list[Path]:
        """The paths, in the order of the columns."""
        return list(self._paths.values())

    def table(self, objects: Sequence[Any]) -> list[list[str]]:
        """The headers, and a row for each object."""
        rows = [list(self._paths)]
        for each in objects:
            values = ([value for value in path.found(each, each) if value is not None] for path in self._paths.values())
            rows.append([",".join(map(_text, found)) or NONE for found in values])
        return rows


@dataclass(frozen=True)
class Form:
    """How facts are printed: a word such as `wide`, and the template or the columns where it picks fields."""

    word: str
    template: Template | None = None
    columns: CustomColumns | None = None

    def picked(self, objects: Sequence[Any], whole: Any, *, headers: bool = True) -> str | None:
        """The fields of plain objects; None where this form picks none. A template is about the `whole`.

        As with kubectl it is no error that a field does not exist. A sentence on stderr says which fields there are
        where not one of the paths leads to anything.
        """
        if self.template is not None:
            self._tell_unmatched(self.template.paths, objects, [whole])
            return self.template.filled(whole)
        if self.columns is None:
            return None
        from aliquot.cli.tables import aligned

        self._tell_unmatched(self.columns.paths, objects, objects)
        lines = list(aligned(self.columns.table(objects)))
        return "".join(f"{line}\n" for line in lines[0 if headers else 1 :])

    def _tell_unmatched(self, paths: Sequence[Path], objects: Sequence[Any], roots: Sequence[Any]) -> None:
        if not objects or any("?" in path.text or path.found(root, root) for path in paths for root in roots):
            return  # a filter that nothing passes is an answer
        items = self.template is not None and list(roots[0]) == ["items"]
        where, fields = ("each of .items", objects[0]) if items else ("the object", roots[0])
        click.echo(f"aliquot: -o {self.word}: nothing matches; {where} has {', '.join(fields)}", err=True)


def text_of(word: str, facts: Any, *, indent: int | None = 2) -> str:
    """Plain facts as JSON or YAML."""
    if word == "json":
        return json.dumps(facts, indent=indent)
    import yaml

    return yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)


def show(form: str, facts: Any, lines: Callable[[], Iterable[str]]) -> None:
    """Print facts in a form; `lines` is that for people, in which sentences go on in another line."""
    from aliquot.cli.tables import UNBOUNDED, columns, wrapped

    if form in ("json", "yaml"):
        click.echo(text_of(form, facts), nl=form == "json")
    else:
        width = UNBOUNDED if form == "wide" else columns()
        for line in lines():
            click.echo("\n".join(wrapped(line, width)))


def form_option(words: Sequence[str]) -> Callable[[Command], Command]:
    """`-o` of a command that lists things; `words` are its forms besides those that pick fields."""
    known = ", ".join(words).replace("csv", "csv (of hours)")
    help_ = f"How to print: {known}, {JSONPATH}=TEMPLATE or {COLUMNS}=COLUMNS. [default: text]"
    return click.option("-o", "--output", "form", type=FormType(words), default="text", metavar="FORM", help=help_)


class FormType(click.ParamType):  # type: ignore[type-arg]
    """What `-o` may be: one of some words, or one of the forms that pick fields."""

    name = "form"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Form:
        """The form by its text.

        Raises:
            UserError: there is no such form, or its template cannot be read.
        """
        if isinstance(value, Form):
            return value
        word, equals, text = str(value).partition("=")
        if not equals and word in self.words:
            return Form(word)
        if word not in _EXAMPLES:
            known = ", ".join([*self.words, f"{JSONPATH}=TEMPLATE"])
            raise UserError(f'-o "{value!s:.40}" is unknown; write {known} or {COLUMNS}=COLUMNS')
        if not text:
            raise UserError(f"-o {word} has nothing to pick; write -o {word}={_EXAMPLES[word]}")
        try:
            return Form(word, Template(text)) if word == JSONPATH else Form(word, columns=CustomColumns(text))
        except BadPath as error:
            raise UserError(f"-o {word}: {error}") from None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words, and the beginnings of the others."""
        words = [*self.words, f"{JSONPATH}=", f"{COLUMNS}="]
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

"""`aliquot get`: what the engine that is up has, once or as it changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from aliquot.cli.calling import ask_engine, full_name, short_name
from aliquot.cli.completion import resource_words
from aliquot.cli.forms import Form, form_option, text_of
from aliquot.cli.hours import CSV, HoursView, hours_options, refuse_hours_options
from aliquot.cli.kinds import HOURS, read_words
from aliquot.cli.tables import Table, aligned, gpu_table, pod_table, tenant_table
from aliquot.lib.misspelt import hint
from aliquot.model.errors import UserError
from aliquot.model.selectors import Term, parse_selector, selects
from aliquot.standalone.wire import GpuFacts, GpusCall, HoursCall, PodFacts, PodsCall, TenantFacts, TenantsCall

WATCH_EVERY_S: Final = 0.3
FORMS: Final = ("text", "wide", "json", "yaml", "name", CSV)
_CHANGING: Final = {"age_s", "events"}
Fact = PodFacts | TenantFacts | GpuFacts
"""One line of a list."""


@dataclass(frozen=True)
class Query:
    """What is listed, and how it is printed."""

    kinds: Sequence[str]
    names: Sequence[str]
    namespace: str
    everywhere: bool
    selector: tuple[Term, ...]
    form: Form
    headers: bool = True
    watched: bool = False


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] [NAME]...", shell_complete=resource_words)
@form_option(FORMS)
@click.option("-n", "--namespace", default="", metavar="NAME", help="Only SharePods of this namespace. [default: all]")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Print the namespaces in a column.")
@click.option(
    "-l", "--selector", default="", metavar="LABELS", help="Only SharePods with these labels: app=web,!debug."
)
@click.option("-w", "--watch", is_flag=True, help="Go on with what changes, until Ctrl-C or the engine's end.")
@click.option("--no-headers", is_flag=True, help="Print tables without their first line.")
@hours_options
def get(
    words: tuple[str, ...],
    form: Form,
    namespace: str,
    everywhere: bool,
    selector: str,
    watch: bool,
    no_headers: bool,
    since: str,
    by: str,
) -> None:
    """List sharepods (also: pods, sp), tenants, gpus, hours or all; with NAMEs only those.

    A selector is Kubernetes': key=value, key!=value, key in (a,b), key notin (a,b), key and !key, with commas between.
    hours are GPU-hours as on the dashboard's page. -o json and yaml print a list, or the one object that was named;
    SharePods in YAML are documents that aliquot apply takes, with what has become of each as its status.
    jsonpath=TEMPLATE and custom-columns=COLUMNS pick its fields as kubectl does, those of a list under .items.
    """
    kinds, names = read_words(words)
    if namespace and everywhere:
        raise UserError("-n names one namespace and -A means all; give one of them")
    if kinds == [HOURS]:
        if selector or watch or no_headers or form.word == "name":
            raise UserError("-l, -w, --no-headers and -o name are for what is there now; hours are a table with totals")
        _print_hours(HoursView(since, by, form, namespace))
        return
    refuse_hours_options(since, by, form, kinds)
    if (namespace or selector) and kinds != ["sharepods"]:
        option = "-n" if namespace else "-l"
        raise UserError(f"{option} is for sharepods; {', '.join(kinds)} have no namespaces and no labels")
    if watch and len(kinds) > 1:
        raise UserError(f"-w watches one kind, {len(kinds)} were named; write one of {', '.join(kinds)}")
    query = Query(kinds, names, namespace, everywhere, parse_selector(selector), form, not no_headers, watch)
    if "sharepods" in kinds and not names:
        _tell_lost(namespace)
    if watch:
        _watch(query)
        return
    found = {kind: _facts(query, kind) for kind in kinds}
    named = {kind: _named(query, kind, facts) for kind, facts in found.items()}
    missing = _missing(query, kinds[0], found[kinds[0]])
    if missing is None or any(named.values()):
        _print(query, named)
    if missing is not None:
        raise missing


def _tell_lost(namespace: str) -> None:
    """Name on stderr the SharePods that a killed engine had: they are in no list, and nothing else tells of them."""
    from aliquot.standalone.roster import told

    lost = ask_engine(PodsCall()).lost
    mine = {name: phase for name, phase in lost.items() if name.startswith(f"{namespace}/" if namespace else "")}
    if mine:
        click.echo(f"aliquot: {told(mine)}", err=True)


def _print_hours(view: HoursView) -> None:
    view.print(ask_engine(HoursCall(view.since)).hours)


def _facts(query: Query, kind: str) -> list[Fact]:
    """Everything of a kind that has the namespace and the labels."""
    if kind == "tenants":
        return [*ask_engine(TenantsCall()).tenants]
    if kind == "gpus":
        return [*ask_engine(GpusCall()).gpus]
    inside = f"{query.namespace}/" if query.namespace else ""
    pods = ask_engine(PodsCall()).pods
    return [pod for pod in pods if pod.name.startswith(inside) and selects(query.selector, pod.labels)]


def _named(query: Query, kind: str, facts: list[Fact]) -> list[Fact]:
    """Those that are named, in that order; all where none is."""
    if not query.names:
        return facts
    known = {name: fact for fact in facts for name in _names(fact)}
    return [known[name] for name in _wanted(query, kind) if name in known]


def _wanted(query: Query, kind: str) -> list[str]:
    return [full_name(name, query.namespace) if kind == "sharepods" else name for name in query.names]


def _missing(query: Query, kind: str, facts: list[Fact]) -> UserError | None:
    """The error of the first name that does not exist."""
    known = {name for fact in facts for name in _names(fact)}
    there = [_names(fact)[0] for fact in facts]
    for name, written in zip(_wanted(query, kind), query.names, strict=True):
        if name not in known:
            near = hint(name, there, prefix=f"{query.namespace or 'default'}/")
            return UserError(f'there is no {kind.removesuffix("s")} "{written:.100}"; {near}')
    return None


def _names(fact: Fact) -> list[str]:
    """What a person may call it."""
    if isinstance(fact, GpuFacts):
        return [str(fact.index), fact.uuid]
    return [fact.name, short_name(fact.name)] if isinstance(fact, TenantFacts) else [fact.name]


def _print(query: Query, found: dict[str, list[Fact]]) -> None:
    form = query.form.word
    every = [fact for kind in found for fact in found[kind]]
    if (text := _picked(query, every)) is not None:
        click.echo(text, nl=False)
        return
    if form == "yaml" and every and list(found) == ["sharepods"]:
        click.echo("---\n".join(_text(form, _applicable(pod)) for pod in every if isinstance(pod, PodFacts)), nl=False)
        return
    if form in ("json", "yaml"):
        told = every[0] if _one(query) else every if len(found) == 1 else found
        click.echo(_text(form, told), nl=form == "json")
        return
    for number, (kind, facts) in enumerate(found.items()):
        if form == "name":
            for fact in facts:
                click.echo(_name(kind, fact))
            continue
        if number:
            click.echo()
        if not facts and kind != "gpus":
            click.echo(f"no {kind}{f' in namespace {query.namespace}' if query.namespace else ''}", err=True)
        else:
            for line in list(aligned(_table(query, facts)))[0 if query.headers else 1 :]:
                click.echo(line)


def _table(query: Query, facts: list[Fact]) -> Table:
    wide = query.form.word == "wide"
    if pods := [fact for fact in facts if isinstance(fact, PodFacts)]:
        reasons = query.watched or any(pod.message for pod in pods)
        return pod_table(pods, wide=wide, namespaces=query.everywhere, reasons=reasons)
    if tenants := [fact for fact in facts if isinstance(fact, TenantFacts)]:
        return tenant_table(tenants, wide=wide)
    return gpu_table([fact for fact in facts if isinstance(fact, GpuFacts)], wide=wide)


def _name(kind: str, fact: Fact) -> str:
    name = _names(fact)[0]
    return f"{kind.removesuffix('s')}/{short_name(name)}"


def _picked(query: Query, facts: list[Fact]) -> str | None:
    import msgspec

    plain = msgspec.to_builtins(facts)
    return query.form.picked(plain, plain[0] if _one(query) else {"items": plain}, headers=query.headers)


def _one(query: Query) -> bool:
    """Whether one thing was named: programs then get that object, and a list in any other case, as of kubectl."""
    return len(query.names) == 1


def _applicable(pod: PodFacts) -> dict[str, Any]:
    """A SharePod as it was applied, with what has become of it as its status."""
    import msgspec

    status = msgspec.to_builtins(pod)
    return {**(status.pop("manifest") or {}), "status": status}


def _text(form: str, facts: Any, *, indent: int | None = 2) -> str:
    import msgspec

    return text_of(form, msgspec.to_builtins(facts), indent=indent)


def _watch(query: Query) -> None:
    """Print what is there, then each thing that changed, in the same form; `-o json` is one object a line."""
    from aliquot.standalone.client import NoEngine

    kind = query.kinds[0]
    shown: dict[str, Fact] = {}
    put = _Lines(query, kind)
    while True:
        try:
            every = _facts(query, kind)
        except NoEngine:
            if not put.begun:
                raise
            click.echo("aliquot: the engine has ended", err=True)
            return
        if not put.begun and (missing := _missing(query, kind, every)) is not None:
            raise missing
        facts = {_names(fact)[0]: fact for fact in _named(query, kind, every)}
        new = [fact for name, fact in facts.items() if name not in shown or _visible(fact) != _visible(shown[name])]
        put([*new, *(_deleted(shown[name]) for name in shown.keys() - facts.keys())])
        shown = facts
        put.begun = True
        time.sleep(WATCH_EVERY_S)


def _visible(fact: Fact) -> Any:
    import msgspec

    plain = msgspec.to_builtins(fact)
    return {key: value for key, value in plain.items() if key not in _CHANGING}


def _deleted(fact: Fact) -> Fact:
    import msgspec

    return msgspec.structs.replace(fact, phase="Deleted", containers=[]) if isinstance(fact, PodFacts) else fact


class _Lines:
    """What a watch prints: what is there as one table, then rows whose columns are as wide as those before them."""

    def __init__(self, query: Query, kind: str) -> None:
        self.begun = False
        self._query, self._kind = query, kind
        self._widths: list[int] = []

    def __call__(self, facts: list[Fact]) -> None:
        """Things, as they are now."""
        import msgspec

        form, columns = self._query.form.word, self._query.form.columns
        if not facts:
            return
        if columns is not None:
            self._rows(columns.table(msgspec.to_builtins(facts)))
        elif form in ("text", "wide"):
            self._rows(_table(self._query, facts))
        else:
            for fact in facts:
                self._alone(form, fact)
        sys.stdout.flush()

    def _alone(self, form: str, fact: Fact) -> None:
        import msgspec

        if form == "name":
            click.echo(_name(self._kind, fact))
        elif form == "json":
            click.echo(_text(form, fact, indent=None))
        elif form == "yaml":
            told = _applicable(fact) if isinstance(fact, PodFacts) else fact
            click.echo(f"---\n{_text(form, told)}", nl=False)
        elif self._query.form.template is not None:
            click.echo(self._query.form.template.filled(msgspec.to_builtins(fact)), nl=False)

    def _rows(self, table: Table) -> None:
        first = not self._widths and self._query.headers
        lines = list(aligned(table, self._widths))
        before = self._widths or [0] * len(table[0])
        self._widths = [max(before[c], *(len(row[c]) for row in table)) for c in range(len(table[0]))]
        for line in lines if first else lines[1:]:
            click.echo(line)

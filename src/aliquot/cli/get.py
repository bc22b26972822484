"""`aliquot get`: what the engine that is up has, once or as it changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec
from click.shell_completion import CompletionItem

from aliquot.cli.calling import ask_engine, full_name, short_name
from aliquot.cli.completion import answer_of, sharepod_names
from aliquot.cli.forms import Form, form_option, text_of
from aliquot.cli.hours import CSV, HOURS, HoursView, hours_options, refuse_hours_options
from aliquot.cli.tables import UNBOUNDED, Table, aligned, columns, ended_lines, gpu_table, pod_table, tenant_table
from aliquot.lib.misspelt import closest, hint
from aliquot.model.errors import AliquotError, UserError
from aliquot.model.selectors import Term, parse_selector, selects
from aliquot.standalone.wire import (
    GpuFacts,
    GpusCall,
    HoursCall,
    InfoCall,
    PodFacts,
    PodsCall,
    TenantFacts,
    TenantsCall,
)

WATCH_EVERY_S: Final = 0.3
FORMS: Final = ("text", "wide", "json", "yaml", "name", CSV)
_CHANGING: Final = {"age_s", "events"}
KINDS: Final = {
    "sharepods": ("sharepod", "sp", "shp", "pods", "pod", "po"),
    "tenants": ("tenant", "tn", "runs", "run"),
    "gpus": ("gpu", "devices", "device"),
}
"""Kind -> its other names."""
ALL: Final = "all"
_NAMES: Final = {
    name: kind for kind, others in {**KINDS, HOURS: ("hour", "gpu-hours")}.items() for name in (kind, *others)
}
"""GPU-hours are of a time that has passed, so they are not among `all`."""
_ELSEWHERE: Final = {
    **dict.fromkeys(("node", "nodes", "no"), "an engine is of one machine; its GPUs are listed by aliquot get gpus"),
    **dict.fromkeys(("namespace", "namespaces", "ns"), "SharePods with their namespaces are listed by aliquot get -A"),
}
"""What shows the nearest thing to a kind of Kubernetes that an engine does not have."""
Fact = PodFacts | TenantFacts | GpuFacts
"""One line of a list."""


def read_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Kinds and names of `sharepods a b`, `sharepod/a`, `gpus,tenants`, `all` or nothing, which is all SharePods.

    Raises:
        UserError: a word names no kind.
    """
    if not words:
        return ["sharepods"], []
    kind, stroke, name = words[0].partition("/")
    if stroke and kind in _NAMES:
        names = [name, *(word.removeprefix(f"{kind}/") for word in words[1:])]
        return [_NAMES[kind]], names
    if words[0] == ALL:
        if len(words) > 1:
            raise UserError("all is every kind, and takes no name: aliquot get all")
        return list(KINDS), []
    kinds = []
    for word in words[0].split(","):
        if word not in _NAMES:
            close = closest(word, [*_NAMES, ALL])
            way_out = f"did you mean {close}?" if close else f"list {', '.join(KINDS)}, {HOURS} or all"
            raise UserError(f'"{word:.60}" is no kind of resource; {_ELSEWHERE.get(word, way_out)}')
        kinds.append(_NAMES[word])
    if HOURS in kinds and (len(kinds) > 1 or len(words) > 1):
        raise UserError("hours are listed alone and without names; choose what they are summed by with --by")
    if len(kinds) > 1 and len(words) > 1:
        raise UserError(f"names belong to one kind, {words[0]} are {len(kinds)}; write one kind before the names")
    return kinds, list(words[1:])


def resource_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For completion: the kinds, then the names of what is of that kind."""
    words = ctx.params.get(param.name or "") or ()
    if not words:
        return [CompletionItem(word) for word in (*_NAMES, ALL) if word.startswith(incomplete)]
    try:
        kinds, _ = read_words(words)
    except AliquotError:
        return []
    if kinds == ["sharepods"]:
        return sharepod_names(ctx, param, incomplete)
    names: list[str] = []
    if kinds == ["tenants"] and (tenants := answer_of(TenantsCall())) is not None:
        names = [tenant.name for tenant in tenants.tenants]
    elif kinds == ["gpus"] and (gpus := answer_of(GpusCall())) is not None:
        names = [str(gpu.index) for gpu in gpus.gpus]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


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

    @property
    def one(self) -> bool:
        """Whether one thing was named: programs then get that object, and a list in any other case, as of kubectl."""
        return len(self.names) == 1

    @property
    def width(self) -> int:
        """How wide its tables may be; what was asked for by name is not cut."""
        return columns() if self.form.word == "text" else UNBOUNDED

    def facts(self, kind: str) -> tuple[list[Fact], UserError | None]:
        """Everything of a kind that has the namespace, the labels and the names, in the order of the names.

        The error is that of the first name that does not exist.
        """
        facts: Sequence[Fact]
        if kind == "tenants":
            facts = ask_engine(TenantsCall()).tenants
        elif kind == "gpus":
            facts = ask_engine(GpusCall()).gpus
        else:
            inside = f"{self.namespace}/" if self.namespace else ""
            pods = ask_engine(PodsCall()).pods
            facts = [pod for pod in pods if pod.name.startswith(inside) and selects(self.selector, pod.labels)]
        if not self.names:
            return [*facts], None
        by_name = {name: fact for fact in facts for name in _names(fact)}
        own = self.namespace or "default"
        if not self.namespace and kind != "gpus" and not all("/" in name or name in by_name for name in self.names):
            own = ask_engine(InfoCall()).namespace  # that of the account, where an engine serves several
        named: list[Fact] = []
        missing: UserError | None = None
        for written in self.names:
            name = full_name(written, own) if kind == "sharepods" else written
            if name not in by_name and kind == "tenants":
                name = full_name(written, own)
            if name in by_name:
                named.append(by_name[name])
            elif missing is None:
                near = hint(name, [_names(fact)[0] for fact in facts], prefix=f"{own}/")
                missing = UserError(f'there is no {kind.removesuffix("s")} "{written:.100}"; {near}')
        return named, missing

    def table(self, facts: Sequence[Fact]) -> Table:
        """The facts, which are of one kind, as rows under their headers."""
        wide = self.form.word == "wide"
        if pods := [fact for fact in facts if isinstance(fact, PodFacts)]:
            reasons = self.watched or any(pod.message for pod in pods)
            return pod_table(pods, wide=wide, namespaces=self.everywhere, reasons=reasons)
        if tenants := [fact for fact in facts if isinstance(fact, TenantFacts)]:
            return tenant_table(tenants, wide=wide)
        return gpu_table([fact for fact in facts if isinstance(fact, GpuFacts)], wide=wide)


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
    Tables fit the terminal: long names are cut, and the last columns left out, where need be. -o wide cuts nothing.

    Example, the SharePods with a label, and what changes:
      aliquot get pods -l team=a -w
    """
    kinds, names = read_words(words)
    if namespace and everywhere:
        raise UserError("-n names one namespace and -A means all; give one of them")
    if kinds == [HOURS]:
        if selector or watch or no_headers or form.word == "name":
            raise UserError("-l, -w, --no-headers and -o name are for what is there now; hours are a table with totals")
        view = HoursView(since, by, form, namespace)
        view.print(ask_engine(HoursCall(view.since)).hours)
        return
    refuse_hours_options(since, by, form, kinds)
    if (namespace or selector) and kinds != ["sharepods"]:
        option = "-n" if namespace else "-l"
        raise UserError(f"{option} is for sharepods; {', '.join(kinds)} have no namespaces and no labels")
    if watch and len(kinds) > 1:
        raise UserError(f"-w watches one kind, {len(kinds)} were named; write one of {', '.join(kinds)}")
    query = Query(kinds, names, namespace, everywhere, parse_selector(selector), form, not no_headers, watch)
    if "sharepods" in kinds and not names:  # SharePods that a killed engine had are in no list
        lost = ask_engine(PodsCall()).lost
        mine = {name: phase for name, phase in lost.items() if name.startswith(f"{namespace}/" if namespace else "")}
        if mine:
            from aliquot.standalone.roster import told

            click.echo(f"aliquot: {told(mine)}", err=True)
    if watch:
        _watch(query)
        return
    found = {kind: query.facts(kind) for kind in kinds}
    _, missing = found[kinds[0]]
    if missing is None or any(facts for facts, _ in found.values()):
        _print(query, {kind: facts for kind, (facts, _) in found.items()})
    if missing is not None:
        raise missing


def _names(fact: Fact) -> list[str]:
    """What a person may call it."""
    if isinstance(fact, GpuFacts):
        return [str(fact.index), fact.uuid]
    return [fact.name, short_name(fact.name)] if isinstance(fact, TenantFacts) else [fact.name]


def _print(query: Query, lists: dict[str, list[Fact]]) -> None:
    """Print lists of things by their kind."""
    form = query.form.word
    facts = [fact for kind in lists for fact in lists[kind]]
    plain = msgspec.to_builtins(facts)
    picked = query.form.picked(plain, plain[0] if query.one else {"items": plain}, headers=query.headers)
    if picked is not None:
        click.echo(picked, nl=False)
    elif form == "yaml" and facts and list(lists) == ["sharepods"]:
        click.echo("---\n".join(text_of(form, _applicable(fact)) for fact in facts), nl=False)
    elif form in ("json", "yaml"):
        whole = plain[0] if query.one else plain if len(lists) == 1 else msgspec.to_builtins(lists)
        click.echo(text_of(form, whole), nl=form == "json")
    elif form == "name":
        for kind in lists:
            for fact in lists[kind]:
                click.echo(_kind_and_name(kind, fact))
    else:
        for number, (kind, some) in enumerate(lists.items()):
            if number:
                click.echo()
            if not some and kind != "gpus":
                click.echo(f"no {kind}{f' in namespace {query.namespace}' if query.namespace else ''}", err=True)
            else:
                lines = list(aligned(query.table(some), width=query.width))[0 if query.headers else 1 :]
                lines += ended_lines([fact for fact in some if isinstance(fact, TenantFacts)], query.width)
                click.echo("\n".join(lines))


def _kind_and_name(kind: str, fact: Fact) -> str:
    return f"{kind.removesuffix('s')}/{short_name(_names(fact)[0])}"


def _applicable(fact: Fact) -> dict[str, Any]:
    """A SharePod as it was applied, with what has become of it as its status; anything else as it is."""
    plain: dict[str, Any] = msgspec.to_builtins(fact)
    return {**(plain.pop("manifest") or {}), "status": plain} if isinstance(fact, PodFacts) else plain


def _watch(query: Query) -> None:
    """Print what is there, then each thing that changed, in the same form; `-o json` is one object a line."""
    from aliquot.standalone.client import NoEngine

    shown: dict[str, Fact] | None = None
    widths: list[int] = []
    while True:
        try:
            found, missing = query.facts(query.kinds[0])
        except NoEngine:
            if shown is None:
                raise
            click.echo("aliquot: the engine has ended", err=True)
            return
        if shown is None and missing is not None:
            raise missing
        facts = {_names(fact)[0]: fact for fact in found}
        before = shown or {}
        changes = [
            fact for name, fact in facts.items() if name not in before or _visible(fact) != _visible(before[name])
        ]
        for name in before.keys() - facts.keys():
            gone = before[name]
            deleted = isinstance(gone, PodFacts)
            changes.append(msgspec.structs.replace(gone, phase="Deleted", containers=[]) if deleted else gone)
        if changes:
            widths = _print_changes(query, changes, widths)
        shown = facts
        time.sleep(WATCH_EVERY_S)


def _visible(fact: Fact) -> Any:
    return {key: value for key, value in msgspec.to_builtins(fact).items() if key not in _CHANGING}


def _print_changes(query: Query, facts: list[Fact], widths: list[int]) -> list[int]:
    """Print things as they are now; rows are as wide as `widths` at least, and their widths are returned."""
    form = query.form
    plain = msgspec.to_builtins(facts)
    if form.columns is not None or form.word in ("text", "wide"):
        table = query.table(facts) if form.columns is None else form.columns.table(plain)
        for line in list(aligned(table, widths, width=query.width))[1 if widths or not query.headers else 0 :]:
            click.echo(line)
        before = widths or [0] * len(table[0])
        widths = [max(before[c], *(len(row[c]) for row in table)) for c in range(len(table[0]))]
    elif form.word == "json":
        for each in plain:
            click.echo(text_of("json", each, indent=None))
    else:
        for fact, each in zip(facts, plain, strict=True):
            if form.word == "name":
                click.echo(_kind_and_name(query.kinds[0], fact))
            elif form.template is not None:
                click.echo(form.template.filled(each), nl=False)
            else:
                click.echo(f"---\n{text_of('yaml', _applicable(fact))}", nl=False)
    sys.stdout.flush()
    return widths

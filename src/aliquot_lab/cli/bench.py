"""`aliquot bench`: the figures Aliquot is measured by, on your own GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.lazy import WholeSentences
from aliquot.cli.options import SECONDS, Amount, out_option, output_option
from aliquot.model.errors import UserError

if TYPE_CHECKING:
    from aliquot.topology import Topology


RATE = Amount(1e6, above_zero=True)
MAX_JOBS = 6


@click.group(cls=WholeSentences)
def bench() -> None:
    """Measure the cost and the accuracy of sharing. The methods are in bench/README.md.

    Example, the hook's cost of a launch:
      aliquot bench gate
    """


def _emulate(command: Callable[..., None]) -> Callable[..., None]:
    """The options every measurement has."""
    return click.option(
        "--emulate", metavar="PROFILE", help="Use an emulated GPU, such as h100. [default: v100 where no driver is]"
    )(output_option(command))


_native = click.option(
    "--native-handover/--no-native-handover", "native", default=True, show_default=True,
    help="Whether the arbiter hands over in a native thread where it can.",
)  # fmt: skip


def _show(figures: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(figures))
        return
    if "gpu" in figures:
        emulated = " (emulated)" if figures.pop("emulated") else ""
        click.echo(f"{figures.pop('gpu')}{emulated}")
    for name, value in figures.items():
        click.echo(f"  {name}{'' if isinstance(value, list) else f' {value}'}")
        for case in value if isinstance(value, list) else ():
            click.echo("    " + "  ".join(f"{key} {shown}" for key, shown in case.items()))


def _require_known(names: Sequence[str], mixes: Collection[str]) -> None:
    for name in names:
        if name not in mixes:
            raise click.BadParameter(f"no mix {name!r}; there are {', '.join(mixes)}", param_hint="--mix")


@bench.command()
@_emulate
def gate(emulate: str | None, output: str) -> None:
    """Nanoseconds and system calls the hook adds to a launch."""
    from aliquot_lab.bench.driver_calls import gate as measure

    _show(measure(emulate), output)


@bench.command()
@_emulate
@click.option("--seconds", type=SECONDS, default=10.0, show_default=True, help="Time per case.")
@click.option("--tenants", type=int, multiple=True, default=(2, 8, 32), show_default=True)
@click.option("--quota-ms", type=int, multiple=True, default=(30, 100), show_default=True)
@_native
def handover(
    emulate: str | None, output: str, seconds: float, tenants: tuple[int, ...], quota_ms: tuple[int, ...], native: bool
) -> None:
    """Microseconds from one tenant's last use to the next one's launch."""
    from aliquot_lab.bench.driver_calls import handover as measure

    _show(measure(emulate, tenants, quota_ms, seconds, native=native), output)


@bench.command()
@_emulate
@click.option(
    "--seconds", type=SECONDS, default=20.0, show_default=True, help="Time per mix, after a window to settle."
)
@click.option("--mix", "names", multiple=True, help="Only these mixes.")
def shares(emulate: str | None, output: str, seconds: float, names: tuple[str, ...]) -> None:
    """Points by which a tenant's share of a window was off, at worst."""
    from aliquot_lab.bench.shares import MIXES
    from aliquot_lab.bench.shares import shares as measure

    _require_known(names, [mix.name for mix in MIXES])
    chosen = [mix for mix in MIXES if not names or mix.name in names]
    _show(measure(emulate, chosen, seconds), output)


@bench.command()
@_emulate
@click.option("--mix", "names", multiple=True, help="Only these mixes; `aliquot sim turns --list` describes them.")
@click.option("--turns", "way", type=click.Choice(["fluid", "kubeshare", "gemini"]), default="fluid", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed of the programs.")
@click.option(
    "--seconds", type=Amount(100_000, least=16), default=40.0, show_default=True, help="Time of each mix, 16 at least."
)
@_native
def turns(
    emulate: str | None, output: str, names: tuple[str, ...], way: str, seed: int, seconds: float, native: bool
) -> None:
    """How far programs that work, rest, wake and misbehave are from a fluid, and whether the promise is kept."""
    from aliquot_lab.bench.turns import DEFAULT, MIXES, table
    from aliquot_lab.bench.turns import turns as measure

    _require_known(names, MIXES)
    figures = measure(emulate, names or DEFAULT, seed=seed, seconds=seconds, way=way, native=native)
    click.echo(json.dumps(figures) if output == "json" else table(figures))


@bench.command()
@_emulate
@click.option("--seconds", type=SECONDS, default=8.0, show_default=True, help="Time per rate.")
@click.option("--quota-ms", type=click.IntRange(1), multiple=True, help="Only these quotas. [default: 30 60 100 160]")
@click.option(
    "--kernel-us", type=click.IntRange(1), multiple=True, help="Only these kernels. [default: 5 10 20 50 200 2000]"
)
def slowdown(
    emulate: str | None, output: str, seconds: float, quota_ms: tuple[int, ...], kernel_us: tuple[int, ...]
) -> None:
    """Percent lost alone under the hook and by two tenants, by quota and by length of kernel.

    Naming quotas or kernels leaves out what is not named.
    """
    from aliquot_lab.bench.slowdown import KERNELS_US, QUOTAS_MS
    from aliquot_lab.bench.slowdown import slowdown as measure

    everything = not quota_ms and not kernel_us
    quotas, kernels = (QUOTAS_MS, KERNELS_US) if everything else (quota_ms, kernel_us)
    _show(measure(emulate, quotas, kernels, seconds), output)


@bench.command()
@_emulate
@click.option("--seconds", type=SECONDS, default=10.0, show_default=True, help="Time per case.")
@click.option("--rate", "rates", type=RATE, multiple=True, help="Requests per second. [default: 10 25 50]")
def inference(emulate: str | None, output: str, seconds: float, rates: tuple[float, ...]) -> None:
    """Milliseconds of a request: alone, with training on the same GPU, and the same with time slices only."""
    from aliquot_lab.bench.inference import RATES
    from aliquot_lab.bench.inference import inference as measure

    _show(measure(emulate, rates or RATES, seconds), output)


@bench.command()
@_emulate
@click.option("--seconds", type=SECONDS, default=10.0, show_default=True, help="Time per rate.")
@click.option("--rate", "rates", type=RATE, multiple=True, help="Requests per second. [default: 10 to 100]")
def fig5(emulate: str | None, output: str, seconds: float, rates: tuple[float, ...]) -> None:
    """GPU use by requests per second, as in Fig. 5 of KubeShare, and the line through it."""
    from aliquot_lab.bench.inference import FIG5_RATES
    from aliquot_lab.bench.inference import fig5 as measure

    if len(set(rates)) == 1:
        raise click.BadParameter("a line needs two rates at least", param_hint="--rate")
    _show(measure(emulate, rates or FIG5_RATES, seconds), output)


@bench.command()
@_emulate
@click.option("--seconds", type=SECONDS, default=8.0, show_default=True, help="Time per job and per pair.")
@click.option(
    "--job", "named", multiple=True, metavar="NAME=WORK/REST", default=("A=6/14", "B=15/5"), show_default=True,
    help="A job that works and rests for so many milliseconds in turn.",
)  # fmt: skip
def fig12(emulate: str | None, output: str, seconds: float, named: tuple[str, ...]) -> None:
    """How many times as long jobs take two on a GPU as alone, as in Fig. 12 of KubeShare.

    Each pair of the jobs, and each job with another of its kind, shares the GPU under Aliquot with requests of 0.45 and
    no limit. 1.5 means that a job takes half as long again as alone. The paper does not say what its jobs demand: A and
    B here want 0.3 and 0.75 of the GPU. On an emulated GPU only the turns slow jobs down; on a real one caches and
    memory bandwidth do as well.
    """
    from aliquot_lab.bench.slowdown import fig12 as measure

    jobs: dict[str, tuple[int, int]] = {}
    for text in named:
        found = re.fullmatch(r"([A-Za-z0-9]{1,16})=(\d{1,4})/(\d{1,4})", text)
        if not found or not int(found[2]) or found[1] in jobs or len(jobs) == MAX_JOBS:
            raise click.BadParameter(
                f"{text!r} is not one of up to {MAX_JOBS} jobs with names of their own, each as A=6/14: 1 to 9999 ms "
                "of work, 0 to 9999 ms of rest", param_hint="--job",
            )  # fmt: skip
        jobs[found[1]] = (int(found[2]), int(found[3]))
    _show(measure(emulate, jobs, seconds), output)


@bench.command()
@_emulate
def memory(emulate: str | None, output: str) -> None:
    """Microseconds of an allocation of 1 MiB; nanoseconds added to a completion call with 100,000 allocations held."""
    from aliquot_lab.bench.driver_calls import memory as measure

    _show(measure(emulate), output)


@bench.command()
@_emulate
@click.option("--processes", type=click.IntRange(1, 10_000), default=1000, show_default=True)
def storm(emulate: str | None, output: str, processes: int) -> None:
    """Seconds until many processes have registered."""
    from aliquot_lab.bench.driver_calls import storm as measure

    _show(measure(emulate, processes), output)


@bench.command()
@output_option
@click.option("--policy", "policies", multiple=True, help="Only these policies.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of the openb trace; a checkout has it.")
def placement(output: str, policies: tuple[str, ...], data: Path | None) -> None:
    """Seconds of an openb run, and milliseconds of one decision on 1,000 and 5,000 nodes."""
    from aliquot_lab.bench.placement import placement as measure

    _show(measure(policies, data), output)


@bench.command("filter")
@click.option("--case", "cases", multiple=True, metavar="NODES/PODS", default=("1000/4000", "5000/20000"))
@click.option("--asks", type=click.IntRange(20), default=300, show_default=True, help="Measured requests per case.")
@click.option(
    "--reviewers", type=click.IntRange(0, 64), default=0, show_default=True,
    help="Measure each case again while so many clients flood the webhook with large reviews.",
)  # fmt: skip
@output_option
def filter_(cases: tuple[str, ...], asks: int, reviewers: int, output: str) -> None:
    """Milliseconds of filter and prioritize over HTTP with JSON, by nodes and pods in the ledger."""
    from aliquot_lab.bench.filter import filter_times

    sizes = []
    for case in cases:
        nodes, _, pods = case.partition("/")
        if not (nodes.isdigit() and pods.isdigit() and int(nodes)):
            raise click.BadParameter(f"{case!r} is not NODES/PODS, as in 1000/4000", param_hint="--case")
        sizes.append((int(nodes), int(pods)))
    _show(filter_times(tuple(sizes), asks, reviewers), output)


@bench.command()
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--jobs", type=click.IntRange(10, 1_000_000), default=4000, show_default=True, help="Jobs per seed.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many workloads.")
@out_option("Also write topology_churn.svg and .json into this folder.")
@output_option
def topology(files: tuple[str, ...], jobs: int, seeds: int, out: Path | None, output: str) -> None:
    """Modelled bandwidth of 2- and 4-GPU jobs by first index, by NVIDIA's best-effort policy and by ours.

    FILES are outputs of nvidia-smi topo -m; without any, the machines of the emulated profiles. Machines whose links
    are all alike, and those with more than 8 GPUs, cannot distinguish policies and are left out.
    """
    from aliquot_lab.bench.churn import LOAD, SIZES, compare
    from aliquot_lab.bench.plots import draw_churn, means

    machines = {name: each for name, each in _machines(files).items() if _tells(each)}
    if not machines:
        raise UserError("no machine here has 2 to 8 GPUs with different links; give another matrix")
    rows = compare(machines, jobs=jobs, seeds=range(1, seeds + 1))
    shares = ", ".join(f"{part:.0%} request {size}" for size, part in SIZES.items())
    about = f"{seeds} seeds of {jobs} jobs on each machine; {shares}; load {LOAD:.0%}"
    if out:
        draw_churn(rows, out, about)
    if output == "json":
        click.echo(json.dumps({"about": about, "means": means(rows), "rows": rows}))
        return
    click.echo(about)
    for line in _table(rows, means(rows)):
        click.echo(line)


def _machines(files: Sequence[str]) -> dict[str, Topology]:
    from aliquot.cli.topo import read_topology
    from aliquot.driver.emulation import PROFILES, profile_topology

    if files:
        return {Path(file).stem: topology for file in files for _, topology in [read_topology(file)]}
    return {name: profile_topology(profile, 8) for name, profile in PROFILES.items()}


def _tells(topology: Topology) -> bool:
    labels = {label for i, row in enumerate(topology.links) for j, label in enumerate(row) if i != j}
    return 2 <= topology.count <= 8 and len(labels) > 1


def _table(rows: Sequence[Mapping[str, Any]], kept: Mapping[str, float]) -> list[str]:
    policies = list(kept)
    cases: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["machine"], row["size"]), {})[row["policy"]] = row
    width = max(len(machine) for machine, _ in cases)
    lines = [f"  {'MACHINE':<{width}}  GPUS" + "".join(f"  {policy.upper():>20}" for policy in policies)]
    for (machine, size), by in cases.items():
        cells = "".join(f"  {by[p]['mean_pair_gbps']:8.2f} GB/s {by[p]['kept']:6.1%}" for p in policies)
        lines.append(f"  {machine:<{width}}  {size:>4}{cells}")
    return [*lines, f"  {'mean':<{width}}      " + "".join(f"  {kept[policy]:>20.1%}" for policy in policies)]

"""Options that several commands have, and how their texts are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from aliquot.cli.completion import profile_names
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI, parse_memory, parse_milli
from aliquot.model.requests import ENFORCE, RECOMMEND, GpuRequest, Labels, checked, parse_label
from aliquot.model.wake import parse_span, parse_wake

Command = TypeVar("Command", bound=Callable[..., Any])


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one, listed in this order in --help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_SAME: Final = {"gpu-memory": "gpu-mem", "gpuid": "gpu-id", "gpu-index": "gpu", "gpu-uuid": "gpu"}


def one_spelling(word: str) -> str:
    """The documented spelling of an option's name that manifests and other tools write otherwise."""
    return _SAME.get(word, word)


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """A text that `parse` reads; a default may be of the type that it gives."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """`0.3` -> 300.

        Raises:
            UserError: the text is none; the sentence begins with the option.
        """
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except UserError as error:
            raise UserError(f"{param.opts[0] if param else self.name}: {error}") from None


Milli = partial(Quantity, "fraction", parse_milli)
"""A fraction of a GPU, as 0.3 or 30%; gives milli-GPU."""
Wake = partial(Quantity, "duration", parse_wake)
"""How soon a tenant wakes, as 5ms; gives microseconds."""
Span = partial(Quantity, "duration", parse_span)
"""A length of time, as 10m; gives seconds."""
Size = partial(Quantity, "size", parse_memory)
"""An amount of GPU memory, as 4Gi."""


Label = partial(Quantity, "label", lambda text: text and parse_label(text))
"""A label, or the name of a vGPU."""

otlp_option = click.option(
    "--otlp-endpoint",
    metavar="URL",
    envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
    show_envvar=True,
    help="Send spans of pods on their way here by OTLP/HTTP, as http://HOST:4318. [default: nowhere]",
)
"""The variable is the one that OpenTelemetry's own programs read."""


class Amount(click.ParamType):  # type: ignore[type-arg]
    """A finite number from 0, from another least or above 0, to a most. click's own let NaN and infinity through."""

    name = "number"

    def __init__(self, most: float, *, least: float = 0, above_zero: bool = False) -> None:
        self.most, self.least, self.above_zero = most, least, above_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number itself.

        Raises:
            UserError: it is none, or not in the range.
        """
        option = param.opts[0] if param else "number"
        least = "above 0" if self.above_zero else f"from {self.least:g}"
        allowed = f"a finite number {least} to {self.most:g}"
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UserError(f"{option} {value!r} is not a number; allowed is {allowed}") from None
        if not math.isfinite(number) or not self.least <= number <= self.most or (self.above_zero and number == 0):
            raise UserError(f"{option} {value} must be {allowed}")
        return number


SECONDS = Amount(100_000, above_zero=True)


def out_option(help_text: str, *, required: bool = False, default: Path | None = None) -> Callable[[Command], Command]:
    """`--out FOLDER`."""

    def checked_folder(_context: click.Context, _option: click.Parameter, folder: Path | None) -> Path | None:
        """Refuse a folder that cannot be made or written, before anything runs for it."""
        import tempfile

        try:
            for path in () if folder is None else (folder, *folder.absolute().parents):
                if path.exists():
                    if not path.is_dir():
                        raise UserError(f"--out {folder}: {path} is a file; name a folder")
                    with tempfile.TemporaryDirectory(dir=path):
                        break
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"--out {folder} cannot be written: {reason}; name a folder of yours") from None
        return folder

    kind = click.Path(path_type=Path)
    # To click a default of None is one, with which nothing is missing.
    given: dict[str, Any] = {} if required else {"default": default}
    return click.option("--out", type=kind, required=required, callback=checked_folder, help=help_text, **given)


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How to print; json is for programs.",
)
"""For commands that print facts."""


since_option = click.option(
    "--since", default="", metavar="TIME", help="How far to look back, 15m to 30d. [default: 7d]"
)


def memory_option(help_text: str) -> Callable[[Command], Command]:
    """`--gpu-mem SIZE`."""
    return click.option("--gpu-mem", type=Size(), help=help_text)


def memory_limit_option(help_text: str) -> Callable[[Command], Command]:
    """`--gpu-mem-limit SIZE`."""
    return click.option("--gpu-mem-limit", type=Size(), help=help_text)


wake_option = click.option(
    "--wake",
    type=Wake(),
    metavar="TIME",
    help="When it wakes within its request, its first kernel starts in this time: 5ms, 1s. [default: no promise]",
)
park_after_option = click.option(
    "--park-after", type=Span(), metavar="TIME",
    help="Without use of the GPU for this time, its memory goes to the host's until needed: 10m. [default: never]",
)  # fmt: skip
movable_option = click.option(
    "--movable", is_flag=True, help="Its program may go to another GPU while it runs, and see another UUID then."
)
recommend_option = click.option(
    "--recommend", type=click.Choice(RECOMMEND),
    help="Whether its request follows what aliquot recommend shows, up to its limit: when it starts (initial) or while "
    "it runs (auto). [default: as aliquot up --recommend says, else show]",
)  # fmt: skip
up_recommend_option = click.option(
    "--recommend", type=click.Choice(RECOMMEND), default="show", show_default=True,
    help="Whether requests follow what aliquot recommend shows, as in aliquot run, of what does not say it.",
)  # fmt: skip
emulate_option = click.option(
    "--emulate",
    metavar="PROFILE[xN]",
    shell_complete=profile_names,
    help="Use N emulated GPUs (t4, v100, a100, a100-80g, h100, h200).",
)
only_gpus_option = click.option(
    "--only-gpus",
    metavar="NAMES",
    help="Share only these GPUs: indices, UUIDs or models, with commas between them. [default: all]",
)
not_gpus_option = click.option("--not-gpus", metavar="NAMES", help="Leave these GPUs alone; named in the same way.")


device_options = together(
    click.option("--gpu-model", default="", metavar="MODEL", help="Only GPUs of this model: v100, a100|h100."),
    click.option("--mixed-models", is_flag=True, help="Whether several GPUs may be of different models."),
    click.option(
        "--gpu-id", type=Label(), default="", metavar="NAME", help="A GPU by a name of yours; equal names share one."
    ),
    click.option("--affinity", type=Label(), default="", metavar="LABEL", help="On the GPU that has this label."),
    click.option(
        "--anti-affinity", type=Label(), default="", metavar="LABEL", help="Not on a GPU that has this label."
    ),
    click.option("--exclusion", type=Label(), default="", metavar="LABEL", help="Only with tenants of the same label."),
)


def gpu_request(given: Mapping[str, Any], *, request_name: str = "--gpu-request") -> GpuRequest:
    """The request in the options of a command, one whole GPU where none says how much.

    Raises:
        BadRequest: it contradicts itself.
    """
    asked = given["gpu_request"]
    return checked(
        GpuRequest(
            MILLI if asked is None else asked, given["gpu_limit"], given["gpu_mem"], given["gpu_model"], given["gpu"],
            given["gpu_id"], Labels(given["affinity"], given["anti_affinity"], given["exclusion"]),
            given.get("enforce"), given["mixed_models"], given["wake"] or 0,
            given.get("park_after") or 0.0, given.get("movable", False),
            given.get("recommend"), given.get("gpu_mem_limit"),
        ),
        request_name=request_name, limit_name="--gpu-limit", enforce_name="--enforce", wake_name="--wake",
        memory_name="--gpu-mem",
    )  # fmt: skip


MAX_GPUS: Final = 1024
"""More than any machine has."""
request_options = together(
    click.option(
        "--gpu-request", type=Milli(), metavar="FRACTION", help="Guaranteed part of a GPU: 0.3, 30%, 300m. [default: 1]"
    ),
    click.option("--gpu-limit", type=Milli(), help="Maximum while others are idle. [default: the whole GPU]"),
    memory_option("GPU memory: 4Gi, 4096 (MiB), 25%. [default: the request's fraction]"),
    memory_limit_option(
        "Beyond --gpu-mem, which is guaranteed, free memory is lent up to this. It is called back when others' "
        "guarantees need it: the program is asked, then parked, at last ended. [default: nothing is lent]"
    ),
    click.option(
        "--gpus", type=click.IntRange(1, MAX_GPUS), metavar="N", help="N whole GPUs, in place of --gpu-request."
    ),
    click.option(
        "--gpu",
        default="",
        metavar="UUID|INDEX[,...]",
        help="The GPU, or those to choose from: 0,2. CUDA_VISIBLE_DEVICES is not read. [default: all]",
    ),
    device_options,
    click.option(
        "--enforce",
        type=click.Choice(ENFORCE),
        help="What is enforced: never (the bare driver) and memory are for whole GPUs. "
        "[default: all; on whole GPUs never, or memory with --gpu-mem]",
    ),
    wake_option,
    park_after_option,
    movable_option,
    recommend_option,
    click.option("--cpu-bind", type=click.IntRange(1), metavar="N", help="Run on the N CPU cores nearest to the GPU."),
    emulate_option,
)
"""What a tenant of an engine is to have; `read_request` reads them."""


def read_request(wanted: dict[str, Any]) -> GpuRequest:
    """The request in `request_options`, with all refused that needs no engine to be.

    Raises:
        UserError: it contradicts itself, or this machine cannot be so.
    """
    if emulate := wanted["emulate"]:
        from aliquot.driver.emulation import parse_spec

        parse_spec(emulate)
    if wanted["cpu_bind"]:
        from aliquot.driver.gpu import nearest_cores

        nearest_cores(wanted["cpu_bind"])
    if wanted["gpus"] and wanted["gpu_request"] is not None:
        raise UserError("--gpus is a number of whole GPUs and --gpu-request a part of one; give one of them")
    if wanted["gpus"]:
        request = gpu_request(wanted | {"gpu_request": wanted["gpus"] * MILLI}, request_name="--gpus")
    else:
        request = gpu_request(wanted)
    if request.enforce == "never" and wanted["cpu_bind"]:
        raise UserError("--cpu-bind is done by the library that --enforce never leaves out; write --enforce memory")
    return request

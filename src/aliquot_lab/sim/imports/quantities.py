"""Times, durations, memory and Slurm's TRES as accounting tools write them.

Sources: sacct(1) of Slurm ([days-]hours:minutes:seconds, `Unknown`, TRES such as `cpu=8,gres/gpu:a100=2,mem=64G`);
Kubernetes quantities (`500m`, `64Gi`).
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, tzinfo
from fractions import Fraction
from typing import Final

from aliquot.kube import quantities as kubernetes
from aliquot.model.quantities import MILLI, BadQuantity

NOTHING: Final = frozenset(("", "unknown", "none", "null", "nan", "n/a", "na", "nat", "-", "invalid"))
LEAST_MS_EPOCH: Final = 1e11
"""A bare number from here on is milliseconds or finer: as seconds it would be after the year 5000."""
_ELAPSED: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_WORDS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|sec|s|min|m|hour|h|day|d)s?\b", re.IGNORECASE)
_UNIT_S: Final = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)([nc]?)", re.IGNORECASE)
_POWERS: Final = {"": -2, "k": -1, "m": 0, "g": 1, "t": 2, "p": 3}
_MIG: Final = re.compile(r"(?:^|[_-])(\d)g[._]\d+gb", re.IGNORECASE)
_MIG_PARTS: Final = 7
MAX_NUMBER: Final = 1e12
MAX_PARTS: Final = 10_000
"""Pods, instances or nodes of one job."""
_RESOURCES: Final = {"nvidia_com_gpu": MILLI, "amd_com_gpu": MILLI, "aliquot_dev_gpu_percent": MILLI // 100}


class Unreadable(ValueError):
    """A cell that is not what its column holds; the text says what is wanted."""


def parse_number(text: str, most: float = MAX_NUMBER) -> float:
    """A number from 0 to `most`; 0 for an empty text.

    Raises:
        Unreadable: no number, or one that cannot be an amount of anything.
    """
    if text.strip().lower() in NOTHING:
        return 0.0
    try:
        number = float(text)
    except ValueError:
        raise Unreadable("is not a number") from None
    if not 0 <= number <= most:
        raise Unreadable(f"must be a number from 0 to {most:,.0f}")
    return number


def parse_parts(text: str) -> int:
    """How many pods or nodes a job has; 1 for an empty text.

    Raises:
        Unreadable: no number, or more than `MAX_PARTS`.
    """
    return max(1, round(parse_number(text, MAX_PARTS)))


def parse_time(text: str, zone: tzinfo = UTC) -> float | None:
    """Seconds since 1970 of an ISO 8601 time or a bare number of seconds to nanoseconds; None where it is unknown.

    A time without a zone is taken to be of `zone`; the date may have slashes, the year first.

    Raises:
        Unreadable: none of these.
    """
    text = text.strip()
    if text[4:5] in ("-", "/"):  # the usual case first
        return _iso(text.replace("/", "-", 2), zone)
    if text.lower() in NOTHING:
        return None
    try:
        number = float(text)
    except ValueError:
        return _iso(text, zone)
    if not math.isfinite(number) or number < 0:
        raise Unreadable("is no time; allowed are 2026-01-02T03:04:05, seconds and milliseconds since 1970")
    while number >= LEAST_MS_EPOCH:
        number /= 1000
    return number


def _iso(text: str, zone: tzinfo) -> float:
    zoned = text
    for name, hours in (("UTC", 0), ("GMT", 0), ("PST", -8), ("PDT", -7)):
        if text.endswith(f" {name}"):
            zoned = f"{text.removesuffix(f' {name}')}{hours:+03}:00"
    try:
        when = datetime.fromisoformat(zoned)
        return (when if when.tzinfo else when.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        raise Unreadable("is no time; allowed are 2026-01-02T03:04:05, seconds and milliseconds since 1970") from None


def parse_elapsed(text: str) -> float | None:
    """Seconds of `3600`, `01:00:00`, `1-02:03:04`, `10m` or `2h 30m`; None where it is unknown.

    Raises:
        Unreadable: none of these.
    """
    text = text.strip()
    found = _ELAPSED.fullmatch(text)
    if found:
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    if text.lower() in NOTHING:
        return None
    try:
        number = float(text)
    except ValueError:
        pieces = _WORDS.findall(text)
        if not pieces or _WORDS.sub("", text).strip(" ,"):
            raise Unreadable("is no duration; allowed are 3600, 01:00:00, 1-02:03:04 and 10m") from None
        return float(sum(float(value) * _UNIT_S[unit.lower()] for value, unit in pieces))
    if not math.isfinite(number) or number < 0:
        raise Unreadable("is no duration; allowed are 3600, 01:00:00, 1-02:03:04 and 10m")
    return number


def parse_memory_mib(text: str, *, bare: str = "m", nodes: int = 1, cpus: int = 1) -> int:
    """MiB of `64G`, `1.5T`, `30000M`, `64Gi` or a bare number in the unit `bare`; 0 for an empty text.

    Slurm counts in powers of 1024 and may append `n` (for each node) or `c` (for each CPU) to a job's ReqMem.

    Raises:
        Unreadable: no amount of memory.
    """
    text = text.strip()
    if text.lower() in NOTHING:
        return 0
    found = _MEMORY.fullmatch(text)
    if not found:
        raise Unreadable("is no amount of memory; allowed are 64G, 30000M and 1.5T")
    number, unit, _, _, per = found.groups()
    times = {"n": nodes, "c": cpus}.get(per.lower(), 1)
    mib = float(number) * 1024.0 ** _POWERS[unit.lower() or bare] * times
    if mib > MAX_NUMBER:
        raise Unreadable(f"is more memory than any job has; allowed are up to {MAX_NUMBER:,.0f} MiB")
    return math.ceil(mib)


def parse_quantity(text: object) -> float:
    """A Kubernetes quantity as a number: `2`, `500m`, `64Gi`.

    Raises:
        Unreadable: no quantity.
    """
    try:
        value = kubernetes.parse_quantity(str(text))
    except BadQuantity:
        value = Fraction(-1)
    if value < 0:
        raise Unreadable("is no quantity of Kubernetes; allowed are 2, 500m and 64Gi")
    return float(value)


def milli_of_profile(name: str) -> int:
    """Milli-GPU of a MIG slice by its name, in sevenths (`1g.5gb`, `a100_3g.40gb`); 0 for any other name."""
    return MILLI * _sevenths(name) // _MIG_PARTS


def _sevenths(name: str) -> int:
    found = _MIG.search(name)
    return int(found[1]) if found else 0


def milli_of_resource(name: str) -> int:
    """Milli-GPU of one unit of a Kubernetes resource, also by its name in a metric's label; 0 if it is no GPU."""
    plain = re.sub(r"[./-]", "_", name)
    return _RESOURCES.get(plain) or (milli_of_profile(plain) if plain.startswith("nvidia_com_") else 0)


def parse_tres(text: str) -> dict[str, str]:
    """A TRES list as a dictionary: `cpu=8,gres/gpu=2` -> {"cpu": "8", "gres/gpu": "2"}."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def gpus_of_tres(tres: dict[str, str]) -> tuple[int, str]:
    """Milli-GPU and model of a TRES list; a total without a type stands for all types, a MIG slice for its sevenths.

    Raises:
        Unreadable: a count that is no number.
    """
    total, typed, models = 0, 0, []
    for name, value in tres.items():
        kind, _, model = name.partition(":")
        if kind != "gres/gpu":
            continue
        milli = _count(value)
        if not model:
            total += milli
            continue
        typed += milli * _sevenths(model) // _MIG_PARTS if _sevenths(model) else milli
        models.append(model)
    return (typed if (models and typed < total) or not total else total), (models[0] if len(models) == 1 else "")


def shards_of_tres(tres: dict[str, str]) -> float:
    """How many `gres/shard` a TRES list has; a total without a type stands for all types.

    Raises:
        Unreadable: a count that is no number.
    """
    counts = {name: _count(value) / MILLI for name, value in tres.items() if name.partition(":")[0] == "gres/shard"}
    return counts.get("gres/shard") or sum(counts.values())


def gpus_of_gres(text: str) -> tuple[int, str]:
    """Milli-GPU and model of an older Slurm's list: `gpu:2`, `gpu:tesla:2`, `gpu:tesla:2(IDX:0-1)`.

    Raises:
        Unreadable: a count that is no number.
    """
    total, models = 0, []
    for part in text.split(","):
        words = part.partition("(")[0].strip().lower().split(":")
        if words[0] not in ("gpu", "gres/gpu"):
            continue
        total += _count(words[-1]) if len(words) > 1 and words[-1].isdigit() else MILLI
        models += [word for word in words[1:] if not word.isdigit()]
    return total, (models[0] if len(models) == 1 else "")


def _count(text: str) -> int:
    try:
        return round(parse_number(text) * MILLI)
    except Unreadable:
        raise Unreadable("names a number of GPUs that is none; allowed is gres/gpu=2") from None

"""What NVML measures of a GPU, and what it does not answer."""

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import msgspec

from aliquot.driver.sensors import RETRY_S, SensorReader, sensors_of
from aliquot.status.sensors import Sensors


class NotSupported(Exception):
    """As pynvml's own error."""


def refuse(*_: object) -> int:
    """What a board without that sensor answers."""
    raise NotSupported


def nvml(**answers: object) -> SimpleNamespace:
    """pynvml, of which only these functions work."""
    asked = ("Temperature", "PowerUsage", "EnforcedPowerLimit", "ClockInfo")
    functions = {f"nvmlDeviceGet{name}": refuse for name in asked}
    numbers = {"NVML_TEMPERATURE_GPU": 0, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2}
    return SimpleNamespace(**functions | numbers | answers, NVMLError=NotSupported)


def read(library: SimpleNamespace) -> Sensors:
    """A reading as the reader of the process gets it."""
    return msgspec.convert(sensors_of(library, "handle"), Sensors)


def test_readings_are_in_the_units_of_their_names():
    """Power is in watts, clocks are in megahertz by their kind."""
    library = nvml(
        nvmlDeviceGetTemperature=lambda _, sensor: 61,
        nvmlDeviceGetPowerUsage=lambda _: 250_500,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 300_000,
        nvmlDeviceGetClockInfo=lambda _, kind: {1: 1530, 2: 877}[kind],
    )

    assert Sensors(61, 250.5, 300.0, 1530, 877) == read(library)


def test_what_is_not_answered_is_not_zero():
    """A sensor that a board does not have is unknown, and the others are still read."""
    assert Sensors(celsius=0) == read(nvml(nvmlDeviceGetTemperature=lambda *_: 0))


def test_a_reader_that_has_ended_is_started_again_after_a_minute(tmp_path: Path):
    """Where the driver cannot be read nothing is known, and it is tried again a minute later and not before."""
    now_s = [0.0]
    reader = SensorReader(tmp_path / "libnvidia-ml.so.1", clock=lambda: now_s[0])
    pids = []
    try:
        for now_s[0] in (0.0, RETRY_S - 1, RETRY_S):
            assert {} == reader.read()
            pids.append(reader.pid)
            with suppress(ChildProcessError):  # it was waited for already
                os.waitid(os.P_PID, pids[-1], os.WEXITED | os.WNOWAIT)
    finally:
        reader.close()

    assert pids[0] == pids[1] != pids[2]

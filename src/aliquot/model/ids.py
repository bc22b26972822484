"""Names of things that are plain text on the wire but never interchangeable."""

from __future__ import annotations

from typing import NewType

GpuUuid = NewType("GpuUuid", str)
"""As NVML prints it: `GPU-` and 32 hexadecimal digits in five groups."""

TenantName = NewType("TenantName", str)
"""Unique on a machine: `run-4711`, `default/notebook`."""

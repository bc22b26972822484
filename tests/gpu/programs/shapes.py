"""Takes memory in a shape that is easily counted wrong until it is refused, then rests: `shapes.py SHAPE OUT`.

`odd`: cuMemAlloc just above a page. `arrays`: arrays of 256 bytes. `pools`: pools destroyed while they hold memory.
`imports`: physical memory exported, imported, and the exported handle released.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from driver import Driver
from kit.driver_calls import AS_DESCRIPTOR, MIB, Out, array_shape, pool_properties

MAX_S = 15


def odd(driver: Driver) -> tuple[int, int]:
    """Bytes asked for by one step, and the answer."""
    size = 2 * MIB + 512
    return size, driver.allocate("linear", size).code


def arrays(driver: Driver) -> tuple[int, int]:
    return 256, driver.code("cuArrayCreate_v2", Out(), array_shape(64, 0))


def pools(driver: Driver) -> tuple[int, int]:
    code, (pool,) = driver.call("cuMemPoolCreate", Out(), pool_properties())
    if code == 0:
        code = driver.take(pool, 256 * MIB).code or driver.code("cuCtxSynchronize")
        driver.ok("cuMemPoolDestroy", pool)
    return 256 * MIB, code


def imports(driver: Driver) -> tuple[int, int]:
    code, (handle,) = driver.create(256 * MIB, handles=AS_DESCRIPTOR)
    if code == 0:
        code, (descriptor,) = driver.call("cuMemExportToShareableHandle", Out(4), handle, AS_DESCRIPTOR, 0)
    if code == 0:
        code = driver.code("cuMemImportFromShareableHandle", Out(), descriptor, AS_DESCRIPTOR)
        driver.ok("cuMemRelease", handle)
        os.close(descriptor)
    return 256 * MIB, code


def main(shape: str, out: Path) -> None:
    """Take until refused or for `MAX_S`, write what was asked for, rest."""
    driver, step, asked, code = Driver(), globals()[shape], 0, 0
    until = time.monotonic() + MAX_S
    while not code and time.monotonic() < until:
        size, code = step(driver)  # not always OUT_OF_MEMORY: descriptors run out too
        asked += size * (not code)
    out.write_text(json.dumps({"asked_mib": asked // MIB, "refused_with": code}))
    time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

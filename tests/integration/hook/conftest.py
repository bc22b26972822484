"""One emulated GPU, a tenant's folder and a scripted arbiter for each test of the hook."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.hooked_tenant import Tenant

from aliquot.driver.native import NativePartMissing


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Callable[..., Tenant]]:
    """Makes tenants; arguments go to ScriptedArbiter, `spec` to the emulated machine."""
    made: list[Tenant] = []

    def make(**arbiter: Any) -> Tenant:
        try:
            one = Tenant(tmp_path / str(len(made)) if made else tmp_path, **arbiter)
        except NativePartMissing as missing:
            pytest.skip(str(missing))
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()

"""Memory that another process exported: charged to its importer from the import on."""

import os

from kit.driver_calls import AS_DESCRIPTOR, MIB, Out


def test_an_import_is_charged_before_it_is_mapped(tenant):
    """An imported handle counts with all of its memory; one that does not fit is refused; released ones are free."""
    scene = tenant(memory_mib=100)
    stranger, gpu = scene.bare(), scene.gpu()  # which is no process of a tenant's, so it pays for nothing
    assert stranger.open() == 0
    handles = []
    for mib in (30, 30, 2, 30, 30):
        handle = stranger.create(mib * MIB, handles=AS_DESCRIPTOR).value
        shown = f"/proc/{stranger.process.pid}/fd/{stranger.export(handle)}"
        descriptor = gpu.posix("open", shown, os.O_RDWR)
        handles.append(gpu.call("cuMemImportFromShareableHandle", Out(), descriptor, AS_DESCRIPTOR))
        gpu.posix("close", descriptor)
    full = gpu.charged()
    for imported in handles[:4]:
        gpu.ok("cuMemRelease", imported.value)

    assert [0, 0, 0, 0, 2] == [imported.code for imported in handles]
    assert (92 * MIB, 0) == (full, gpu.settle())

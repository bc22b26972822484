"""Memory that another process exported: charged to its importer from the import on."""

from kit.driver_calls import AS_DESCRIPTOR, MIB


def test_an_import_is_charged_before_it_is_mapped(tenant):
    """An imported handle counts with all of its memory; one that does not fit is refused; released ones are free."""
    scene = tenant(memory_mib=100)
    stranger, gpu = scene.bare(), scene.gpu()  # which is no process of a tenant's, so it pays for nothing
    assert stranger.open() == 0
    handles = []
    for mib in (30, 30, 2, 30, 30):
        descriptor = stranger.export(stranger.create(mib * MIB, handles=AS_DESCRIPTOR).value)
        handles.append(gpu.imported(stranger, descriptor))
    full = gpu.charged()
    for imported in handles[:4]:
        gpu.ok("cuMemRelease", imported.value)

    assert [0, 0, 0, 0, 2] == [imported.code for imported in handles]
    assert (92 * MIB, 0) == (full, gpu.settle())

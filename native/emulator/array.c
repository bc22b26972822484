/* array.c: arrays, kept as pitched rows of device memory. */
#include <stdlib.h>
#include "emu.h"

static size_t format_bytes(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    case 0x03: case 0x0a: case 0x20: return 4;
    }
    return 0;
}

API CUresult cuArray3DCreate_v2(CUarray *out, const CUarray3d *d)
{
    NEED_CTX();
    if (!out || !d || !d->width || !format_bytes(d->format) || (d->channels != 1 && d->channels != 2 && d->channels != 4))
        return CU_INVALID;
    CUarray a = calloc(1, sizeof *a);
    a->desc = *d;
    a->dev = emu_context()->dev;
    a->element = format_bytes(d->format) * d->channels;
    a->pitch = (d->width * a->element + 511) & ~(size_t)511;
    a->bytes = a->pitch * (d->height ? d->height : 1) * (d->depth ? d->depth : 1);
    CUresult r = emu_forbid_in_capture();
    if (!r)
        r = emu_mem_new(a->bytes, MEM_DEVICE, a->dev, a->bytes, &a->ptr);
    if (r)
        free(a);
    else
        *out = a;
    return r;
}

API CUresult cuArrayCreate_v2(CUarray *out, const CUarray2d *d)
{
    if (!d)
        return CU_INVALID;
    CUarray3d d3 = {d->width, d->height, 0, d->format, d->channels, 0};
    return cuArray3DCreate_v2(out, &d3);
}

API CUresult cuArrayDestroy(CUarray a)
{
    NEED_INIT();
    if (!a)
        return CU_INVALID_HANDLE;
    CUresult r = emu_mem_drop(a->ptr);
    free(a);
    return r;
}

API CUresult cuArray3DGetDescriptor_v2(CUarray3d *d, CUarray a)
{
    NEED_CTX();
    *d = a->desc;
    return CU_OK;
}

API CUresult cuArrayGetDescriptor_v2(CUarray2d *d, CUarray a)
{
    NEED_CTX();
    *d = (CUarray2d){a->desc.width, a->desc.height, a->desc.format, a->desc.channels};
    return CU_OK;
}

typedef struct { size_t size, alignment; unsigned reserved[4]; } requirements;

API CUresult cuArrayGetMemoryRequirements(requirements *r, CUarray a, CUdevice dev)
{
    NEED_INIT();
    *r = (requirements){a->bytes, 512, {0}};
    return CU_OK;
}

/* mipmap.c: mipmapped arrays: one array a level, each half the size of the one before. */
#include <stdlib.h>
#include "emu.h"

#define LEVELS 16
typedef struct { CUarray level[LEVELS]; unsigned levels, flags; size_t bytes; } mipmap;
typedef struct { size_t size, alignment; unsigned reserved[4]; } requirements;
CUresult cuArray3DCreate_v2(CUarray *out, const CUarray3d *d);
CUresult cuArrayDestroy(CUarray a);

API CUresult cuMipmappedArrayDestroy(mipmap *m)
{
    NEED_INIT();
    if (!m)
        return CU_INVALID_HANDLE;
    for (unsigned i = 0; i < m->levels; i++)
        cuArrayDestroy(m->level[i]);
    free(m);
    return CU_OK;
}

API CUresult cuMipmappedArrayCreate(mipmap **out, const CUarray3d *d, unsigned levels)
{
    NEED_CTX();
    if (!out || !d || !levels)
        return CU_INVALID;
    mipmap *m = calloc(1, sizeof *m);
    m->flags = d->flags;
    CUarray3d size = *d;
    for (unsigned i = 0; i < levels && i < LEVELS; i++) {
        CUresult r = cuArray3DCreate_v2(&m->level[i], &size);
        if (r) {
            cuMipmappedArrayDestroy(m);
            return r;
        }
        m->bytes += m->level[m->levels++]->bytes;
        size.width = size.width > 1 ? size.width / 2 : 1;
        size.height = size.height > 1 ? size.height / 2 : size.height;
        size.depth = size.depth > 1 ? size.depth / 2 : size.depth;
    }
    *out = m;
    return CU_OK;
}

API CUresult cuMipmappedArrayGetLevel(CUarray *out, mipmap *m, unsigned level)
{
    NEED_CTX();
    if (!m || level >= m->levels)
        return CU_INVALID;
    *out = m->level[level];
    return CU_OK;
}

API CUresult cuMipmappedArrayGetMemoryRequirements(requirements *r, mipmap *m, CUdevice dev)
{
    NEED_INIT();
    if (!m || !r || (emu_conf()->strict && !(m->flags & EMU_DEFERRED)))
        return CU_INVALID;
    *r = (requirements){m->bytes, 512, {0}};
    return CU_OK;
}

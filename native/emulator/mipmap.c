/* mipmap.c: mipmapped arrays: one array a level, each half the size of the one before. */
#include "emu.h"

#define LEVELS 16
typedef struct {
    emu_head object;
    CUarray level[LEVELS];
    unsigned levels, flags;
    size_t bytes;
} mipmap;
typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} requirements;
CUresult cuArray3DCreate_v2(CUarray *out, const CUarray3d *d);

bool emu_mipmap_alive(const void *m)
{
    return emu_object_alive(m, KIND_MIPMAP) && emu_array_use(((const mipmap *)m)->level[0]) == CU_OK;
}

API CUresult cuMipmappedArrayDestroy(mipmap *m)
{
    NEED_INIT();
    if (!emu_object_end_once(m, KIND_MIPMAP))
        return CU_INVALID_HANDLE;
    CUresult r = CU_OK;
    for (unsigned i = 0; i < m->levels; i++) {
        CUresult one = emu_array_end(m->level[i]);
        r = r ? r : one;
    }
    emu_object_free(m, NULL);
    return r;
}

API CUresult cuMipmappedArrayCreate(mipmap **out, const CUarray3d *d, unsigned levels)
{
    NEED_CTX();
    if (!out || !d || !levels)
        return CU_INVALID;
    mipmap *m = emu_object_new(KIND_MIPMAP, sizeof *m);
    if (!m)
        return CU_OOM;
    m->flags = d->flags;
    CUarray3d size = *d;
    for (unsigned i = 0; i < levels && i < LEVELS; i++) {
        CUresult r = cuArray3DCreate_v2(&m->level[i], &size);
        if (r) {
            cuMipmappedArrayDestroy(m);
            return r;
        }
        m->level[i]->part = true;
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
    if (!emu_mipmap_alive(m))
        return CU_INVALID_HANDLE;
    if (!out || level >= m->levels)
        return CU_INVALID;
    *out = m->level[level];
    return CU_OK;
}

API CUresult cuMipmappedArrayGetMemoryRequirements(requirements *r, mipmap *m, CUdevice dev)
{
    NEED_INIT();
    if (!emu_mipmap_alive(m))
        return CU_INVALID_HANDLE;
    if (!r || (emu_conf()->strict && !(m->flags & EMU_DEFERRED)))
        return CU_INVALID;
    *r = (requirements){m->bytes, 512, {0}};
    return CU_OK;
}

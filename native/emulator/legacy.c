/* legacy.c: the first version of the driver interface: 32-bit device pointers and sizes, and launches whose block shape
 * and parameters are set on the function beforehand. Programs linked against very old headers still ask for these names.
 */
#include <stdlib.h>
#include <string.h>
#include "emu.h"
#include "shm.h"

#define PARAMETER_BYTES 4096
struct emu_legacy {
    unsigned x, y, z, shared, size;
    char parameters[PARAMETER_BYTES];
};
typedef struct {
    unsigned width, height;
    int format;
    unsigned channels;
} array_1;
typedef struct {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
} array3d_1;
CUresult cuArray3DCreate_v2(CUarray *out, const CUarray3d *d);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n);
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream s, void **params, void **extra);

API CUresult cuMemAlloc(unsigned *out, unsigned size)
{
    NEED_CTX();
    CUdeviceptr p;
    CUresult r = out && size ? emu_forbid_in_capture() : CU_INVALID;
    if (!r)
        r = emu_mem_new(size, MEM_LOW, emu_current()->dev, true, &p);
    if (!r)
        *out = (unsigned)p;
    return r;
}

API CUresult cuMemAllocPitch(unsigned *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CU_INVALID;
    uint64_t row = (width + 511ull) & ~511ull;
    if (row * height >> 32)
        return CU_OOM;
    *pitch = (unsigned)row;
    return cuMemAlloc(out, (unsigned)(row * height));
}

API CUresult cuMemFree(unsigned p) { return emu_mem_free(p); }
API CUresult cuMemcpyDtoH(void *to, unsigned from, unsigned n) { return cuMemcpyDtoH_v2(to, from, n); }
API CUresult cuMemcpyHtoD(unsigned to, const void *from, unsigned n) { return cuMemcpyHtoD_v2(to, from, n); }

/* What does not fit is shown as the largest number that does. */
API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    NEED_CTX();
    if (!free_bytes || !total)
        return CU_INVALID;
    uint64_t t, f;
    shm_memory(emu_current()->dev, &t, &f);
    *free_bytes = f > UINT32_MAX ? UINT32_MAX : (unsigned)f;
    *total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
    return CU_OK;
}

API CUresult cuArrayCreate(CUarray *out, const array_1 *d)
{
    if (!d)
        return CU_INVALID;
    CUarray3d wide = {d->width, d->height, 0, d->format, d->channels, 0};
    return cuArray3DCreate_v2(out, &wide);
}

API CUresult cuArray3DCreate(CUarray *out, const array3d_1 *d)
{
    if (!d)
        return CU_INVALID;
    CUarray3d wide = {d->width, d->height, d->depth, d->format, d->channels, d->flags};
    return cuArray3DCreate_v2(out, &wide);
}

/* NULL: no memory. */
static struct emu_legacy *settings(CUfunction f)
{
    if (!f->legacy && (f->legacy = calloc(1, sizeof *f->legacy)))
        f->legacy->x = f->legacy->y = f->legacy->z = 1;
    return f->legacy;
}

#define SETTINGS(f)                                                                                                    \
    struct emu_legacy *l = settings(f);                                                                                \
    if (!l)                                                                                                            \
    return CU_OOM

API CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    SETTINGS(f);
    if (x <= 0 || y <= 0 || z <= 0)
        return CU_INVALID;
    l->x = (unsigned)x;
    l->y = (unsigned)y;
    l->z = (unsigned)z;
    return CU_OK;
}

API CUresult cuFuncSetSharedSize(CUfunction f, unsigned bytes)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    SETTINGS(f);
    l->shared = bytes;
    return CU_OK;
}

API CUresult cuParamSetSize(CUfunction f, unsigned bytes)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    SETTINGS(f);
    if (bytes > PARAMETER_BYTES)
        return CU_INVALID;
    l->size = bytes;
    return CU_OK;
}

API CUresult cuParamSetv(CUfunction f, int at, const void *value, unsigned bytes)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    SETTINGS(f);
    if (at < 0 || bytes > PARAMETER_BYTES || (unsigned)at > PARAMETER_BYTES - bytes)
        return CU_INVALID;
    NEED_OUT(value || !bytes);
    if (bytes)
        memcpy(l->parameters + at, value, bytes);
    return CU_OK;
}

API CUresult cuParamSeti(CUfunction f, int at, unsigned value) { return cuParamSetv(f, at, &value, sizeof value); }

API CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream s)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    SETTINGS(f);
    if (width <= 0 || height <= 0)
        return CU_INVALID;
    size_t size = l->size;
    void *extra[] = {(void *)1, l->parameters, (void *)2, &size, NULL};
    return cuLaunchKernel(f, (unsigned)width, (unsigned)height, 1, l->x, l->y, l->z, l->shared, s, NULL, extra);
}

API CUresult cuLaunchGrid(CUfunction f, int width, int height) { return cuLaunchGridAsync(f, width, height, NULL); }
API CUresult cuLaunch(CUfunction f) { return cuLaunchGridAsync(f, 1, 1, NULL); }

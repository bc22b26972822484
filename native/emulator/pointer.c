/* pointer.c: what is known about an address, and advice about managed memory (accepted, without effect). */
#include <string.h>
#include "emu.h"

enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };

static CUresult attribute(void *data, int which, CUdeviceptr p)
{
    emu_mem *m = emu_mem_find(p);
    if (!m || !data)
        return CU_INVALID;
    bool host = m->kind == MEM_HOST || m->kind == MEM_REGISTERED;
    switch (which) {
    case 1: *(CUcontext *)data = m->ctx; break;
    case 2: *(unsigned *)data = host ? TYPE_HOST : TYPE_DEVICE; break;
    case 3: *(CUdeviceptr *)data = p; break;
    case 4: *(void **)data = host || m->kind == MEM_MANAGED ? (void *)p : NULL; break;
    case 6: *(int *)data = 0; break;
    case 7:
    case 20: *(unsigned long long *)data = m->id; break;
    case 8: *(int *)data = m->kind == MEM_MANAGED; break;
    case 9: *(int *)data = m->dev; break;
    case 10: *(int *)data = m->kind == MEM_DEVICE; break;
    case 11:
    case 19: *(CUdeviceptr *)data = m->base; break;
    case 12:
    case 18: *(size_t *)data = m->size; break;
    case 13: *(int *)data = 1; break;
    case 14: *(uint64_t *)data = m->kind == MEM_VMM; break;
    case 15: *(int *)data = 0; break;
    case 16: *(unsigned *)data = 3; break;
    case 17: *(CUmemoryPool *)data = m->pool; break;
    case 21: *(int *)data = 0; break;
    default: return CU_INVALID;
    }
    return CU_OK;
}

API CUresult cuPointerGetAttribute(void *data, int which, CUdeviceptr p)
{
    NEED_INIT();
    return attribute(data, which, p);
}

API CUresult cuPointerGetAttributes(unsigned count, int *which, void **data, CUdeviceptr p)
{
    NEED_INIT();
    NEED_OUT(!count || (which && data));
    for (unsigned i = 0; i < count; i++)
        if (attribute(data[i], which[i], p) != CU_OK && data[i]) {
            /* unknown addresses are not an error here: the answer is zero, and -2 for the device */
            bool word = which[i] == 2 || which[i] == 8 || which[i] == 9 || which[i] == 13;
            memset(data[i], 0, word ? 4 : 8);
            if (which[i] == 9)
                *(int *)data[i] = -2;
        }
    return CU_OK;
}

API CUresult cuPointerSetAttribute(const void *value, int which, CUdeviceptr p)
{
    NEED_CTX();
    return which == 6 && emu_mem_find(p) ? CU_OK : CU_INVALID;
}

API CUresult cuMemAdvise(CUdeviceptr p, size_t size, int advice, CUdevice dev)
{
    NEED_INIT();
    return emu_mem_find(p) ? CU_OK : CU_INVALID;
}

API CUresult cuMemAdvise_v2(CUdeviceptr p, size_t size, int advice, CUmemLocation where)
{
    return cuMemAdvise(p, size, advice, 0);
}

API CUresult cuMemPrefetchAsync(CUdeviceptr p, size_t size, CUdevice dev, CUstream s)
{
    NEED_CTX();
    return emu_stream(s) ? cuMemAdvise(p, size, 0, dev) : CU_INVALID_HANDLE;
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, size_t size, CUmemLocation where, unsigned flags, CUstream s)
{
    return cuMemPrefetchAsync(p, size, 0, s);
}

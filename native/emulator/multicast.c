/* multicast.c: objects that devices join and memory is bound to.
 *
 * Nothing is copied from one device to the others; a mapping of the object shows memory of its own.
 */
#include "shm.h"
#include "vmm.h"

typedef struct {
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
} multicast_prop;
#define MULTICAST_CHARGED (64u << 10)

API CUresult cuMulticastGetGranularity(size_t *out, const multicast_prop *prop, int option)
{
    NEED_INIT();
    if (emu_conf()->major < 9)
        return CU_NOT_SUPPORTED;
    NEED_OUT(out && prop);
    *out = GRAIN;
    return CU_OK;
}

API CUresult cuMulticastCreate(handle **out, const multicast_prop *prop)
{
    NEED_CTX();
    if (emu_conf()->major < 9)
        return CU_NOT_SUPPORTED;
    if (!out || !prop || !prop->devices || !prop->size || prop->size % GRAIN || prop->flags)
        return CU_INVALID;
    CUallocProp host = {.type = 1, .location = {2, 0}};
    if (shm_charge(emu_current()->dev, MULTICAST_CHARGED) != 0)
        return CU_OOM;
    CUresult r = cuMemCreate(out, prop->size, &host, 0);
    if (r) {
        shm_release(emu_current()->dev, MULTICAST_CHARGED);
        return r;
    }
    physical *p = (*out)->of;
    p->prop.location = (CUmemLocation){1, emu_current()->dev};
    p->charged = MULTICAST_CHARGED;
    p->wanted = prop->devices;
    return CU_OK;
}

API CUresult cuMulticastAddDevice(handle *of, CUdevice dev)
{
    NEED_INIT();
    physical *h = emu_physical(of);
    if (!h || !h->wanted || dev < 0 || dev >= emu_conf()->count || h->devices & 1u << dev)
        return CU_INVALID;
    if ((unsigned)__builtin_popcount(h->devices) == h->wanted)
        return CU_INVALID;
    h->devices |= 1u << dev;
    return CU_OK;
}

static CUresult bind(handle *of, size_t at, size_t size, size_t available)
{
    NEED_INIT();
    const physical *h = emu_physical(of);
    if (!h || (unsigned)__builtin_popcount(h->devices) != h->wanted || at % GRAIN || !size || size % GRAIN)
        return CU_INVALID;
    return at + size <= h->size && size <= available ? CU_OK : CU_INVALID;
}

API CUresult cuMulticastBindMem(handle *h, size_t at, handle *m, size_t from, size_t size, unsigned long long flags)
{
    const physical *p = emu_physical(m);
    return p && from <= p->size ? bind(h, at, size, p->size - from) : CU_INVALID;
}

API CUresult cuMulticastBindMem_v2(handle *h, CUdevice dev, size_t at, handle *m, size_t from, size_t size,
                                   unsigned long long flags)
{
    return cuMulticastBindMem(h, at, m, from, size, flags);
}

API CUresult cuMulticastBindAddr(handle *h, size_t at, CUdeviceptr p, size_t size, unsigned long long flags)
{
    emu_mem *m = emu_mem_find(p);
    return m ? bind(h, at, size, m->base + m->size - p) : CU_INVALID;
}

API CUresult cuMulticastBindAddr_v2(handle *h, CUdevice dev, size_t at, CUdeviceptr p, size_t size,
                                    unsigned long long flags)
{
    return cuMulticastBindAddr(h, at, p, size, flags);
}

API CUresult cuMulticastUnbind(handle *of, CUdevice dev, size_t at, size_t size)
{
    NEED_INIT();
    const physical *h = emu_physical(of);
    return h && h->wanted && at + size <= h->size ? CU_OK : CU_INVALID;
}

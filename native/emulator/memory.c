/* memory.c: allocations. Device memory is host memory mapped on first touch, charged in engine.shm when it is allocated. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "emu.h"
#include "shm.h"

static long allocations;

static size_t page_round(size_t size) { return (size + 4095) & ~(size_t)4095; }

CUresult emu_mem_drop(CUdeviceptr base)
{
    emu_mem m;
    if (!emu_mem_take(base, &m))
        return CU_INVALID;
    if (m.kind != MEM_REGISTERED && !m.charged.page)
        munmap((void *)m.base, page_round(m.size));
    emu_uncharge(&m.charged);
    return CU_OK;
}

bool emu_mem_remove(CUdeviceptr base)
{
    emu_mem m;
    return emu_mem_take(base, &m);
}

/* A context takes its allocations with it. */
void emu_mem_drop_context(CUcontext c)
{
    emu_mem m;
    for (CUdeviceptr from = 0; emu_mem_next(from, &m); from = m.base + 1)
        if (m.ctx == c && m.kind != MEM_POOL && m.kind != MEM_VMM)
            emu_mem_drop(m.base);
}

bool emu_oom_fault(void)
{
    long nth = emu_conf()->fault.oom_after;
    return nth >= 0 && __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED) >= nth;
}

static void *map_bytes(size_t size, bool low)
{
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (low ? MAP_32BIT : 0);
    return mmap(NULL, page_round(size), PROT_READ | PROT_WRITE, how, -1, 0);
}

CUresult emu_mem_new(size_t size, enum mem_kind kind, int dev, bool charge, CUdeviceptr *out)
{
    CUcontext owner = kind == MEM_POOL ? NULL : emu_root(emu_current()); /* a pool has no context */
    emu_charge charged = {0};
    bool low = kind == MEM_LOW;
    charge |= kind == MEM_POOL;
    if (emu_oom_fault() || (charge && emu_charge_memory(dev, owner, kind, size, &charged) != CU_OK))
        return CU_OOM;
    void *p = charged.page ? (void *)charged.address : map_bytes(size, low);
    kind = low ? MEM_DEVICE : kind;
    emu_mem m = {.base = (CUdeviceptr)p, .size = size, .charged = charged, .kind = kind, .dev = dev, .ctx = owner};
    if (p == MAP_FAILED || emu_mem_insert(m) != CU_OK) {
        if (p != MAP_FAILED && !charged.page)
            munmap(p, page_round(size));
        emu_uncharge(&charged);
        return CU_OOM;
    }
    *out = m.base;
    if (!owner || owner->alive)
        return CU_OK;
    emu_mem_drop(m.base); /* another thread has destroyed the context during this call, and may not have seen this */
    return CU_CONTEXT_DESTROYED;
}

static CUresult allocate(CUdeviceptr *out, size_t size, enum mem_kind kind)
{
    NEED_CTX();
    if (!out || !size)
        return CU_INVALID;
    CUresult r = emu_forbid_in_capture();
    if (r)
        return r;
    return emu_mem_new(size, kind, emu_current()->dev, kind != MEM_HOST, out);
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) { return allocate(out, size, MEM_DEVICE); }

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    if (flags != 1 && flags != 2)
        return CU_INVALID;
    return allocate(out, size, MEM_MANAGED);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CU_INVALID;
    size_t row, size;
    if (__builtin_add_overflow(width, 511, &row) || __builtin_mul_overflow(row & ~(size_t)511, height, &size))
        return CU_OOM;
    *pitch = row & ~(size_t)511;
    return allocate(out, size, MEM_DEVICE);
}

API CUresult cuMemAllocHost_v2(void **out, size_t size) { return allocate((CUdeviceptr *)out, size, MEM_HOST); }
API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) { return cuMemAllocHost_v2(out, size); }

static CUresult release(CUdeviceptr p, bool host)
{
    NEED_INIT();
    if (!p)
        return CU_OK;
    emu_mem *m = emu_mem_find(p);
    if (!m || m->base != p || host != (m->kind == MEM_HOST) || m->kind == MEM_VMM || m->kind == MEM_REGISTERED)
        return CU_INVALID;
    CUresult r = emu_forbid_in_capture();
    if (r)
        return r;
    emu_mem copy = *m;
    CUcontext c = copy.kind == MEM_POOL ? emu_context() : copy.ctx;
    if (c)
        emu_ctx_sync(c);
    if (copy.kind == MEM_POOL) {
        if (!copy.pool)
            emu_graph_free_asked(p);
        pthread_mutex_lock(&emu_lock);
        emu_pool_free(&copy);
        emu_unlock();
        return CU_OK;
    }
    return emu_mem_drop(p);
}

API CUresult cuMemFree_v2(CUdeviceptr p) { return release(p, false); }
CUresult emu_mem_free(CUdeviceptr p) { return release(p, false); }
API CUresult cuMemFreeHost(void *p) { return release((CUdeviceptr)p, true); }

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags)
{
    NEED_CTX();
    if (!out || !emu_mem_find((CUdeviceptr)p))
        return CU_INVALID;
    *out = (CUdeviceptr)p;
    return CU_OK;
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *p)
{
    NEED_CTX();
    emu_mem *m = emu_mem_find((CUdeviceptr)p);
    if (!flags || !m)
        return CU_INVALID;
    *flags = m->flags | 2;
    return CU_OK;
}

API CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags)
{
    NEED_CTX();
    if (!p || !size)
        return CU_INVALID;
    if (emu_mem_find((CUdeviceptr)p))
        return 712; /* already registered */
    return emu_mem_insert((emu_mem){.base = (CUdeviceptr)p,
                                    .size = size,
                                    .kind = MEM_REGISTERED,
                                    .dev = emu_current()->dev,
                                    .flags = flags,
                                    .ctx = emu_current()});
}

API CUresult cuMemHostUnregister(void *p)
{
    NEED_CTX();
    return emu_mem_drop((CUdeviceptr)p) ? 713 : CU_OK; /* not registered */
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    NEED_CTX();
    CUresult r = emu_unsafe_call(UNSAFE_MEM_INFO);
    if (r)
        return r;
    uint64_t t, f;
    shm_memory(emu_current()->dev, &t, &f);
    if (free_bytes)
        *free_bytes = f;
    if (total)
        *total = t;
    return CU_OK;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    NEED_CTX();
    emu_mem *m = emu_mem_find(p);
    if (!m)
        return CU_NOT_FOUND;
    if (base)
        *base = m->base;
    if (size)
        *size = m->size;
    return CU_OK;
}

/* memory.c: allocations. Device memory is host memory mapped on first touch, booked in engine.shm when it is allocated.
 *
 * The table of allocations is sorted by address; every pointer the driver is asked about is looked up there.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "emu.h"
#include "shm.h"

static emu_mem *table;
static size_t count, capacity;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_id;
static long allocations;

static size_t page_round(size_t size) { return (size + 4095) & ~(size_t)4095; }

/* Index of the last entry with base <= p, or count when there is none. */
static size_t lookup(CUdeviceptr p)
{
    size_t lo = 0, hi = count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (table[mid].base <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? lo - 1 : count;
}

CUresult emu_mem_insert(emu_mem m)
{
    pthread_mutex_lock(&table_lock);
    if (count == capacity) {
        size_t grown = capacity ? capacity * 2 : 256;
        emu_mem *t = realloc(table, grown * sizeof *t);
        if (!t) {
            pthread_mutex_unlock(&table_lock);
            return CU_OOM;
        }
        table = t;
        capacity = grown;
    }
    size_t at = lookup(m.base);
    at = at == count ? 0 : at + 1;
    memmove(table + at + 1, table + at, (count - at) * sizeof *table);
    m.id = ++next_id;
    table[at] = m;
    count++;
    pthread_mutex_unlock(&table_lock);
    return CU_OK;
}

emu_mem *emu_mem_find(CUdeviceptr p)
{
    static __thread emu_mem found; /* a copy: the table moves */
    pthread_mutex_lock(&table_lock);
    size_t at = lookup(p);
    bool hit = at < count && (p < table[at].base + table[at].size || p == table[at].base);
    if (hit)
        found = table[at];
    pthread_mutex_unlock(&table_lock);
    return hit ? &found : NULL;
}

static bool take_out(CUdeviceptr base, emu_mem *out)
{
    pthread_mutex_lock(&table_lock);
    size_t at = lookup(base);
    bool hit = at < count && table[at].base == base;
    if (hit) {
        *out = table[at];
        memmove(table + at, table + at + 1, (count - at - 1) * sizeof *table);
        count--;
    }
    pthread_mutex_unlock(&table_lock);
    return hit;
}

CUresult emu_mem_drop(CUdeviceptr base)
{
    emu_mem m;
    if (!take_out(base, &m))
        return CU_INVALID;
    if (m.kind != MEM_REGISTERED && !m.booked.page)
        munmap((void *)m.base, page_round(m.size));
    emu_unbook(&m.booked);
    return CU_OK;
}

bool emu_mem_remove(CUdeviceptr base)
{
    emu_mem m;
    return take_out(base, &m);
}

void emu_mem_set_pool(CUdeviceptr base, CUmemoryPool pool)
{
    pthread_mutex_lock(&table_lock);
    size_t at = lookup(base);
    if (at < count && table[at].base == base)
        table[at].pool = pool;
    pthread_mutex_unlock(&table_lock);
}

/* A context takes its allocations with it. */
void emu_mem_drop_context(CUcontext c)
{
    for (bool any = true; any;) {
        CUdeviceptr base = 0;
        pthread_mutex_lock(&table_lock);
        for (size_t i = 0; i < count && !base; i++)
            if (table[i].ctx == c && table[i].kind != MEM_POOL && table[i].kind != MEM_VMM)
                base = table[i].base;
        pthread_mutex_unlock(&table_lock);
        any = base && emu_mem_drop(base) == CU_OK;
    }
}

static bool oom_fault(void)
{
    long nth = emu_conf()->fault.oom_after;
    return nth >= 0 && __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED) >= nth;
}

static void *map_bytes(size_t size, bool low)
{
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (low ? MAP_32BIT : 0);
    return mmap(NULL, page_round(size), PROT_READ | PROT_WRITE, how, -1, 0);
}

CUresult emu_mem_new(size_t size, enum mem_kind kind, int dev, bool book, CUdeviceptr *out)
{
    CUcontext owner = kind == MEM_POOL ? NULL : emu_context(); /* a pool has no context */
    owner = owner ? emu_root(owner) : NULL;
    emu_booking booked = {0};
    bool low = kind == MEM_LOW;
    if (oom_fault() || (book && emu_book(dev, owner, kind, size, &booked) != CU_OK))
        return CU_OOM;
    void *p = booked.page ? (void *)booked.address : map_bytes(size, low);
    kind = low ? MEM_DEVICE : kind;
    emu_mem m = {.base = (CUdeviceptr)p, .size = size, .booked = booked, .kind = kind, .dev = dev, .ctx = owner};
    if (p == MAP_FAILED || emu_mem_insert(m) != CU_OK) {
        emu_unbook(&booked);
        return CU_OOM;
    }
    *out = m.base;
    if (!owner || owner->alive)
        return CU_OK;
    emu_mem_drop(m.base); /* another thread has just destroyed the context, and may not have seen this */
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
    *pitch = (width + 511) & ~(size_t)511;
    return allocate(out, *pitch * height, MEM_DEVICE);
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
        pthread_mutex_lock(&emu_lock);
        emu_pool_free(&copy);
        pthread_mutex_unlock(&emu_lock);
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
    if (!emu_mem_find((CUdeviceptr)p))
        return CU_INVALID;
    *out = (CUdeviceptr)p;
    return CU_OK;
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *p)
{
    NEED_CTX();
    emu_mem *m = emu_mem_find((CUdeviceptr)p);
    if (!m)
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
    return emu_mem_insert((emu_mem){.base = (CUdeviceptr)p, .size = size, .kind = MEM_REGISTERED,
        .dev = emu_current()->dev, .flags = flags, .ctx = emu_current()});
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

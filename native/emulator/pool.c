/* pool.c: memory pools and stream-ordered allocation.
 *
 * A pool charges what it reserves from the device; memory freed to it stays reserved up to the release threshold and is
 * handed out again without asking the device. In strict mode it reserves 32 MiB at a time, as on hardware. A destroyed
 * pool stays until the last of its memory is freed.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "pool.h"
#include "shm.h"

enum { ATTR_THRESHOLD = 4, ATTR_RESERVED = 5, ATTR_RESERVED_HIGH = 6, ATTR_USED = 7, ATTR_USED_HIGH = 8 };
#define GRAIN 512
#define POSIX_FD 1
static CUmemoryPool defaults[EMU_GPUS], current[EMU_GPUS];

CUmemoryPool emu_pool_new(int dev)
{
    CUmemoryPool p = emu_object_new(KIND_POOL, sizeof *p);
    if (!p)
        return NULL;
    p->dev = dev;
    p->fd = -1;
    p->attrs[1] = p->attrs[2] = p->attrs[3] = 1;
    return p;
}

CUmemoryPool emu_pool_default(int dev)
{
    pthread_mutex_lock(&emu_lock);
    CUmemoryPool p = defaults[dev] ? defaults[dev] : emu_pool_new(dev);
    if (p)
        p->is_default = true;
    defaults[dev] = p;
    emu_unlock();
    return p;
}

uint64_t emu_pool_steps(uint64_t bytes)
{
    uint64_t step = emu_conf()->strict ? 32ull << 20 : 1;
    return (bytes + step - 1) / step * step;
}

/* Give back what is reserved but unused, down to `keep` bytes. Called with emu_lock held. */
static void trim(CUmemoryPool p, uint64_t keep)
{
    if (p->reserved <= keep) /* also where `keep` has no next step */
        return;
    uint64_t floor = emu_pool_steps(p->used > keep ? p->used : keep);
    if (p->reserved > floor) {
        shm_release(p->dev, p->reserved - floor);
        p->reserved = floor;
    }
}

static uint64_t grains(uint64_t size) { return (size + GRAIN - 1) & ~(uint64_t)(GRAIN - 1); }

static void release(void *pool)
{
    if (((CUmemoryPool)pool)->fd >= 0)
        close(((CUmemoryPool)pool)->fd);
}

void emu_pool_used(CUmemoryPool p, uint64_t size)
{
    p->used += grains(size);
    p->used_high = p->used > p->used_high ? p->used : p->used_high;
}

void emu_pool_free(emu_mem *m)
{
    CUmemoryPool p = m->pool;
    if (!p) {
        emu_graph_freed(m->base);
        return;
    }
    if (emu_mem_drop(m->base) != CU_OK)
        return;
    emu_pool_unmap(m);
    p->used -= grains(m->size);
    trim(p, p->threshold);
    if (!p->used && !emu_object_alive(p, KIND_POOL))
        emu_object_free(p, release);
}

static CUresult from_pool(CUmemoryPool p, size_t size, CUdeviceptr *out)
{
    if (p->fd >= 0)
        return emu_pool_map(p, size, out);
    CUresult r = emu_mem_new(size, MEM_POOL, p->dev, false, out);
    if (!r)
        emu_mem_set_pool(*out, p);
    return r;
}

/* With emu_lock. */
static CUresult pool_alloc(CUdeviceptr *out, size_t size, CUmemoryPool p)
{
    uint64_t need = grains(size), spare = p->reserved - p->used, more = need > spare ? emu_pool_steps(need - spare) : 0;
    if (p->imported)
        return CU_INVALID;
    if ((p->props.max_size && p->used + need > p->props.max_size) || (more && shm_charge(p->dev, more) != 0))
        return CU_OOM;
    p->reserved += more;
    p->reserved_high = p->reserved > p->reserved_high ? p->reserved : p->reserved_high;
    CUresult r = from_pool(p, size, out);
    if (r)
        trim(p, p->threshold);
    else
        emu_pool_used(p, size);
    return r;
}

static CUmemoryPool pool_of(int dev) { return current[dev] ? current[dev] : emu_pool_default(dev); }

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream s)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    NEED_POOL(p);
    if (!out || !size || !st)
        return CU_INVALID;
    if (st->capture) {
        CUallocNode a = {.props = {.alloc_type = 1, .location = {1, p->dev}}, .bytes = size};
        CUgraphNode node;
        CUresult r = emu_capture_add(st, 10, &a, sizeof a, &node);
        if (!r)
            *out = emu_node_ptr(node);
        return r;
    }
    pthread_mutex_lock(&emu_lock);
    CUresult r = emu_object_alive(p, KIND_POOL) ? pool_alloc(out, size, p) : CU_INVALID;
    emu_unlock();
    return r;
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream s)
{
    NEED_CTX();
    CUmemoryPool p = pool_of(emu_current()->dev);
    return p ? cuMemAllocFromPoolAsync(out, size, p, s) : CU_OOM;
}

API CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream s)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    emu_mem *m = emu_mem_find(ptr);
    if (!st || !m || m->base != ptr || m->kind == MEM_HOST || m->kind == MEM_VMM || m->kind == MEM_REGISTERED)
        return CU_INVALID;
    if (st->capture)
        return emu_capture_add(st, 11, &ptr, sizeof ptr, NULL);
    pthread_mutex_lock(&emu_lock);
    emu_op *op = emu_op_new(&(emu_op){.kind = OP_FREE, .u.ptr = ptr});
    if (op && !m->pool)
        emu_graph_free_asked(ptr);
    CUresult r = emu_submit(st, op);
    emu_unlock();
    return r;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUpoolProps *props)
{
    NEED_INIT();
    if (!out || !props || props->alloc_type != 1)
        return CU_INVALID;
    int dev = props->location.type == 1 ? props->location.id : 0;
    if (dev < 0 || dev >= emu_conf()->count)
        return CU_INVALID_DEVICE;
    if (props->handle_types & ~POSIX_FD)
        return CU_NOT_SUPPORTED;
    CUmemoryPool p = emu_pool_new(dev);
    if (!p)
        return CU_OOM;
    p->props = *props;
    CUresult r = props->handle_types ? emu_pool_share(p) : CU_OK;
    if (r) {
        emu_object_end(p, END_DESTROYED);
        emu_object_free(p, release);
        return r;
    }
    *out = p;
    return CU_OK;
}

API CUresult cuMemPoolDestroy(CUmemoryPool p)
{
    NEED_POOL(p);
    if (p->is_default)
        return CU_INVALID;
    pthread_mutex_lock(&emu_lock);
    CUresult r = emu_use(p, KIND_POOL, __func__) ? CU_INVALID : CU_OK;
    if (!r) {
        p->threshold = 0;
        trim(p, 0);
        if (current[p->dev] == p)
            current[p->dev] = NULL;
        emu_object_end(p, END_DESTROYED);
        if (!p->used)
            emu_object_free(p, release);
    }
    emu_unlock();
    return r;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t keep)
{
    NEED_POOL(p);
    pthread_mutex_lock(&emu_lock);
    trim(p, keep);
    emu_unlock();
    return CU_OK;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool p, int attribute, void *value)
{
    NEED_POOL(p);
    if (!value)
        return CU_INVALID;
    if (attribute >= 1 && attribute <= 3)
        p->attrs[attribute] = *(unsigned *)value;
    else if (attribute == ATTR_THRESHOLD)
        p->threshold = *(uint64_t *)value;
    else if (attribute == ATTR_RESERVED_HIGH && !*(uint64_t *)value)
        p->reserved_high = p->reserved;
    else if (attribute == ATTR_USED_HIGH && !*(uint64_t *)value)
        p->used_high = p->used;
    else
        return CU_INVALID;
    return CU_OK;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool p, int attribute, void *value)
{
    NEED_POOL(p);
    if (!value)
        return CU_INVALID;
    CUresult result = CU_OK;
    pthread_mutex_lock(&emu_lock);
    switch (attribute) {
    case 1:
    case 2:
    case 3: *(int *)value = (int)p->attrs[attribute]; break;
    case ATTR_THRESHOLD: *(uint64_t *)value = p->threshold; break;
    case ATTR_RESERVED: *(uint64_t *)value = p->reserved; break;
    case ATTR_RESERVED_HIGH: *(uint64_t *)value = p->reserved_high; break;
    case ATTR_USED: *(uint64_t *)value = p->used; break;
    case ATTR_USED_HIGH: *(uint64_t *)value = p->used_high; break;
    default: result = CU_INVALID;
    }
    emu_unlock();
    return result;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool p, const CUmemAccessDesc *d, size_t n)
{
    NEED_POOL(p);
    return CU_OK;
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool p, CUmemLocation *where)
{
    NEED_POOL(p);
    NEED_OUT(flags && where);
    *flags = where->type == 1 && where->id == p->dev ? 3 : 0;
    return CU_OK;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice dev)
{
    NEED_INIT();
    if (dev < 0 || dev >= emu_conf()->count)
        return CU_INVALID_DEVICE;
    NEED_OUT(out);
    CUmemoryPool p = emu_pool_default(dev);
    if (p)
        *out = p;
    return p ? CU_OK : CU_OOM;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice dev)
{
    CUresult r = cuDeviceGetDefaultMemPool(out, dev);
    if (!r && current[dev])
        *out = current[dev];
    return r;
}

API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool p)
{
    NEED_POOL(p);
    if (dev < 0 || dev >= emu_conf()->count || p->imported)
        return CU_INVALID;
    current[dev] = p;
    return CU_OK;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *where, int type)
{
    NEED_OUT(out && where);
    return where->type == 1 ? cuDeviceGetDefaultMemPool(out, where->id) : emu_unsupported("cuMemGetDefaultMemPool");
}

API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *where, int type)
{
    NEED_OUT(out && where);
    return where->type == 1 ? cuDeviceGetMemPool(out, where->id) : emu_unsupported("cuMemGetMemPool");
}

API CUresult cuMemSetMemPool(CUmemLocation *where, int type, CUmemoryPool p)
{
    NEED_OUT(where);
    return where->type == 1 ? cuDeviceSetMemPool(where->id, p) : emu_unsupported("cuMemSetMemPool");
}

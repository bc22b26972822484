/* vmm.c: virtual memory management: address ranges and physical memory handled apart.
 *
 * A handle is a memfd of the asked size, so mapping it twice shows the same bytes and it can be passed to another process
 * as a file descriptor. It is booked when created and given back when neither the handle nor a mapping is left.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "emu.h"
#include "shm.h"
#include "vmm.h"

typedef struct mapping { struct mapping *next; CUdeviceptr at; size_t size; handle *of; } mapping;
static mapping *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

API CUresult cuMemGetAllocationGranularity(size_t *out, const CUallocProp *prop, int option)
{
    NEED_INIT();
    *out = GRAIN;
    return CU_OK;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t align, CUdeviceptr hint, unsigned long long flags)
{
    NEED_INIT();
    if (!out || !size || size % GRAIN || flags)
        return CU_INVALID;
    size_t step = align > GRAIN ? align : GRAIN;
    char *p = mmap(NULL, size + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return CU_OOM;
    char *at = (char *)(((uintptr_t)p + step - 1) / step * step);
    if (at > p)
        munmap(p, (size_t)(at - p));
    if (p + step > at)
        munmap(at + size, (size_t)(p + step - at));
    *out = (CUdeviceptr)at;
    return CU_OK;
}

API CUresult cuMemAddressFree(CUdeviceptr at, size_t size)
{
    NEED_INIT();
    return munmap((void *)at, size) == 0 ? CU_OK : CU_INVALID;
}

API CUresult cuMemCreate(handle **out, size_t size, const CUallocProp *prop, unsigned long long flags)
{
    NEED_INIT();
    if (!out || !prop || !size || size % GRAIN || flags)
        return CU_INVALID;
    int dev = prop->location.id;
    bool device = prop->location.type == 1;
    if (device && (dev < 0 || dev >= emu_conf()->count))
        return CU_INVALID_DEVICE;
    if (device && shm_charge(dev, size) != 0)
        return CU_OOM;
    handle *h = calloc(1, sizeof *h);
    h->prop = *prop;
    h->size = size;
    h->refs = 1;
    h->booked = device ? size : 0;
    h->fd = anonymous_file("emulated-gpu-memory");
    if (h->fd < 0 || ftruncate(h->fd, (off_t)size) != 0) {
        if (device)
            shm_release(dev, size);
        free(h);
        return CU_OOM;
    }
    *out = h;
    return CU_OK;
}

static void unref(handle *h)
{
    if (--h->refs)
        return;
    close(h->fd);
    shm_release(h->prop.location.id, h->booked);
    free(h);
}

API CUresult cuMemRelease(handle *h)
{
    NEED_INIT();
    if (!h)
        return CU_INVALID;
    pthread_mutex_lock(&lock);
    unref(h);
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

API CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, handle *h, unsigned long long flags)
{
    NEED_INIT();
    if (!h || offset || size != h->size || at % GRAIN || flags)
        return CU_INVALID;
    if (mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->fd, 0) == MAP_FAILED)
        return CU_OOM;
    pthread_mutex_lock(&lock);
    mapping *m = calloc(1, sizeof *m);
    *m = (mapping){mappings, at, size, h};
    mappings = m;
    h->refs++;
    pthread_mutex_unlock(&lock);
    return emu_mem_insert((emu_mem){.base = at, .size = size, .kind = MEM_VMM, .dev = h->prop.location.id});
}

API CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
    NEED_INIT();
    bool any = false;
    pthread_mutex_lock(&lock);
    for (mapping **m = &mappings; *m;) {
        mapping *one = *m;
        if (one->at < at || one->at + one->size > at + size) {
            m = &one->next;
            continue;
        }
        *m = one->next;
        emu_mem_drop(one->at);
        mmap((void *)one->at, one->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        unref(one->of);
        free(one);
        any = true;
    }
    pthread_mutex_unlock(&lock);
    return any ? CU_OK : CU_INVALID;
}

API CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    NEED_INIT();
    return emu_mem_find(at) ? CU_OK : CU_INVALID;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *where, CUdeviceptr at)
{
    NEED_INIT();
    *flags = emu_mem_find(at) ? 3 : 0;
    return CU_OK;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUallocProp *prop, handle *h)
{
    NEED_INIT();
    *prop = h->prop;
    return CU_OK;
}

API CUresult cuMemRetainAllocationHandle(handle **out, void *at)
{
    NEED_INIT();
    CUresult r = CU_INVALID;
    pthread_mutex_lock(&lock);
    for (mapping *m = mappings; m && r; m = m->next)
        if ((CUdeviceptr)at >= m->at && (CUdeviceptr)at < m->at + m->size) {
            m->of->refs++;
            *out = m->of;
            r = CU_OK;
        }
    pthread_mutex_unlock(&lock);
    return r;
}

API CUresult cuMemExportToShareableHandle(int *fd, handle *h, int type, unsigned long long flags)
{
    NEED_INIT();
    if (type != 1)
        return CU_NOT_SUPPORTED;
    *fd = dup(h->fd);
    return *fd < 0 ? CU_OOM : CU_OK;
}

API CUresult cuMemImportFromShareableHandle(handle **out, void *fd, int type)
{
    NEED_INIT();
    struct stat st;
    int mine = type == 1 ? dup((int)(intptr_t)fd) : -1;
    if (mine < 0 || fstat(mine, &st) != 0)
        return CU_INVALID;
    handle *h = calloc(1, sizeof *h);
    *h = (handle){.prop = {.type = 1, .handle_types = 1, .location = {1, 0}}, .size = (size_t)st.st_size, .fd = mine,
        .refs = 1};
    *out = h;
    return CU_OK;
}

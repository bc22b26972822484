/* vmm.c: virtual memory management: address ranges and physical memory handled apart.
 *
 * A handle is a memfd of the asked size, so mapping it twice shows the same bytes and it can be passed to another process
 * as a file descriptor. It is charged when created and given back when no handle and no mapping is left, here or in the
 * processes that have imported it.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "emu.h"
#include "shm.h"
#include "vmm.h"

#define POSIX_FD 1
typedef struct mapping {
    struct mapping *next;
    CUdeviceptr at;
    size_t size;
    physical *of;
} mapping;
static mapping *mappings;
typedef struct range {
    struct range *next;
    CUdeviceptr at;
    size_t size;
} range;
static range *reserved;
static physical *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool overlap(CUdeviceptr at, size_t size, CUdeviceptr other, size_t other_size)
{
    return at < other + other_size && other < at + size;
}

/* How many bytes of a range are mapped, or SIZE_MAX where it cuts a mapping; with the lock. */
static size_t mapped(CUdeviceptr at, size_t size)
{
    size_t bytes = 0;
    for (mapping *m = mappings; m; m = m->next) {
        if (!overlap(at, size, m->at, m->size))
            continue;
        if (m->at < at || m->at + m->size > at + size)
            return SIZE_MAX;
        bytes += m->size;
    }
    return bytes;
}

static bool sound(CUdeviceptr at, size_t size) { return at && size && at + size > at; }

/* Inside one reservation and free; with the lock. */
static bool may_map(CUdeviceptr at, size_t size)
{
    range *r = reserved;
    while (r && (at < r->at || at + size > r->at + r->size))
        r = r->next;
    return r && mapped(at, size) == 0;
}

/* A handle that is gone is CUDA_ERROR_INVALID_VALUE and no more: programs find out by asking. */
physical *emu_physical(handle *h) { return emu_object_alive(h, KIND_MEMORY) ? h->of : NULL; }

static handle *handle_of(physical *p)
{
    handle *h = emu_object_new(KIND_MEMORY, sizeof *h);
    if (!h)
        return NULL;
    h->of = p;
    h->refs = 1;
    p->refs++;
    return h;
}

/* With a reference of the caller's, who gives it to first_handle. */
static physical *physical_new(const CUallocProp *prop, size_t size, int fd)
{
    struct stat st;
    physical *p = fd >= 0 && fstat(fd, &st) == 0 ? malloc(sizeof *p) : NULL;
    if (!p)
        return NULL;
    *p = (physical){.next = all, .prop = *prop, .size = size, .fd = fd, .refs = 1, .inode = (uint64_t)st.st_ino};
    return all = p;
}

static void unref(physical *p)
{
    if (--p->refs)
        return;
    for (physical **at = &all; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    close(p->fd);
    emu_parking_shared(-p->shared);
    if (p->shared)
        shm_let_go(p->inode);
    else
        shm_release(p->prop.location.id, p->charged);
    free(p);
}

/* NULL: there is no memory for it, and the physical memory is gone again. It is what cuMemRetainAllocationHandle answers:
 * NCCL uses that number after it has released it. */
static handle *first_handle(physical *p)
{
    handle *h = p->first = handle_of(p);
    unref(p);
    return h;
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const CUallocProp *prop, int option)
{
    NEED_INIT();
    NEED_OUT(out && prop);
    *out = GRAIN;
    return CU_OK;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t align, CUdeviceptr hint,
                                 unsigned long long flags)
{
    NEED_INIT();
    if (!out || !size || size % GRAIN || flags)
        return CU_INVALID;
    size_t step = align > GRAIN ? align : GRAIN;
    range *r = malloc(sizeof *r);
    char *p = r ? mmap(NULL, size + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        free(r);
        return CU_OOM;
    }
    char *at = (char *)(((uintptr_t)p + step - 1) / step * step);
    if (at > p)
        munmap(p, (size_t)(at - p));
    if (p + step > at)
        munmap(at + size, (size_t)(p + step - at));
    pthread_mutex_lock(&lock);
    *r = (range){reserved, (CUdeviceptr)at, size};
    reserved = r;
    pthread_mutex_unlock(&lock);
    *out = (CUdeviceptr)at;
    return CU_OK;
}

API CUresult cuMemAddressFree(CUdeviceptr at, size_t size)
{
    NEED_INIT();
    pthread_mutex_lock(&lock);
    range **r = &reserved;
    while (*r && ((*r)->at != at || (*r)->size != size))
        r = &(*r)->next;
    range *gone = *r && mapped(at, size) == 0 ? *r : NULL;
    if (gone) {
        *r = gone->next;
        munmap((void *)at, size);
        free(gone);
    }
    pthread_mutex_unlock(&lock);
    return gone ? CU_OK : CU_INVALID;
}

API CUresult cuMemCreate(handle **out, size_t size, const CUallocProp *prop, unsigned long long flags)
{
    NEED_INIT();
    if (!out || !prop || !size || size % GRAIN || flags)
        return CU_INVALID;
    if (prop->type != 1 || prop->location.type < 1 || prop->location.type > 4)
        return CU_INVALID;
    if (prop->handle_types & ~POSIX_FD) /* there is no fabric */
        return CU_NOT_SUPPORTED;
    int dev = prop->location.id;
    bool device = prop->location.type == 1;
    if (device && (dev < 0 || dev >= emu_conf()->count))
        return CU_INVALID_DEVICE;
    if (device && shm_charge(dev, size) != 0)
        return CU_OOM;
    int fd = anonymous_file("emulated-gpu-memory");
    pthread_mutex_lock(&lock);
    physical *p = fd >= 0 && ftruncate(fd, (off_t)size) == 0 ? physical_new(prop, size, fd) : NULL;
    if (p)
        p->charged = device ? size : 0;
    handle *h = p ? first_handle(p) : NULL;
    pthread_mutex_unlock(&lock);
    if (!p && fd >= 0)
        close(fd);
    if (!p && device)
        shm_release(dev, size);
    if (h)
        *out = h;
    return h ? CU_OK : CU_OOM;
}

API CUresult cuMemRelease(handle *h)
{
    NEED_INIT();
    pthread_mutex_lock(&lock);
    physical *p = emu_physical(h);
    if (p && !--h->refs) {
        emu_object_end(h, END_DESTROYED);
        emu_object_free(h, NULL);
        unref(p);
    }
    pthread_mutex_unlock(&lock);
    return p ? CU_OK : CU_INVALID;
}

/* The addresses stay reserved: nothing else may be mapped there even for a moment. */
static void reserve_again(CUdeviceptr at, size_t size)
{
    mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static CUresult map(CUdeviceptr at, size_t size, physical *p)
{
    mapping *m = malloc(sizeof *m);
    if (!m || mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED) {
        free(m);
        return CU_OOM;
    }
    if (emu_mem_insert((emu_mem){.base = at, .size = size, .kind = MEM_VMM, .dev = p->prop.location.id}) != CU_OK) {
        reserve_again(at, size);
        free(m);
        return CU_OOM;
    }
    *m = (mapping){mappings, at, size, p};
    mappings = m;
    p->refs++;
    return CU_OK;
}

API CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, handle *h, unsigned long long flags)
{
    NEED_INIT();
    pthread_mutex_lock(&lock);
    physical *p = emu_physical(h);
    CUresult r = !p || offset || size != p->size || at % GRAIN || flags ? CU_INVALID : CU_OK;
    if (!r && (!sound(at, size) || !may_map(at, size)))
        r = CU_INVALID;
    if (!r)
        r = map(at, size, p);
    pthread_mutex_unlock(&lock);
    return r;
}

API CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
    NEED_INIT();
    pthread_mutex_lock(&lock);
    bool whole = sound(at, size) && mapped(at, size) == size;
    for (mapping **m = &mappings; whole && *m;) {
        mapping *one = *m;
        if (!overlap(at, size, one->at, one->size)) {
            m = &one->next;
            continue;
        }
        *m = one->next;
        emu_mem_remove(one->at);
        reserve_again(one->at, one->size);
        unref(one->of);
        free(one);
    }
    pthread_mutex_unlock(&lock);
    return whole ? CU_OK : CU_INVALID;
}

API CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    NEED_INIT();
    pthread_mutex_lock(&lock);
    bool good = desc && count && size % GRAIN == 0 && sound(at, size) && mapped(at, size) == size;
    pthread_mutex_unlock(&lock);
    return good ? CU_OK : CU_INVALID;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *where, CUdeviceptr at)
{
    NEED_INIT();
    NEED_OUT(flags && where);
    *flags = emu_mem_find(at) ? 3 : 0;
    return CU_OK;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUallocProp *prop, handle *h)
{
    NEED_INIT();
    pthread_mutex_lock(&lock);
    physical *p = emu_physical(h);
    if (p && prop)
        *prop = p->prop;
    pthread_mutex_unlock(&lock);
    return p && prop ? CU_OK : CU_INVALID;
}

/* Each call is one more cuMemRelease; the handle is a new one when the old one is gone. */
API CUresult cuMemRetainAllocationHandle(handle **out, void *at)
{
    NEED_INIT();
    NEED_OUT(out);
    pthread_mutex_lock(&lock);
    for (mapping *m = mappings; m; m = m->next)
        if ((CUdeviceptr)at >= m->at && (CUdeviceptr)at < m->at + m->size) {
            handle *h = m->of->first;
            bool alive = emu_object_alive(h, KIND_MEMORY) && h->of == m->of;
            if (alive)
                h->refs++;
            else if ((h = handle_of(m->of)))
                m->of->first = h;
            if (h)
                *out = h;
            pthread_mutex_unlock(&lock);
            return h ? CU_OK : CU_OOM;
        }
    pthread_mutex_unlock(&lock);
    return CU_INVALID;
}

API CUresult cuMemExportToShareableHandle(int *fd, handle *h, int type, unsigned long long flags)
{
    NEED_INIT();
    NEED_OUT(fd);
    if (type != POSIX_FD)
        return CU_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    physical *p = emu_physical(h);
    *fd = p ? dup(p->fd) : -1;
    if (*fd >= 0 && p->charged && !p->shared)
        emu_parking_shared(p->shared = shm_share(p->inode, p->prop.location.id, p->charged));
    pthread_mutex_unlock(&lock);
    return !p ? CU_INVALID : *fd < 0 ? CU_OOM : CU_OK;
}

/* Memory of another process. Where its last holder has let go before, the importer pays for it. */
static physical *from_outside(int fd, const struct stat *st)
{
    size_t size = (size_t)st->st_size;
    int device = shm_hold((uint64_t)st->st_ino);
    bool pays = device < 0 && shm_charge(0, size) == 0;
    CUallocProp prop = {.type = 1, .handle_types = 1, .location = {1, device < 0 ? 0 : device}};
    physical *p = device < 0 && !pays ? NULL : physical_new(&prop, size, fd);
    if (p) {
        p->charged = size;
        emu_parking_shared(p->shared = !pays || shm_share(p->inode, 0, size));
    } else if (pays) {
        shm_release(0, size);
    } else if (device >= 0) {
        shm_let_go((uint64_t)st->st_ino);
    }
    return p;
}

API CUresult cuMemImportFromShareableHandle(handle **out, void *fd, int type)
{
    NEED_INIT();
    NEED_OUT(out);
    struct stat st;
    if (type != POSIX_FD)
        return CU_NOT_SUPPORTED;
    int mine = dup((int)(intptr_t)fd);
    if (mine < 0 || fstat(mine, &st) != 0)
        return CU_INVALID;
    pthread_mutex_lock(&lock);
    physical *p = all;
    while (p && p->inode != (uint64_t)st.st_ino)
        p = p->next;
    bool known = p;
    if (!known)
        p = from_outside(mine, &st);
    handle *h = !p ? NULL : known ? handle_of(p) : first_handle(p);
    pthread_mutex_unlock(&lock);
    if (known || !p)
        close(mine);
    if (h)
        *out = h;
    return h ? CU_OK : CU_OOM;
}

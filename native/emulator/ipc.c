/* ipc.c: device memory shown to another process.
 *
 * On export the allocation's pages move into a memfd mapped at the same address; the handle names the exporter's file
 * descriptor, which the importer opens through /proc. A small allocation is shown with the page that it shares, as on
 * hardware. The exporter alone pays for the memory. An event is shown by a page with its marks, which both sides map.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "emu.h"
#include "shm.h"

CUresult cuEventCreate(CUevent *out, unsigned flags);
CUresult cuEventDestroy_v2(CUevent e);
typedef struct {
    int pid, fd;
    uint64_t size, offset;
    char unused[40];
} ipc_handle;
static struct export {
    struct export *next;
    CUdeviceptr base;
    uint64_t id;
    int fd;
} *exported;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The bytes are in the file, and the file at their address. */
static bool moved(CUdeviceptr at, size_t size, int fd)
{
    if (ftruncate(fd, (off_t)size) != 0)
        return false;
    void *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (copy == MAP_FAILED)
        return false;
    memcpy(copy, (void *)at, size);
    munmap(copy, size);
    return mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
}

/* The descriptors of what has been freed since are closed. */
static void forget_freed(void)
{
    for (struct export **at = &exported; *at;) {
        struct export *e = *at;
        emu_mem m = {0};
        if (emu_mem_next(e->base, &m))
            emu_charge_block(&m); /* of a shared page some allocation may be left */
        if (m.base == e->base && m.id == e->id) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        close(e->fd);
        emu_parking_shared(-1);
        free(e);
    }
}

static int share(const emu_mem *m)
{
    forget_freed();
    for (const struct export *e = exported; e; e = e->next)
        if (e->base == m->base && e->id == m->id)
            return e->fd;
    size_t size = (m->size + 4095) & ~(size_t)4095;
    struct export *e = malloc(sizeof *e);
    int fd = e ? anonymous_file("emulated-gpu-ipc") : -1;
    if (fd < 0 || !moved(m->base, size, fd)) {
        if (fd >= 0)
            close(fd);
        free(e);
        return -1;
    }
    *e = (struct export){.next = exported, .base = m->base, .id = m->id, .fd = fd};
    exported = e;
    emu_parking_shared(1);
    return fd;
}

API CUresult cuIpcGetMemHandle(ipc_handle *out, CUdeviceptr p)
{
    NEED_CTX();
    emu_mem *found = emu_mem_find(p);
    if (!out || !found || found->kind != MEM_DEVICE)
        return CU_INVALID;
    emu_mem m = *found;
    emu_charge_block(&m);
    emu_ctx_sync(emu_current());
    pthread_mutex_lock(&lock);
    int fd = share(&m);
    pthread_mutex_unlock(&lock);
    if (fd < 0)
        return CU_OOM;
    memset(out, 0, sizeof *out);
    *out = (ipc_handle){.pid = getpid(), .fd = fd, .size = m.size, .offset = p - m.base};
    return CU_OK;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, ipc_handle h, unsigned flags)
{
    NEED_CTX();
    char path[64];
    if (!out || h.pid == getpid())
        return CU_INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CU_INVALID;
    void *p = mmap(NULL, (h.size + 4095) & ~4095ull, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return CU_OOM;
    CUresult r = emu_mem_insert((emu_mem){
        .base = (CUdeviceptr)p, .size = h.size, .kind = MEM_VMM, .dev = emu_current()->dev, .ctx = emu_current()});
    if (r)
        munmap(p, (h.size + 4095) & ~4095ull);
    else
        *out = (CUdeviceptr)p + h.offset;
    emu_parking_shared(!r);
    return r;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, ipc_handle h, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(out, h, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
    NEED_CTX();
    emu_mem *m = emu_mem_find(p);
    if (!m || m->kind != MEM_VMM)
        return CU_INVALID;
    emu_parking_shared(-1);
    return emu_mem_drop(m->base);
}

enum { EVENT_NO_TIMING = 2, EVENT_INTERPROCESS = 4 };

/* The marks of an event move into a page of their own when it is first shown; the descriptor stays open for importers. */
API CUresult cuIpcGetEventHandle(ipc_handle *out, CUevent e)
{
    NEED_CTX();
    NEED_LIVE(e, KIND_EVENT);
    if (!out || (e->flags & (EVENT_NO_TIMING | EVENT_INTERPROCESS)) != (EVENT_NO_TIMING | EVENT_INTERPROCESS))
        return CU_INVALID_HANDLE;
    pthread_mutex_lock(&emu_lock);
    CUresult r = e->shared ? CU_OK : emu_marks_new(e);
    emu_unlock();
    memset(out, 0, sizeof *out);
    *out = (ipc_handle){.pid = getpid(), .fd = e->fd};
    return r;
}

API CUresult cuIpcOpenEventHandle(CUevent *out, ipc_handle h)
{
    NEED_CTX();
    char path[64];
    if (!out || h.pid == getpid())
        return CU_INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CU_INVALID;
    CUresult r = cuEventCreate(out, EVENT_NO_TIMING | EVENT_INTERPROCESS);
    if (!r && (r = emu_marks_map(*out, fd)))
        cuEventDestroy_v2(*out);
    if (r)
        close(fd);
    return r;
}

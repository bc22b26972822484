/* pool_share.c: pools that were made to be shown to other processes, as a file descriptor.
 *
 * Such a pool's memory lies in one memfd, each allocation at an offset of its own that is never used twice; what is freed
 * is a hole. The first page says which GPU the memory is of. An importer maps the same file, may not allocate from it,
 * and pays for nothing: the exporter is charged for all of it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "emu.h"
#include "pool.h"
#include "shm.h"

#define MAGIC 0x6c6f6f70756d65ull
#define FIRST 4096ull
enum { POSIX_FD = 1 };
typedef struct {
    uint64_t magic;
    int32_t gpu;
} label;
typedef struct {
    uint64_t magic, inode, offset, size;
    char unused[32];
} pointer_data;
_Static_assert(sizeof(pointer_data) == 64, "CUmemPoolPtrExportData");

static uint64_t page_round(uint64_t size) { return (size + 4095) & ~4095ull; }

static uint64_t inode_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

CUresult emu_pool_share(CUmemoryPool p)
{
    label l = {MAGIC, shm_place(p->dev)};
    p->fd = anonymous_file("emulated-gpu-pool");
    p->end = FIRST;
    if (p->fd < 0 || pwrite(p->fd, &l, sizeof l, 0) != sizeof l)
        return CU_OOM;
    emu_parking_shared(1);
    return CU_OK;
}

static CUresult map(CUmemoryPool p, uint64_t offset, uint64_t size, CUdeviceptr *out)
{
    void *at = mmap(NULL, page_round(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, p->fd, (off_t)offset);
    if (at == MAP_FAILED)
        return CU_OOM;
    *out = (CUdeviceptr)at;
    CUresult r = emu_mem_insert(
        (emu_mem){.base = *out, .size = size, .kind = MEM_POOL, .dev = p->dev, .pool = p, .offset = offset});
    if (r)
        munmap(at, page_round(size));
    return r;
}

CUresult emu_pool_map(CUmemoryPool p, uint64_t size, CUdeviceptr *out)
{
    uint64_t offset = p->end;
    if (emu_oom_fault())
        return CU_OOM;
    p->end += page_round(size);
    return ftruncate(p->fd, (off_t)p->end) == 0 ? map(p, offset, size, out) : CU_OOM;
}

void emu_pool_unmap(const emu_mem *m)
{
    if (m->pool->fd >= 0 && !m->pool->imported)
        fallocate(m->pool->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)m->offset,
                  (off_t)page_round(m->size));
}

API CUresult cuMemPoolExportToShareableHandle(int *fd, CUmemoryPool p, int type, unsigned long long flags)
{
    NEED_POOL(p);
    if (!fd || flags || type != POSIX_FD || p->fd < 0 || p->imported)
        return CU_INVALID;
    *fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
    return *fd < 0 ? CU_OOM : CU_OK;
}

static int device_of(int fd)
{
    label l;
    if (pread(fd, &l, sizeof l, 0) != sizeof l || l.magic != MAGIC)
        return -1;
    for (int dev = 0; dev < emu_conf()->count; dev++)
        if (shm_place(dev) == l.gpu)
            return dev;
    return -1;
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags)
{
    NEED_INIT();
    if (!out || flags || type != POSIX_FD)
        return CU_INVALID;
    int fd = fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 0), dev = device_of(fd);
    if (dev < 0) {
        if (fd >= 0)
            close(fd);
        return CU_INVALID;
    }
    CUmemoryPool p = emu_pool_new(dev);
    if (!p) {
        close(fd);
        return CU_OOM;
    }
    p->imported = true;
    p->fd = fd;
    *out = p;
    return CU_OK;
}

API CUresult cuMemPoolExportPointer(pointer_data *out, CUdeviceptr ptr)
{
    NEED_INIT();
    emu_mem *m = emu_mem_find(ptr);
    if (!out || !m || m->base != ptr || m->kind != MEM_POOL || !m->pool || m->pool->fd < 0 || m->pool->imported)
        return CU_INVALID;
    *out = (pointer_data){.magic = MAGIC, .inode = inode_of(m->pool->fd), .offset = m->offset, .size = m->size};
    return CU_OK;
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool p, const pointer_data *data)
{
    NEED_POOL(p);
    if (!out || !data || !p->imported || data->magic != MAGIC || data->inode != inode_of(p->fd))
        return CU_INVALID;
    pthread_mutex_lock(&emu_lock);
    CUresult r = map(p, data->offset, data->size, out);
    if (!r)
        emu_pool_used(p, data->size);
    emu_unlock();
    return r;
}

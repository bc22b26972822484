/* pool.h: what pools and those shown to other processes share. With emu_lock, but for making one. */
#ifndef EMU_POOL_H
#define EMU_POOL_H
#include "emu.h"
#define NEED_POOL(p)                                                                                                   \
    NEED_INIT();                                                                                                       \
    if (emu_use(p, KIND_POOL, __func__))                                                                               \
    return CU_INVALID

CUmemoryPool emu_pool_new(int dev);
void emu_pool_used(CUmemoryPool p, uint64_t size); /* so much more of it is in use */
/* pool_share.c */
CUresult emu_pool_share(CUmemoryPool p);
CUresult emu_pool_map(CUmemoryPool p, uint64_t size, CUdeviceptr *out);
void emu_pool_unmap(const emu_mem *m);
#endif

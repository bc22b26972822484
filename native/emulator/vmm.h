/* vmm.h: what stands behind a handle of physical memory or of a multicast object. */
#ifndef EMU_VMM_H
#define EMU_VMM_H
#include "emu.h"
#define GRAIN (2ull << 20)
typedef struct physical {
    struct physical *next;
    void *first; /* the handle that cuMemRetainAllocationHandle answers, while it lives */
    CUallocProp prop;
    size_t size, charged;
    int fd;
    unsigned refs; /* handles and mappings */
    uint64_t inode;
    bool shared;              /* exported or imported: its charge is in engine.shm (holders.c) */
    unsigned devices, wanted; /* of a multicast object: who joined, and how many have to */
} physical;
typedef struct {
    emu_head object;
    physical *of;
    unsigned refs;
} handle;
CUresult cuMemCreate(handle **out, size_t size, const CUallocProp *prop, unsigned long long flags);
physical *emu_physical(handle *h); /* NULL: the handle is gone */
#endif

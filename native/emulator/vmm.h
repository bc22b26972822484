/* vmm.h: what stands behind a handle of physical memory or of a multicast object. */
#ifndef EMU_VMM_H
#define EMU_VMM_H
#include "emu.h"
#define GRAIN (2ull << 20)
typedef struct {
    CUallocProp prop;
    size_t size, booked;
    int fd, refs;
    unsigned devices, wanted; /* of a multicast object: who joined, and how many have to */
} handle;
CUresult cuMemCreate(handle **out, size_t size, const CUallocProp *prop, unsigned long long flags);
#endif

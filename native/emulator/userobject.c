/* userobject.c: objects of the program that graphs keep. They are counted and never destroyed: no destructor is called. */
#include "graph.h"

typedef struct {
    emu_head object;
    _Atomic unsigned refs;
} user;
#define NEED_USER(u)                                                                                                   \
    do {                                                                                                               \
        if (!emu_object_alive(u, KIND_USER))                                                                           \
            return CU_INVALID;                                                                                         \
    } while (0)

API CUresult cuUserObjectCreate(user **out, void *data, CUhostFn end, unsigned count, unsigned flags)
{
    NEED_INIT();
    if (!out || !end || !count)
        return CU_INVALID;
    user *u = emu_object_new(KIND_USER, sizeof *u);
    if (!u)
        return CU_OOM;
    u->refs = count;
    *out = u;
    return CU_OK;
}

static CUresult add(user *u, unsigned count)
{
    NEED_USER(u);
    u->refs += count;
    return count ? CU_OK : CU_INVALID;
}

static CUresult drop(user *u, unsigned count)
{
    NEED_USER(u);
    if (!count || count > u->refs)
        return CU_INVALID;
    u->refs -= count;
    if (!u->refs && emu_object_end_once(u, KIND_USER))
        emu_object_free(u, NULL);
    return CU_OK;
}

API CUresult cuUserObjectRetain(user *u, unsigned count)
{
    NEED_INIT();
    return add(u, count);
}
API CUresult cuUserObjectRelease(user *u, unsigned count)
{
    NEED_INIT();
    return drop(u, count);
}
API CUresult cuGraphReleaseUserObject(CUgraph g, user *u, unsigned n)
{
    NEED_INIT();
    NEED_GRAPH(g);
    return drop(u, n);
}

API CUresult cuGraphRetainUserObject(CUgraph g, user *u, unsigned n, unsigned flags)
{
    enum { MOVE = 1 };
    NEED_INIT();
    NEED_GRAPH(g);
    NEED_USER(u);
    return flags & MOVE ? CU_OK : add(u, n);
}

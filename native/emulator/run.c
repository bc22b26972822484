/* run.c: what each kind of stream work does when its turn comes. Called with emu_lock held. */
#include <stdlib.h>
#include "emu.h"

static void call_host(CUstream s, emu_op *op)
{
    /* The application's function may block and may take its own locks, so ours is not held meanwhile. */
    void *fn = op->u.host.fn, *data = op->u.host.data;
    emu_unlock();
    emu_sched_host(true);
    if (op->kind == OP_HOST)
        ((CUhostFn)fn)(data);
    else
        ((CUstreamCallback)fn)(s->legacy ? NULL : s, CU_OK, data);
    emu_sched_host(false);
    pthread_mutex_lock(&emu_lock);
}

void emu_run_op(CUstream s, emu_op *op, uint64_t at_ns)
{
    switch (op->kind) {
    case OP_COPY: emu_copy(&op->u.copy); break;
    case OP_FILL: emu_fill(&op->u.fill); break;
    case OP_HOST:
    case OP_CALLBACK: call_host(s, op); break;
    case OP_EVENT: emu_event_complete(op, at_ns); break;
    case OP_FREE: {
        emu_mem *m = emu_mem_find(op->u.ptr);
        if (m && m->kind == MEM_POOL)
            emu_pool_free(m);
        else
            emu_mem_drop(op->u.ptr);
        break;
    }
    case OP_STORE: emu_value_store(op); break;
    case OP_KERNEL:
    case OP_VALUE:
    case OP_WAIT:
    case OP_NOP: break;
    }
}

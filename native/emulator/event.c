/* event.c: marks in a stream and the times between them, on the GPU's clock. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "emu.h"

enum { DISABLE_TIMING = 2 };

API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    NEED_CTX();
    if (!out || flags & ~7u)
        return CU_INVALID;
    *out = calloc(1, sizeof **out);
    (*out)->flags = flags;
    (*out)->at = &(*out)->own;
    return CU_OK;
}

/* The structure stays (a few words), so that work already in a stream can still point at it. */
API CUresult cuEventDestroy_v2(CUevent e)
{
    NEED_INIT();
    if (!e || e->dead)
        return CU_INVALID_HANDLE;
    if (emu_event_shared(e))
        close(e->fd);
    e->dead = true;
    return CU_OK;
}

API CUresult cuEventDestroy(CUevent e) { return cuEventDestroy_v2(e); }

API CUresult cuEventRecord(CUevent e, CUstream s)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    if (!e || e->dead || !st)
        return CU_INVALID_HANDLE;
    if (st->capture)
        return emu_capture_event(st, e);
    pthread_mutex_lock(&emu_lock);
    e->capture = NULL;
    emu_op *op = emu_op_new(OP_EVENT);
    op->u.ev.event = e;
    op->u.ev.seq = ++e->at->submitted;
    CUresult r = emu_submit(st, op);
    pthread_mutex_unlock(&emu_lock);
    return r;
}

API CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags) { return cuEventRecord(e, s); }

static CUresult waitable(CUevent e)
{
    NEED_INIT();
    if (!e || e->dead)
        return CU_INVALID_HANDLE;
    return e->capture ? CU_CAPTURED_EVENT : CU_OK;
}

API CUresult cuEventQuery(CUevent e)
{
    CUresult r = waitable(e);
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    bool is_done = emu_event_done(e);
    pthread_mutex_unlock(&emu_lock);
    return emu_sticky ? emu_sticky : is_done ? CU_OK : CU_NOT_READY;
}

API CUresult cuEventSynchronize(CUevent e)
{
    CUresult r = waitable(e);
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    uint64_t target = e->at->submitted;
    while (e->at->completed < target && !emu_event_shared(e))
        emu_sched_wait();
    pthread_mutex_unlock(&emu_lock);
    while (__atomic_load_n(&e->at->completed, __ATOMIC_ACQUIRE) < target)
        nanosleep(&(struct timespec){0, EMU_POLL_NS}, NULL); /* another process will not wake us */
    return emu_sticky;
}

API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    NEED_INIT();
    if (!from || !to || from->dead || to->dead || (from->flags | to->flags) & DISABLE_TIMING)
        return CU_INVALID_HANDLE;
    if (!from->at->submitted || !to->at->submitted)
        return CU_INVALID_HANDLE;
    if (!emu_event_done(from) || !emu_event_done(to))
        return CU_NOT_READY;
    *ms = (float)((double)((int64_t)(to->at->time_ns - from->at->time_ns)) / 1e6);
    return CU_OK;
}

API CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to) { return cuEventElapsedTime(ms, from, to); }

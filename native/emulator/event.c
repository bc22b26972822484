/* event.c: marks in a stream and the times between them, on the GPU's clock. */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "emu.h"

enum { DISABLE_TIMING = 2 };

/* With emu_lock. */
static CUevent add(CUcontext c, unsigned flags)
{
    CUevent e = emu_object_new(KIND_EVENT, sizeof *e);
    e->flags = flags;
    e->at = &e->own;
    e->ctx = c;
    e->next = c->events;
    e->at_prev = &c->events;
    if (e->next)
        e->next->at_prev = &e->next;
    return c->events = e;
}

API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    NEED_CTX();
    CUresult r = !out || flags & ~7u ? CU_INVALID : emu_unsafe_call(UNSAFE_EVENT_CREATE);
    if (r)
        return r;
    CUcontext root = emu_root(emu_current());
    pthread_mutex_lock(&emu_lock);
    r = root->alive ? CU_OK : CU_CONTEXT_DESTROYED;
    if (!r)
        *out = add(root, flags);
    emu_unlock();
    return r;
}

static void release(void *event)
{
    CUevent e = event;
    if (emu_event_shared(e)) {
        munmap(e->at, 4096);
        close(e->fd);
    }
    free(e->deps);
}

bool emu_event_shared(CUevent e) { return e->at != &e->own; }
bool emu_event_done(CUevent e) { return e->at->completed >= e->at->submitted; }

/* Records in several streams end in any order; the one made last counts. */
void emu_event_complete(CUevent e, uint64_t seq, uint64_t at_ns)
{
    if (seq <= e->at->completed)
        return;
    e->at->time_ns = at_ns;
    e->at->completed = seq;
}

/* Work in a stream that still names it keeps its contents, not the handle. */
static void end(CUevent e, enum emu_end how)
{
    *e->at_prev = e->next;
    if (e->next)
        e->next->at_prev = e->at_prev;
    e->dead = true;
    emu_object_end(e, how);
    if (!e->pending)
        emu_object_free(e, release);
}

void emu_event_unref(CUevent e)
{
    if (!--e->pending && e->dead)
        emu_object_free(e, release);
}

void emu_events_end(CUcontext c)
{
    while (c->events)
        end(c->events, END_WITH_CONTEXT);
}

API CUresult cuEventDestroy_v2(CUevent e)
{
    NEED_INIT();
    pthread_mutex_lock(&emu_lock);
    CUresult r = emu_use_last(e, KIND_EVENT, __func__);
    if (!r)
        end(e, END_DESTROYED);
    emu_unlock();
    return r;
}

API CUresult cuEventDestroy(CUevent e) { return cuEventDestroy_v2(e); }

API CUresult cuEventRecord(CUevent e, CUstream s)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    if (!st)
        return CU_INVALID_HANDLE;
    NEED_LIVE(e, KIND_EVENT);
    if (emu_conf()->strict && e->ctx != emu_root(st->ctx))
        return CU_INVALID_HANDLE;
    if (st->capture)
        return emu_capture_event(st, e);
    emu_spend(emu_conf()->event_ns);
    CUresult r = emu_legacy_use(st);
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    if (!emu_object_alive(e, KIND_EVENT)) {
        emu_unlock();
        return CU_CONTEXT_DESTROYED;
    }
    e->capture = NULL;
    emu_op *op = emu_op_new(OP_EVENT);
    op->u.ev.event = e;
    op->u.ev.seq = ++e->at->submitted;
    e->pending++;
    r = emu_submit(st, op);
    emu_unlock();
    return r;
}

API CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags) { return cuEventRecord(e, s); }

/* Asking for an event is unsafe during a capture, and never possible for one that was recorded in a capture. */
static CUresult waitable(CUevent e, const char *call)
{
    CUresult r = emu_use(e, KIND_EVENT, call);
    if (!r && e->capture) {
        emu_capture_spoiled_by(e);
        return CU_CAPTURED_EVENT;
    }
    return r ? r : emu_unsafe_call(UNSAFE_EVENT);
}

API CUresult cuEventQuery(CUevent e)
{
    NEED_INIT();
    CUresult r = waitable(e, __func__);
    if (r)
        return r;
    emu_spend(emu_conf()->query_ns);
    pthread_mutex_lock(&emu_lock);
    bool alive = emu_object_alive(e, KIND_EVENT); /* another thread may destroy the context just now */
    if (alive && e->op)
        emu_sched_look(e->op->dev);
    bool is_done = alive && emu_event_done(e);
    emu_unlock();
    if (!alive)
        return CU_CONTEXT_DESTROYED;
    return emu_sticky ? emu_sticky : is_done ? CU_OK : CU_NOT_READY;
}

API CUresult cuEventSynchronize(CUevent e)
{
    NEED_INIT();
    CUresult r = waitable(e, __func__);
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    if (!emu_object_alive(e, KIND_EVENT)) {
        emu_unlock();
        return CU_CONTEXT_DESTROYED;
    }
    uint64_t target = e->at->submitted;
    e->pending++;
    emu_sched_notice_event(e);
    while (e->at->completed < target && !emu_event_shared(e) && !emu_torn_down)
        emu_sched_wait();
    emu_unlock();
    emu_call_pause();
    while (__atomic_load_n(&e->at->completed, __ATOMIC_ACQUIRE) < target && !emu_torn_down)
        nanosleep(&(struct timespec){0, EMU_POLL_NS}, NULL); /* another process will not wake us */
    emu_call_resume();
    pthread_mutex_lock(&emu_lock);
    emu_event_unref(e);
    emu_unlock();
    return emu_sticky;
}

API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    NEED_INIT();
    NEED_LIVE(from, KIND_EVENT);
    NEED_LIVE(to, KIND_EVENT);
    if ((from->flags | to->flags) & DISABLE_TIMING)
        return CU_INVALID_HANDLE;
    if (!from->at->submitted || !to->at->submitted)
        return CU_INVALID_HANDLE;
    if (!emu_event_done(from) || !emu_event_done(to))
        return CU_NOT_READY;
    *ms = (float)((double)((int64_t)(to->at->time_ns - from->at->time_ns)) / 1e6);
    return CU_OK;
}

API CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to) { return cuEventElapsedTime(ms, from, to); }

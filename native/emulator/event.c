/* event.c: marks in a stream and the times between them, on the GPU's clock.
 *
 * Each record is an object of its own (emu.h): a wait for an event, or a question about it, is about the record that was
 * the last when it was asked, in whatever order records in several streams are reached.
 */
#include <stdlib.h>
#include <time.h>
#include "emu.h"

enum { DISABLE_TIMING = 2 };

/* With emu_lock. */
static CUevent add(CUcontext c, unsigned flags)
{
    CUevent e = emu_object_new(KIND_EVENT, sizeof *e);
    if (!e)
        return NULL;
    e->flags = flags;
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
    CUevent e = r ? NULL : add(root, flags);
    emu_unlock();
    if (e)
        *out = e;
    return r ? r : e ? CU_OK : CU_OOM;
}

/* No work names the event any more, so nothing else holds its last record. */
static void release(void *event)
{
    CUevent e = event;
    emu_marks_release(e);
    free(e->last);
    free(e->deps);
}

static emu_record *record_new(uint64_t seq)
{
    emu_record *r = calloc(1, sizeof *r);
    if (r)
        *r = (emu_record){.refs = 1, .seq = seq};
    return r;
}

static void record_unref(emu_record *r)
{
    if (r && !--r->refs)
        free(r);
}

/* With emu_lock: the last one, to be let go with record_unref; NULL where there is none. False: no memory for it. */
static bool last_record(CUevent e, emu_record **out)
{
    uint64_t seq = e->shared ? emu_marks_last(e->shared) : 0;
    *out = e->last;
    if (e->shared && (!e->last || e->last->seq != seq)) { /* another process made it */
        *out = seq ? record_new(seq) : NULL;
        return !seq || *out;
    }
    if (e->last)
        e->last->refs++;
    return true;
}

static bool is_done(CUevent e, emu_record *r)
{
    if (r && !r->done && e->shared)
        r->time_ns = emu_marks_time(e->shared, r->seq);
    return !r || r->done || (e->shared && r->time_ns);
}

bool emu_event_done(CUevent e)
{
    uint64_t seq = e->shared ? emu_marks_last(e->shared) : 0;
    if (e->shared && (!e->last || e->last->seq != seq)) /* another process made it */
        return !seq || emu_marks_time(e->shared, seq);
    return is_done(e, e->last);
}

bool emu_event_recorded(CUevent e) { return e->shared ? emu_marks_last(e->shared) != 0 : e->last != NULL; }
bool emu_event_reached(const emu_op *op) { return is_done(op->u.ev.event, op->u.ev.record); }

bool emu_event_name(emu_op *op)
{
    CUevent e = op->u.ev.event;
    emu_record *r = op->kind == OP_EVENT ? record_new(0) : NULL;
    if (op->kind == OP_EVENT ? !r : !last_record(e, &r))
        return false;
    e->pending++;
    op->u.ev.record = r;
    if (op->kind == OP_WAIT)
        return true;
    record_unref(e->last);
    *r = (emu_record){.refs = 2, .seq = e->shared ? emu_marks_record(e->shared) : 0, .op = op};
    e->last = r;
    return true;
}

void emu_event_unname(emu_op *op)
{
    if (op->kind == OP_EVENT)
        op->u.ev.record->op = NULL;
    record_unref(op->u.ev.record);
    emu_event_unref(op->u.ev.event);
}

void emu_event_complete(emu_op *op, uint64_t at_ns)
{
    emu_record *r = op->u.ev.record;
    r->time_ns = at_ns;
    r->done = true;
    if (op->u.ev.event->shared)
        emu_marks_complete(op->u.ev.event->shared, r->seq, at_ns);
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
    r = emu_submit(st, emu_op_new(&(emu_op){.kind = OP_EVENT, .u.ev.event = e}));
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
    if (alive && e->last && e->last->op)
        emu_sched_look(e->last->op->dev);
    bool reached = alive && emu_event_done(e);
    emu_unlock();
    if (!alive)
        return CU_CONTEXT_DESTROYED;
    return emu_sticky ? emu_sticky : reached ? CU_OK : CU_NOT_READY;
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
    emu_record *target;
    if (!last_record(e, &target)) {
        emu_unlock();
        return CU_OOM;
    }
    e->pending++;
    emu_sched_notice(target ? target->op : NULL);
    while (!is_done(e, target) && !e->shared && !emu_torn_down)
        emu_sched_wait();
    emu_unlock();
    emu_call_pause();
    while (target && !target->done && e->shared && !emu_marks_time(e->shared, target->seq) && !emu_torn_down)
        nanosleep(&(struct timespec){0, EMU_POLL_NS}, NULL); /* another process will not wake us */
    emu_call_resume();
    pthread_mutex_lock(&emu_lock);
    record_unref(target);
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
    pthread_mutex_lock(&emu_lock);
    bool both = from->last && to->last, done = both && from->last->done && to->last->done;
    if (done && ms)
        *ms = (float)((double)((int64_t)(to->last->time_ns - from->last->time_ns)) / 1e6);
    emu_unlock();
    return !both ? CU_INVALID_HANDLE : !done ? CU_NOT_READY : ms ? CU_OK : CU_INVALID;
}

API CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to) { return cuEventElapsedTime(ms, from, to); }

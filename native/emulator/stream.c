/* stream.c: streams, the two default streams, and waiting for them. */
#include <stdlib.h>
#include <string.h>
#include "emu.h"

static uint64_t next_id = 16;
uint64_t emu_lists;
typedef struct {
    CUcontext ctx;
    uint64_t id;
    CUstream stream;
} thread_default; /* id: of the context */
static __thread thread_default mine[8];
static pthread_key_t at_thread_end;
static bool has_key; /* without one the stream of a thread that ends stays until its context ends */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* With emu_lock. */
static CUstream add(CUcontext ctx, unsigned flags, int priority)
{
    CUstream s = emu_object_new(KIND_STREAM, sizeof *s);
    if (!s)
        return NULL;
    s->ctx = ctx;
    s->flags = flags;
    s->priority = priority;
    s->id = ++next_id;
    s->next = ctx->streams;
    ctx->streams = s;
    emu_lists++;
    return s;
}

CUresult emu_stream_new(CUstream *out, CUcontext ctx, unsigned flags, int priority)
{
    pthread_mutex_lock(&emu_lock);
    bool alive = ctx->alive;
    CUstream s = alive ? add(ctx, flags, priority) : NULL;
    emu_unlock();
    if (s)
        *out = s;
    return s ? CU_OK : alive ? CU_OOM : CU_CONTEXT_DESTROYED;
}

CUstream emu_stream_first(CUcontext ctx)
{
    pthread_mutex_lock(&emu_lock);
    CUstream s = add(ctx, 0, 0);
    if (s)
        s->legacy = true;
    emu_unlock();
    return s;
}

static void release(void *stream) { free(((CUstream)stream)->deps); }

static void unlink_free(CUstream s)
{
    for (CUstream *at = &s->ctx->streams; !s->left && *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    emu_lists++;
    emu_sched_forget(s);
    emu_object_free(s, release);
}

void emu_stream_ended(CUstream s)
{
    if (s->dead && !s->head && !s->waiters)
        unlink_free(s);
}

static void end(CUstream s, enum emu_end how)
{
    emu_capture_forget(s);
    s->dead = true;
    emu_object_end(s, how);
    emu_stream_ended(s);
}

/* With emu_lock, when the context's work is done. */
void emu_streams_end(CUcontext c)
{
    for (CUstream s = c->streams, next; s; s = next) {
        next = s->next;
        s->left = true; /* a thread that still waits for it frees it later than the context */
        if (s->dead)
            emu_stream_ended(s);
        else
            end(s, END_WITH_CONTEXT);
    }
    c->streams = c->legacy = NULL;
}

/* A thread takes its default streams with it. */
static void thread_ends(void *list)
{
    pthread_mutex_lock(&emu_lock);
    for (thread_default *d = list; d < (thread_default *)list + 8 && d->ctx; d++)
        if (emu_object_alive(d->ctx, KIND_CONTEXT) && d->ctx->id == d->id && emu_object_alive(d->stream, KIND_STREAM) &&
            d->stream->ctx == d->ctx && d->stream->per_thread)
            end(d->stream, END_DESTROYED);
    emu_unlock();
}

static void make_key(void) { has_key = pthread_key_create(&at_thread_end, thread_ends) == 0; }

static bool current(const thread_default *d, CUcontext ctx)
{
    return d->ctx == ctx && d->id == ctx->id && emu_object_alive(d->stream, KIND_STREAM) && d->stream->ctx == ctx;
}

static CUstream per_thread_stream(CUcontext ctx)
{
    thread_default *place = NULL;
    for (int i = 0; i < 8; i++) {
        if (mine[i].ctx && current(&mine[i], ctx))
            return mine[i].stream;
        bool stale = mine[i].ctx && (mine[i].ctx == ctx || !emu_object_alive(mine[i].ctx, KIND_CONTEXT));
        if (!place && (!mine[i].ctx || stale))
            place = &mine[i];
    }
    if (!place)
        return ctx->legacy;
    CUstream s;
    if (emu_stream_new(&s, ctx, 0, 0) != CU_OK)
        return NULL;
    s->per_thread = true;
    *place = (thread_default){ctx, ctx->id, s};
    pthread_once(&once, make_key);
    if (has_key)
        pthread_setspecific(at_thread_end, mine);
    return place->stream;
}

CUstream emu_stream_named(CUstream handle, const char *call)
{
    CUcontext ctx = emu_context();
    if (handle == NULL)
        return !ctx ? NULL : emu_per_thread ? per_thread_stream(ctx) : ctx->legacy;
    if (handle == (CUstream)1)
        return ctx ? ctx->legacy : NULL;
    if (handle == (CUstream)2)
        return ctx ? per_thread_stream(ctx) : NULL;
    return emu_use(handle, KIND_STREAM, call) ? NULL : handle;
}

void emu_stream_sync(CUstream s)
{
    pthread_mutex_lock(&emu_lock);
    if (emu_object_alive(s, KIND_STREAM)) {
        uint64_t target = s->submitted;
        s->waiters++;
        emu_sched_notice_stream(s);
        while (s->completed < target && !emu_torn_down)
            emu_sched_wait();
        s->waiters--;
        emu_stream_ended(s);
    }
    emu_unlock();
}

static bool busy(CUcontext c, uint64_t target)
{
    for (CUstream s = c->streams; s; s = s->next)
        if (s->head && s->head->seq <= target)
            return true;
    return false;
}

static void wait_for(CUcontext c, uint64_t target)
{
    uint64_t id = c->id;
    for (CUstream s = c->streams; s; s = s->next)
        emu_sched_notice_stream(s);
    while (c->id == id && c->alive && busy(c, target) && !emu_torn_down)
        emu_sched_wait();
}

void emu_ctx_sync(CUcontext c)
{
    pthread_mutex_lock(&emu_lock);
    wait_for(c, c->op_seq);
    emu_unlock();
}

void emu_ctx_drain(CUcontext c) { wait_for(c, UINT64_MAX); }

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    NEED_CTX();
    if (!out || flags & ~1u)
        return CU_INVALID;
    priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    return emu_stream_new(out, emu_current(), flags, priority);
}

API CUresult cuStreamCreate(CUstream *out, unsigned flags) { return create(out, flags, 0); }

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    return create(out, flags, priority);
}

API CUresult cuStreamDestroy_v2(CUstream s)
{
    NEED_INIT();
    if (s == (CUstream)1 || s == (CUstream)2)
        return CU_INVALID_HANDLE;
    pthread_mutex_lock(&emu_lock);
    CUresult r = emu_use_last(s, KIND_STREAM, __func__);
    if (!r)
        end(s, END_DESTROYED);
    emu_unlock();
    return r;
}

API CUresult cuStreamDestroy(CUstream s) { return cuStreamDestroy_v2(s); }

#define NEED_STREAM(s)                                                                                                 \
    NEED_CTX();                                                                                                        \
    CUstream st = emu_stream(s);                                                                                       \
    if (!st)                                                                                                           \
    return CU_INVALID_HANDLE

API CUresult cuStreamSynchronize(CUstream s)
{
    NEED_STREAM(s);
    if (st->capture) {
        emu_capture_invalidate(st);
        return CU_CAPTURE_UNSUPPORTED;
    }
    CUresult r = emu_legacy_use(st);
    if (!r)
        r = emu_unsafe_call(UNSAFE_STREAM_SYNCHRONIZE);
    if (r)
        return r;
    emu_stream_sync(st);
    return emu_sticky;
}

API CUresult cuStreamQuery(CUstream s)
{
    NEED_STREAM(s);
    if (st->capture) {
        emu_capture_invalidate(st);
        return CU_CAPTURE_UNSUPPORTED;
    }
    CUresult r = emu_legacy_use(st);
    if (!r)
        r = emu_unsafe_call(UNSAFE_STREAM_QUERY);
    if (r)
        return r;
    emu_spend(emu_conf()->query_ns);
    pthread_mutex_lock(&emu_lock);
    bool alive = emu_object_alive(st, KIND_STREAM); /* another thread may destroy the context just now */
    if (alive && st->head)
        emu_sched_look(st->ctx->dev);
    bool unfinished = alive && st->completed < st->submitted;
    emu_unlock();
    if (!alive)
        return CU_CONTEXT_DESTROYED;
    return emu_sticky ? emu_sticky : unfinished ? CU_NOT_READY : CU_OK;
}

API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
    NEED_STREAM(s);
    NEED_LIVE(e, KIND_EVENT);
    if (e->capture || st->capture)
        return emu_capture_wait(st, e);
    CUresult r = emu_legacy_use(st);
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    if (!emu_object_alive(e, KIND_EVENT)) {
        r = CU_CONTEXT_DESTROYED;
    } else if (!emu_event_done(e)) {
        r = emu_submit(st, emu_op_new(&(emu_op){.kind = OP_WAIT, .u.ev.event = e}));
    }
    emu_unlock();
    return r;
}

static CUresult add_host(CUstream st, enum op_kind kind, void *fn, void *data)
{
    CUresult r = fn ? emu_legacy_use(st) : CU_INVALID;
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    r = emu_submit(st, emu_op_new(&(emu_op){.kind = kind, .u.host = {fn, data}}));
    emu_unlock();
    return r;
}

API CUresult cuLaunchHostFunc(CUstream s, CUhostFn fn, void *data)
{
    NEED_STREAM(s);
    if (st->capture) {
        CUhostNode n = {fn, data};
        return emu_capture_add(st, 3, &n, sizeof n, NULL);
    }
    return add_host(st, OP_HOST, (void *)fn, data);
}

API CUresult cuLaunchHostFunc_v2(CUstream s, CUhostFn fn, void *data, unsigned mode)
{
    return cuLaunchHostFunc(s, fn, data);
}

API CUresult cuStreamAddCallback(CUstream s, CUstreamCallback fn, void *data, unsigned flags)
{
    NEED_STREAM(s);
    if (st->capture)
        return CU_CAPTURE_UNSUPPORTED;
    return add_host(st, OP_CALLBACK, (void *)fn, data);
}

API CUresult cuStreamGetFlags(CUstream s, unsigned *flags)
{
    NEED_STREAM(s);
    if (!flags)
        return CU_INVALID;
    *flags = st->flags;
    return CU_OK;
}

API CUresult cuStreamGetPriority(CUstream s, int *priority)
{
    NEED_STREAM(s);
    if (!priority)
        return CU_INVALID;
    *priority = st->priority;
    return CU_OK;
}

API CUresult cuStreamGetId(CUstream s, unsigned long long *id)
{
    NEED_STREAM(s);
    if (!id)
        return CU_INVALID;
    *id = st->legacy ? 1 : st->id;
    return CU_OK;
}

API CUresult cuStreamGetCtx(CUstream s, CUcontext *c)
{
    NEED_STREAM(s);
    if (!c)
        return CU_INVALID;
    *c = st->ctx;
    return CU_OK;
}

API CUresult cuStreamGetCtx_v2(CUstream s, CUcontext *c, void **green)
{
    NEED_STREAM(s);
    if (!c)
        return CU_INVALID;
    *c = st->ctx;
    if (green)
        *green = st->ctx->green;
    return CU_OK;
}

API CUresult cuStreamGetDevice(CUstream s, CUdevice *dev)
{
    NEED_STREAM(s);
    if (!dev)
        return CU_INVALID;
    *dev = st->ctx->dev;
    return CU_OK;
}

API CUresult cuStreamAttachMemAsync(CUstream s, CUdeviceptr p, size_t size, unsigned flags)
{
    NEED_STREAM(s);
    return CU_OK;
}

API CUresult cuStreamGetAttribute(CUstream s, int attribute, void *value)
{
    NEED_STREAM(s);
    if (!value)
        return CU_INVALID;
    memset(value, 0, 64);
    if (attribute == 8) /* launch priority */
        *(int *)value = st->priority;
    return CU_OK;
}

API CUresult cuStreamSetAttribute(CUstream s, int attribute, const void *value)
{
    NEED_STREAM(s);
    return CU_OK;
}

API CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
    NEED_STREAM(to);
    return emu_stream(from) ? CU_OK : CU_INVALID_HANDLE;
}

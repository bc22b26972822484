/* stream.c: streams, the two default streams, and waiting for them. */
#include <stdlib.h>
#include <string.h>
#include "emu.h"

static uint64_t next_id = 16;
typedef struct { CUcontext ctx; CUstream stream; } thread_default;
static __thread thread_default mine[8];

CUstream emu_stream_new(CUcontext ctx, unsigned flags, int priority)
{
    pthread_mutex_lock(&emu_lock);
    CUstream s = ctx->streams; /* a destroyed stream's place is taken again, so the list never shrinks */
    while (s && !(s->dead && !s->head))
        s = s->next;
    if (!s) {
        s = calloc(1, sizeof *s);
        s->next = ctx->streams;
        ctx->streams = s;
    }
    s->ctx = ctx;
    s->flags = flags;
    s->priority = priority;
    s->dead = s->per_thread = false;
    s->capture = NULL;
    s->end_ns = 0;
    s->id = ++next_id;
    pthread_mutex_unlock(&emu_lock);
    return s;
}

static CUstream per_thread_stream(CUcontext ctx)
{
    for (int i = 0; i < 8; i++) {
        if (mine[i].ctx == ctx)
            return mine[i].stream;
        if (!mine[i].ctx) {
            mine[i].ctx = ctx;
            mine[i].stream = emu_stream_new(ctx, 0, 0);
            mine[i].stream->per_thread = true;
            return mine[i].stream;
        }
    }
    return ctx->legacy;
}

CUstream emu_stream(CUstream handle)
{
    CUcontext ctx = emu_context();
    if (handle == NULL)
        return !ctx ? NULL : emu_per_thread ? per_thread_stream(ctx) : ctx->legacy;
    if (handle == (CUstream)1)
        return ctx ? ctx->legacy : NULL;
    if (handle == (CUstream)2)
        return ctx ? per_thread_stream(ctx) : NULL;
    return handle->dead ? NULL : handle;
}

void emu_stream_sync(CUstream s)
{
    pthread_mutex_lock(&emu_lock);
    uint64_t target = s->submitted;
    while (s->completed < target)
        emu_sched_wait();
    pthread_mutex_unlock(&emu_lock);
}

void emu_ctx_sync(CUcontext c)
{
    pthread_mutex_lock(&emu_lock);
    CUstream streams = c->streams;
    pthread_mutex_unlock(&emu_lock);
    for (CUstream s = streams; s; s = s->next)
        emu_stream_sync(s);
}

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    NEED_CTX();
    if (!out || flags & ~1u)
        return CU_INVALID;
    priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    *out = emu_stream_new(emu_context(), flags, priority);
    return CU_OK;
}

API CUresult cuStreamCreate(CUstream *out, unsigned flags) { return create(out, flags, 0); }

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    return create(out, flags, priority);
}

API CUresult cuStreamDestroy_v2(CUstream s)
{
    NEED_INIT();
    if (!s || s == (CUstream)1 || s == (CUstream)2 || s->dead)
        return CU_INVALID_HANDLE;
    s->dead = true;
    return CU_OK;
}

API CUresult cuStreamDestroy(CUstream s) { return cuStreamDestroy_v2(s); }

#define NEED_STREAM(s) CUstream st; do { NEED_CTX(); st = emu_stream(s); if (!st) return CU_INVALID_HANDLE; } while (0)

API CUresult cuStreamSynchronize(CUstream s)
{
    NEED_STREAM(s);
    if (st->capture) {
        emu_capture_invalidate(st);
        return CU_CAPTURE_UNSUPPORTED;
    }
    if (st->legacy && emu_capturing_in(st->ctx))
        return CU_CAPTURE_IMPLICIT;
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
    pthread_mutex_lock(&emu_lock);
    bool busy = st->completed < st->submitted;
    pthread_mutex_unlock(&emu_lock);
    return busy ? CU_NOT_READY : CU_OK;
}

API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
    NEED_STREAM(s);
    if (!e || e->dead)
        return CU_INVALID_HANDLE;
    if (e->capture || st->capture)
        return emu_capture_wait(st, e);
    pthread_mutex_lock(&emu_lock);
    if (!emu_event_done(e)) {
        emu_op *op = emu_op_new(OP_WAIT);
        op->u.ev.event = e;
        op->u.ev.seq = e->at->submitted;
        emu_submit(st, op);
    }
    pthread_mutex_unlock(&emu_lock);
    return CU_OK;
}

static CUresult add_host(CUstream st, enum op_kind kind, void *fn, void *data)
{
    if (!fn)
        return CU_INVALID;
    pthread_mutex_lock(&emu_lock);
    emu_op *op = emu_op_new(kind);
    op->u.host.fn = fn;
    op->u.host.data = data;
    CUresult r = emu_submit(st, op);
    pthread_mutex_unlock(&emu_lock);
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
    *flags = st->flags;
    return CU_OK;
}

API CUresult cuStreamGetPriority(CUstream s, int *priority)
{
    NEED_STREAM(s);
    *priority = st->priority;
    return CU_OK;
}

API CUresult cuStreamGetId(CUstream s, unsigned long long *id)
{
    NEED_STREAM(s);
    *id = st->legacy ? 1 : st->id;
    return CU_OK;
}

API CUresult cuStreamGetCtx(CUstream s, CUcontext *c)
{
    NEED_STREAM(s);
    *c = st->ctx;
    return CU_OK;
}

API CUresult cuStreamGetCtx_v2(CUstream s, CUcontext *c, void **green)
{
    NEED_STREAM(s);
    *c = st->ctx;
    if (green)
        *green = st->ctx->green;
    return CU_OK;
}

API CUresult cuStreamGetDevice(CUstream s, CUdevice *dev)
{
    NEED_STREAM(s);
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
    return CU_OK;
}

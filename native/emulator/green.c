/* green.c: green contexts: views of the primary context that are promised some of the multiprocessors.
 *
 * Resources are counted and split as the driver does it; a kernel takes its time whatever its context was promised.
 * Memory belongs to the primary context, which each green context retains.
 */
#include <stdlib.h>
#include <string.h>
#include "emu.h"

enum { SM = 1, DEFAULT_STREAM = 1, NON_BLOCKING = 1 };
typedef struct {
    int type;
    unsigned char padding[92];
    struct { unsigned count, least, step, flags; } sm;
    unsigned char rest[32];
} resource;
_Static_assert(sizeof(resource) == 144, "CUdevResource");
typedef struct {
    emu_head object;
    unsigned sms;
} description;
typedef struct emu_green {
    emu_head object;
    CUcontext ctx;
    unsigned sms;
} green;
#define GREEN(g)                                                                                                       \
    NEED_INIT();                                                                                                       \
    NEED_LIVE(g, KIND_GREEN)
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev);
CUresult cuEventCreate(CUevent *out, unsigned flags);
CUresult cuEventDestroy_v2(CUevent e);
CUresult cuCtxPopCurrent_v2(CUcontext *c);
CUresult cuCtxPushCurrent_v2(CUcontext c);
CUresult cuEventRecord(CUevent e, CUstream s);
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags);

/* The smallest group, and what its size is a multiple of; both grew with the architectures. */
static unsigned step(void) { return emu_conf()->major >= 9 ? 8 : 2; }
static unsigned least(void) { return emu_conf()->major >= 9 ? 8 : emu_conf()->major == 8 ? 4 : 2; }

static CUresult fill(resource *out, int type, unsigned count)
{
    NEED_INIT();
    if (!out || type != SM)
        return CU_INVALID;
    memset(out, 0, sizeof *out);
    out->type = SM;
    out->sm.count = count;
    out->sm.least = least();
    out->sm.step = step();
    return CU_OK;
}

API CUresult cuDeviceGetDevResource(CUdevice dev, resource *out, int type)
{
    NEED_INIT();
    return dev < 0 || dev >= emu_conf()->count ? CU_INVALID_DEVICE : fill(out, type, (unsigned)emu_conf()->sms);
}

API CUresult cuCtxGetDevResource(CUcontext c, resource *out, int type)
{
    CUresult r = c ? emu_context_of(&c) : CU_INVALID_CONTEXT;
    if (r)
        return r;
    return fill(out, type, c->green ? ((green *)c->green)->sms : (unsigned)emu_conf()->sms);
}

API CUresult cuGreenCtxGetDevResource(green *g, resource *out, int type)
{
    GREEN(g);
    return fill(out, type, g->sms);
}

API CUresult cuDevSmResourceSplitByCount(resource *out, unsigned *groups, const resource *from, resource *left,
                                         unsigned flags, unsigned count)
{
    NEED_INIT();
    if (!groups || !from || from->type != SM || count > from->sm.count)
        return CU_INVALID;
    unsigned size = count < least() ? least() : (count + step() - 1) / step() * step(), most = from->sm.count / size;
    unsigned made = !out || *groups > most ? most : *groups;
    for (unsigned i = 0; out && i < made; i++)
        fill(&out[i], SM, size);
    if (left)
        fill(left, SM, from->sm.count - made * size);
    *groups = made;
    return CU_OK;
}

API CUresult cuDevResourceGenerateDesc(description **out, const resource *list, unsigned count)
{
    NEED_INIT();
    if (!out || !list || !count)
        return CU_INVALID;
    unsigned sms = 0;
    for (unsigned i = 0; i < count; i++) {
        if (list[i].type != SM || !list[i].sm.count)
            return CU_INVALID;
        sms += list[i].sm.count;
    }
    description *d = emu_object_new(KIND_PARTITION, sizeof *d);
    if (!d)
        return CU_OOM;
    d->sms = sms;
    *out = d;
    return CU_OK;
}

API CUresult cuGreenCtxCreate(green **out, const description *desc, CUdevice dev, unsigned flags)
{
    NEED_INIT();
    if (!out || !emu_object_alive(desc, KIND_PARTITION) || flags != DEFAULT_STREAM ||
        desc->sms > (unsigned)emu_conf()->sms)
        return CU_INVALID;
    CUcontext primary, ctx;
    CUresult r = cuDevicePrimaryCtxRetain(&primary, dev);
    if (r)
        return r;
    green *g = emu_object_new(KIND_GREEN, sizeof *g);
    r = g ? emu_context_new(&ctx, dev, 0, 0) : CU_OOM;
    if (r) {
        if (g && emu_object_end_once(g, KIND_GREEN))
            emu_object_free(g, NULL);
        cuDevicePrimaryCtxRelease_v2(dev);
        return r;
    }
    g->ctx = ctx;
    g->sms = desc->sms;
    ctx->green = g;
    *out = g;
    return CU_OK;
}

API CUresult cuGreenCtxDestroy(green *g)
{
    NEED_INIT();
    pthread_mutex_lock(&emu_lock);
    bool gone = emu_use_last(g, KIND_GREEN, __func__);
    if (!gone)
        emu_object_end(g, END_DESTROYED);
    emu_unlock();
    if (gone)
        return CU_INVALID_CONTEXT;
    int dev = g->ctx->dev;
    emu_context_end(g->ctx);
    emu_object_free(g, NULL);
    return cuDevicePrimaryCtxRelease_v2(dev);
}

API CUresult cuCtxFromGreenCtx(CUcontext *out, green *g)
{
    GREEN(g);
    if (!out)
        return CU_INVALID;
    *out = g->ctx;
    return CU_OK;
}

API CUresult cuGreenCtxGetId(green *g, unsigned long long *id)
{
    GREEN(g);
    if (!id)
        return CU_INVALID;
    *id = g->ctx->id;
    return CU_OK;
}

API CUresult cuGreenCtxStreamCreate(CUstream *out, green *g, unsigned flags, int priority)
{
    GREEN(g);
    if (!out || flags != NON_BLOCKING)
        return CU_INVALID;
    return emu_stream_new(out, g->ctx, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
}

API CUresult cuStreamGetGreenCtx(CUstream s, green **out)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    if (!st || !out)
        return CU_INVALID_HANDLE;
    *out = st->ctx->green;
    return CU_OK;
}

API CUresult cuStreamGetDevResource(CUstream s, resource *out, int type)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    return st ? cuCtxGetDevResource(st->ctx, out, type) : CU_INVALID_HANDLE;
}

/* Behind all work of the context: its legacy stream orders with every stream but those that opted out, and for these it
 * waits. */
API CUresult cuGreenCtxRecordEvent(green *g, CUevent e)
{
    GREEN(g);
    if (emu_capturing_in(g->ctx))
        return CU_CAPTURE_UNSUPPORTED;
    cuCtxPushCurrent_v2(g->ctx);
    for (CUstream s = g->ctx->streams; s; s = s->next) {
        CUevent mark;
        if (!(s->flags & NON_BLOCKING) || s->dead || cuEventCreate(&mark, 0))
            continue;
        cuEventRecord(mark, s);
        cuStreamWaitEvent(NULL, mark, 0);
        cuEventDestroy_v2(mark);
    }
    CUresult r = cuEventRecord(e, NULL);
    cuCtxPopCurrent_v2(NULL);
    return r;
}

API CUresult cuGreenCtxWaitEvent(green *g, CUevent e)
{
    GREEN(g);
    CUresult r = CU_OK;
    cuCtxPushCurrent_v2(g->ctx);
    for (CUstream s = g->ctx->streams; s && !r; s = s->next)
        if (!s->dead)
            r = cuStreamWaitEvent(s, e, 0);
    cuCtxPopCurrent_v2(NULL);
    return r;
}

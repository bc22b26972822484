/* context.c: primary and own contexts, the thread's stack of them, and their settings. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "emu.h"
#include "export.h"
#include "shm.h"

#define STACK 64
typedef struct {
    CUcontext ctx;
    uint64_t id;
} entry; /* id: another context may since have taken the place */
static __thread entry stack[STACK];
static __thread int depth;
static CUcontext primary[EMU_GPUS];
static pthread_mutex_t primary_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* the end of a context calls back */
CUcontext emu_all_contexts;
static uint64_t next_id;

static bool usable(const entry *e)
{
    return emu_object_alive(e->ctx, KIND_CONTEXT) && e->ctx->alive && e->ctx->id == e->id;
}

CUcontext emu_context(void) { return depth && usable(&stack[depth - 1]) ? stack[depth - 1].ctx : NULL; }

CUcontext emu_current(void) { return stack[depth - 1].ctx; }

CUresult emu_need_context(void)
{
    NEED_INIT();
    if (emu_sticky)
        return emu_sticky;
    if (!depth)
        return CU_INVALID_CONTEXT;
    return usable(&stack[depth - 1]) ? CU_OK : CU_CONTEXT_DESTROYED;
}

CUcontext emu_root(CUcontext c) { return c->green ? primary[c->dev] : c; }

CUresult emu_context_of_named(CUcontext *c, const char *call)
{
    NEED_INIT();
    if (!*c) {
        *c = emu_context();
        return *c ? CU_OK : depth ? CU_CONTEXT_DESTROYED : CU_INVALID_CONTEXT;
    }
    CUresult r = emu_use(*c, KIND_CONTEXT, call);
    return r ? CU_INVALID_CONTEXT : (*c)->alive ? CU_OK : CU_CONTEXT_DESTROYED;
}

static bool valid_dev(int dev) { return dev >= 0 && dev < emu_conf()->count; }

static void first_limits(CUcontext c)
{
    memset(c->limits, 0, sizeof c->limits);
    c->limits[0] = 1024;
    c->limits[1] = 1 << 20;
    c->limits[2] = 8 << 20;
    c->limits[5] = 64;
}

/* A context that has a handle and is on no device yet. */
static CUcontext handle_new(int dev, unsigned flags)
{
    emu_announce();
    CUcontext c = emu_object_new(KIND_CONTEXT, sizeof *c);
    if (!c)
        return NULL;
    c->dev = dev;
    c->flags = flags;
    c->id = c->life = __atomic_add_fetch(&next_id, 1, __ATOMIC_RELAXED);
    first_limits(c);
    pthread_mutex_lock(&emu_lock);
    c->next = emu_all_contexts;
    emu_all_contexts = c;
    emu_unlock();
    return c;
}

static void count_context(int dev, int change)
{
    __atomic_fetch_add(&shm_open_engine()->slot[shm_my_slot()].gpu[shm_place(dev)].contexts, change, __ATOMIC_RELAXED);
}

/* Puts it on its device. */
static CUresult begin(CUcontext c, uint64_t overhead)
{
    if (shm_charge(c->dev, overhead) != 0)
        return CU_OOM;
    c->legacy = emu_stream_first(c);
    if (!c->legacy) {
        shm_release(c->dev, overhead);
        return CU_OOM;
    }
    c->overhead = overhead;
    c->alive = true;
    count_context(c->dev, 1);
    return CU_OK;
}

static void unlist(CUcontext c)
{
    for (CUcontext *at = &emu_all_contexts; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
}

CUresult emu_context_new(CUcontext *out, int dev, unsigned flags, uint64_t overhead)
{
    CUcontext c = handle_new(dev, flags);
    CUresult r = c ? begin(c, overhead) : CU_OOM;
    if (c && r) {
        pthread_mutex_lock(&emu_lock);
        unlist(c);
        emu_object_end(c, END_DESTROYED);
        emu_unlock();
        emu_object_free(c, NULL);
    }
    if (!r)
        *out = c;
    return r;
}

/* Work that is still in its streams ends first; then everything made in it is gone. */
void emu_context_end(CUcontext c)
{
    if (c->alive)
        emu_values_end(c);
    pthread_mutex_lock(&emu_lock);
    uint64_t id = c->id;
    if (c->alive)
        emu_ctx_drain(c);
    if (!c->alive || c->id != id) { /* another thread was faster */
        emu_unlock();
        return;
    }
    c->alive = false;
    if (!c->primary)
        unlist(c);
    emu_streams_end(c);
    emu_events_end(c);
    emu_modules_end(c);
    if (!c->primary)
        emu_object_end(c, END_DESTROYED);
    emu_unlock();
    emu_mem_drop_context(c);
    count_context(c->dev, -1);
    shm_release(c->dev, c->overhead);
    if (!c->primary)
        emu_object_free(c, NULL);
}

/* The primary context keeps its handle for the life of the process. */
static CUresult revive(CUcontext c)
{
    c->life = __atomic_add_fetch(&next_id, 1, __ATOMIC_RELAXED);
    first_limits(c);
    return begin(c, emu_conf()->context);
}

static CUresult push(CUcontext c)
{
    if (depth == STACK)
        return CU_INVALID;
    stack[depth++] = (entry){c, c->id};
    return CU_OK;
}

CUcontext emu_primary_handle(int dev)
{
    pthread_mutex_lock(&primary_lock);
    CUcontext c = primary[dev] ? primary[dev] : handle_new(dev, 0);
    if (c)
        c->primary = true;
    primary[dev] = c;
    pthread_mutex_unlock(&primary_lock);
    return c;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
    NEED_INIT();
    NEED_OUT(out);
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    CUcontext c = emu_primary_handle(dev);
    if (!c)
        return CU_OOM;
    pthread_mutex_lock(&primary_lock);
    CUresult r = c->alive ? CU_OK : revive(c);
    if (r == CU_OK) {
        c->refs++;
        *out = c;
    }
    pthread_mutex_unlock(&primary_lock);
    return r;
}

CUcontext emu_primary(int dev) { return primary[dev]; }

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    NEED_INIT();
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    pthread_mutex_lock(&primary_lock);
    CUresult r = primary[dev] && primary[dev]->refs ? CU_OK : CU_INVALID_CONTEXT;
    if (!r && --primary[dev]->refs == 0)
        emu_context_end(primary[dev]);
    pthread_mutex_unlock(&primary_lock);
    return r;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    NEED_INIT();
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    CUresult r = emu_forbid_in_capture();
    if (r)
        return r;
    pthread_mutex_lock(&primary_lock);
    if (primary[dev])
        emu_context_end(primary[dev]);
    pthread_mutex_unlock(&primary_lock);
    emu_sticky = CU_OK;
    return CU_OK;
}

API CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active)
{
    NEED_INIT();
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    if (flags)
        *flags = primary[dev] ? primary[dev]->flags : 0;
    if (active)
        *active = primary[dev] && primary[dev]->alive;
    return CU_OK;
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags)
{
    NEED_INIT();
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    if (primary[dev])
        primary[dev]->flags = flags;
    return CU_OK;
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice dev)
{
    NEED_INIT();
    if (!out)
        return CU_INVALID;
    unsigned scheduling = flags & 7;
    if (flags & ~0xffu || (scheduling & (scheduling - 1)))
        return CU_INVALID;
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    CUresult r = emu_context_new(out, dev, flags, emu_conf()->context);
    return r ? r : push(*out);
}

API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice dev) { return cuCtxCreate_v2(out, flags, dev); }

API CUresult cuCtxCreate_v3(CUcontext *out, void *params, int count, unsigned flags, CUdevice dev)
{
    NEED_OUT(count >= 0 && (params || !count));
    return cuCtxCreate_v2(out, flags, dev);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice dev)
{
    return cuCtxCreate_v2(out, flags, dev);
}

API CUresult cuCtxDestroy_v2(CUcontext c)
{
    NEED_INIT();
    if (emu_use(c, KIND_CONTEXT, __func__) || !c->alive || c->primary)
        return CU_INVALID_CONTEXT;
    bool current = emu_context() == c;
    emu_context_end(c);
    depth -= current;
    return CU_OK;
}

API CUresult cuCtxDestroy(CUcontext c) { return cuCtxDestroy_v2(c); }
API CUresult cuCtxDetach(CUcontext c) { return cuCtxDestroy_v2(c); }

API CUresult cuCtxAttach(CUcontext *c, unsigned flags)
{
    NEED_CTX();
    NEED_OUT(c);
    *c = emu_current();
    return CU_OK;
}

API CUresult cuCtxPushCurrent_v2(CUcontext c)
{
    NEED_INIT();
    return emu_use(c, KIND_CONTEXT, __func__) ? CU_INVALID_CONTEXT : push(c);
}

API CUresult cuCtxPushCurrent(CUcontext c) { return cuCtxPushCurrent_v2(c); }

API CUresult cuCtxPopCurrent_v2(CUcontext *c)
{
    NEED_INIT();
    if (!depth)
        return CU_INVALID_CONTEXT;
    depth--;
    if (c)
        *c = stack[depth].ctx;
    return CU_OK;
}

API CUresult cuCtxPopCurrent(CUcontext *c) { return cuCtxPopCurrent_v2(c); }

API CUresult cuCtxSetCurrent(CUcontext c)
{
    NEED_INIT();
    if (!c) {
        depth -= depth > 0;
        return CU_OK;
    }
    if (emu_use(c, KIND_CONTEXT, __func__))
        return CU_INVALID_CONTEXT;
    if (!depth)
        return push(c);
    stack[depth - 1] = (entry){c, c->id};
    return CU_OK;
}

API CUresult cuCtxGetCurrent(CUcontext *c)
{
    NEED_INIT();
    NEED_OUT(c);
    *c = depth ? stack[depth - 1].ctx : NULL;
    return CU_OK;
}

API CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext c)
{
    CUresult r = emu_context_of(&c);
    if (r)
        return r;
    NEED_OUT(dev);
    *dev = c->dev;
    return CU_OK;
}

API CUresult cuCtxGetDevice(CUdevice *dev) { return cuCtxGetDevice_v2(dev, NULL); }

API CUresult cuCtxSynchronize_v2(CUcontext c)
{
    CUresult r = emu_context_of(&c);
    if (!r)
        r = emu_forbid_in_capture_of(c);
    if (r)
        return r;
    emu_ctx_sync(c);
    return emu_sticky;
}

API CUresult cuCtxSynchronize(void)
{
    NEED_CTX();
    return cuCtxSynchronize_v2(NULL);
}

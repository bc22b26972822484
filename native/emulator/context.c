/* context.c: primary and own contexts, the thread's stack of them, and their settings. */
#include <stdlib.h>
#include <string.h>
#include "emu.h"
#include "shm.h"

#define STACK 64
static __thread CUcontext stack[STACK];
static __thread int depth;
static CUcontext primary[EMU_GPUS];
CUcontext emu_all_contexts;
static uint64_t next_id;

CUcontext emu_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

static bool valid_dev(int dev)
{
    return dev >= 0 && dev < emu_conf()->count;
}

static void first_limits(CUcontext c)
{
    memset(c->limits, 0, sizeof c->limits);
    c->limits[0] = 1024;
    c->limits[1] = 1 << 20;
    c->limits[2] = 8 << 20;
    c->limits[5] = 64;
}

CUresult emu_context_new(CUcontext *out, int dev, unsigned flags, uint64_t overhead)
{
    if (shm_charge(dev, overhead) != 0)
        return CU_OOM;
    CUcontext c = calloc(1, sizeof *c);
    c->dev = dev;
    c->flags = flags;
    c->overhead = overhead;
    c->alive = true;
    c->id = ++next_id;
    first_limits(c);
    c->legacy = emu_stream_new(c, 0, 0);
    c->legacy->legacy = true;
    pthread_mutex_lock(&emu_lock);
    c->next = emu_all_contexts;
    emu_all_contexts = c;
    pthread_mutex_unlock(&emu_lock);
    shm_open_engine()->slot[shm_my_slot()].gpu[emu_conf()->place[dev]].contexts++;
    *out = c;
    return CU_OK;
}

void emu_context_end(CUcontext c)
{
    if (!c->alive)
        return;
    emu_ctx_sync(c);
    c->alive = false;
    emu_mem_drop_context(c);
    shm_open_engine()->slot[shm_my_slot()].gpu[emu_conf()->place[c->dev]].contexts--;
    shm_release(c->dev, c->overhead);
}

/* The primary context keeps its handle for the life of the process. */
static CUresult revive(CUcontext c)
{
    c->overhead = emu_conf()->context;
    first_limits(c);
    if (shm_charge(c->dev, c->overhead) != 0)
        return CU_OOM;
    c->alive = true;
    shm_open_engine()->slot[shm_my_slot()].gpu[emu_conf()->place[c->dev]].contexts++;
    return CU_OK;
}

static CUresult push(CUcontext c)
{
    if (depth == STACK)
        return CU_INVALID;
    stack[depth++] = c;
    return CU_OK;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
    NEED_INIT();
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    CUresult r = CU_OK;
    if (!primary[dev]) {
        r = emu_context_new(&primary[dev], dev, 0, emu_conf()->context);
        if (r == CU_OK)
            primary[dev]->primary = true;
    } else if (!primary[dev]->alive) {
        r = revive(primary[dev]);
    }
    if (r == CU_OK) {
        primary[dev]->refs++;
        *out = primary[dev];
    }
    pthread_mutex_unlock(&lock);
    return r;
}

CUcontext emu_primary(int dev)
{
    return primary[dev];
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    NEED_INIT();
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    if (!primary[dev] || !primary[dev]->refs)
        return CU_INVALID_CONTEXT;
    if (--primary[dev]->refs == 0)
        emu_context_end(primary[dev]);
    return CU_OK;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    NEED_INIT();
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    if (primary[dev])
        emu_context_end(primary[dev]);
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
    if (!valid_dev(dev))
        return CU_INVALID_DEVICE;
    CUresult r = emu_context_new(out, dev, flags, emu_conf()->context);
    return r ? r : push(*out);
}

API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice dev) { return cuCtxCreate_v2(out, flags, dev); }

API CUresult cuCtxCreate_v3(CUcontext *out, void *params, int count, unsigned flags, CUdevice dev)
{
    return cuCtxCreate_v2(out, flags, dev);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice dev)
{
    return cuCtxCreate_v2(out, flags, dev);
}

API CUresult cuCtxDestroy_v2(CUcontext c)
{
    NEED_INIT();
    if (!c || !c->alive || c->primary)
        return CU_INVALID_CONTEXT;
    emu_context_end(c);
    if (depth && stack[depth - 1] == c)
        depth--;
    return CU_OK;
}

API CUresult cuCtxDestroy(CUcontext c) { return cuCtxDestroy_v2(c); }
API CUresult cuCtxDetach(CUcontext c) { return cuCtxDestroy_v2(c); }

API CUresult cuCtxAttach(CUcontext *c, unsigned flags)
{
    NEED_CTX();
    *c = emu_context();
    return CU_OK;
}

API CUresult cuCtxPushCurrent_v2(CUcontext c)
{
    NEED_INIT();
    return c ? push(c) : CU_INVALID_CONTEXT;
}

API CUresult cuCtxPushCurrent(CUcontext c) { return cuCtxPushCurrent_v2(c); }

API CUresult cuCtxPopCurrent_v2(CUcontext *c)
{
    NEED_INIT();
    if (!depth)
        return CU_INVALID_CONTEXT;
    depth--;
    if (c)
        *c = stack[depth];
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
    if (!depth)
        return push(c);
    stack[depth - 1] = c;
    return CU_OK;
}

API CUresult cuCtxGetCurrent(CUcontext *c)
{
    NEED_INIT();
    *c = emu_context();
    return CU_OK;
}

API CUresult cuCtxGetDevice(CUdevice *dev)
{
    NEED_INIT();
    if (!emu_context())
        return CU_INVALID_CONTEXT;
    *dev = emu_context()->dev;
    return CU_OK;
}

API CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext c)
{
    NEED_INIT();
    if (!c && !(c = emu_context()))
        return CU_INVALID_CONTEXT;
    *dev = c->dev;
    return CU_OK;
}

API CUresult cuCtxSynchronize(void)
{
    NEED_CTX();
    if (emu_capturing_in(emu_context()))
        return CU_CAPTURE_UNSUPPORTED;
    emu_ctx_sync(emu_context());
    return emu_sticky;
}

API CUresult cuCtxSynchronize_v2(CUcontext c)
{
    NEED_INIT();
    if (!c && !(c = emu_context()))
        return CU_INVALID_CONTEXT;
    if (emu_capturing_in(c))
        return CU_CAPTURE_UNSUPPORTED;
    emu_ctx_sync(c);
    return emu_sticky;
}

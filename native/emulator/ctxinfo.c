/* ctxinfo.c: a context's settings, kept and given back; only the limits that are memory change anything. */
#include "emu.h"
#include "shm.h"

API CUresult cuCtxGetFlags(unsigned *flags)
{
    NEED_CTX();
    NEED_OUT(flags);
    *flags = emu_current()->flags;
    return CU_OK;
}

API CUresult cuCtxSetFlags(unsigned flags)
{
    NEED_CTX();
    emu_current()->flags = flags;
    return CU_OK;
}

API CUresult cuCtxGetId(CUcontext c, unsigned long long *id)
{
    CUresult r = emu_context_of(&c);
    if (r)
        return r;
    NEED_OUT(id);
    *id = c->id;
    return CU_OK;
}

API CUresult cuCtxGetApiVersion(CUcontext c, unsigned *version)
{
    CUresult r = emu_context_of(&c);
    if (!r && !version)
        return CU_INVALID;
    if (!r)
        *version = 3020;
    return r;
}

API CUresult cuCtxGetLimit(size_t *value, int limit)
{
    NEED_CTX();
    NEED_OUT(value);
    if (limit < 0 || limit > 10)
        return CU_INVALID;
    *value = emu_current()->limits[limit];
    return CU_OK;
}

/* Stacks for every resident thread, the printf buffer and the device-side heap are memory: what exceeds the first
 * settings is charged. */
static uint64_t limit_bytes(CUcontext c, int limit)
{
    static const size_t included[] = {1024, 1 << 20, 8 << 20};
    uint64_t threads = (uint64_t)emu_conf()->sms * (uint64_t)emu_conf()->threads_sm, by = limit ? 1 : threads;
    return c->limits[limit] > included[limit] ? (c->limits[limit] - included[limit]) * by : 0;
}

API CUresult cuCtxSetLimit(int limit, size_t value)
{
    NEED_CTX();
    CUcontext c = emu_current();
    if (limit < 0 || limit > 10 || value >> 48)
        return CU_INVALID;
    size_t old = c->limits[limit];
    uint64_t before = limit <= 2 ? limit_bytes(c, limit) : 0;
    c->limits[limit] = value;
    uint64_t after = limit <= 2 ? limit_bytes(c, limit) : 0;
    if (after > before && shm_charge(c->dev, after - before) != 0) {
        c->limits[limit] = old;
        return CU_OOM;
    }
    if (after < before)
        shm_release(c->dev, before - after);
    c->overhead += after - before;
    return CU_OK;
}

#define ALWAYS(name, value)                                                                                            \
    API CUresult name(int *out)                                                                                        \
    {                                                                                                                  \
        NEED_CTX();                                                                                                    \
        NEED_OUT(out);                                                                                                 \
        *out = value;                                                                                                  \
        return CU_OK;                                                                                                  \
    }
#define ACCEPTED(name, ...)                                                                                            \
    API CUresult name(__VA_ARGS__)                                                                                     \
    {                                                                                                                  \
        NEED_CTX();                                                                                                    \
        return CU_OK;                                                                                                  \
    }
ALWAYS(cuCtxGetCacheConfig, 0)
ACCEPTED(cuCtxSetCacheConfig, int config)
ALWAYS(cuCtxGetSharedMemConfig, 1)
ACCEPTED(cuCtxSetSharedMemConfig, int config)
ACCEPTED(cuCtxResetPersistingL2Cache, void)

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    NEED_CTX();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CU_OK;
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    NEED_CTX();
    CUcontext c = emu_current();
    if (emu_use(peer, KIND_CONTEXT, __func__))
        return CU_INVALID_CONTEXT;
    if (peer->dev == c->dev || flags)
        return CU_INVALID_DEVICE;
    if (c->peers & 1u << peer->dev)
        return CU_PEER_ON;
    c->peers |= 1u << peer->dev;
    return CU_OK;
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    NEED_CTX();
    CUcontext c = emu_current();
    if (emu_use(peer, KIND_CONTEXT, __func__))
        return CU_INVALID_CONTEXT;
    if (!(c->peers & 1u << peer->dev))
        return CU_PEER_OFF;
    c->peers &= ~(1u << peer->dev);
    return CU_OK;
}

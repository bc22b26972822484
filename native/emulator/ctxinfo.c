/* ctxinfo.c: a context's settings that change nothing in the emulation, kept and given back. */
#include "emu.h"

API CUresult cuCtxGetFlags(unsigned *flags)
{
    NEED_CTX();
    *flags = emu_context()->flags;
    return CU_OK;
}

API CUresult cuCtxSetFlags(unsigned flags)
{
    NEED_CTX();
    emu_context()->flags = flags;
    return CU_OK;
}

API CUresult cuCtxGetId(CUcontext c, unsigned long long *id)
{
    NEED_INIT();
    if (!c && !(c = emu_context()))
        return CU_INVALID_CONTEXT;
    *id = c->id;
    return CU_OK;
}

API CUresult cuCtxGetApiVersion(CUcontext c, unsigned *version)
{
    NEED_INIT();
    *version = 3020;
    return CU_OK;
}

API CUresult cuCtxGetLimit(size_t *value, int limit)
{
    NEED_CTX();
    if (limit < 0 || limit > 10)
        return CU_INVALID;
    *value = emu_context()->limits[limit];
    return CU_OK;
}

API CUresult cuCtxSetLimit(int limit, size_t value)
{
    NEED_CTX();
    if (limit < 0 || limit > 10)
        return CU_INVALID;
    emu_context()->limits[limit] = value;
    return CU_OK;
}

API CUresult cuCtxGetCacheConfig(int *config)
{
    NEED_CTX();
    *config = 0;
    return CU_OK;
}

API CUresult cuCtxSetCacheConfig(int config)
{
    NEED_CTX();
    return CU_OK;
}

API CUresult cuCtxGetSharedMemConfig(int *config)
{
    NEED_CTX();
    *config = 1;
    return CU_OK;
}

API CUresult cuCtxSetSharedMemConfig(int config)
{
    NEED_CTX();
    return CU_OK;
}

API CUresult cuCtxResetPersistingL2Cache(void)
{
    NEED_CTX();
    return CU_OK;
}

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
    CUcontext c = emu_context();
    if (!peer || peer->dev == c->dev || flags)
        return peer ? CU_INVALID_DEVICE : CU_INVALID_CONTEXT;
    if (c->peers & 1u << peer->dev)
        return CU_PEER_ON;
    c->peers |= 1u << peer->dev;
    return CU_OK;
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    NEED_CTX();
    CUcontext c = emu_context();
    if (!peer || !(c->peers & 1u << peer->dev))
        return CU_PEER_OFF;
    c->peers &= ~(1u << peer->dev);
    return CU_OK;
}

/* function.c: attributes and occupancy of kernels. */
#include "emu.h"

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    if (!value || attribute < 0 || attribute >= 32)
        return CU_INVALID;
    *value = f->attrs[attribute];
    return CU_OK;
}

API CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    if (attribute < 0 || attribute >= 32)
        return CU_INVALID;
    f->attrs[attribute] = value;
    return CU_OK;
}

API CUresult cuKernelGetAttribute(int *value, int attribute, CUfunction f, CUdevice dev)
{
    return cuFuncGetAttribute(value, attribute, f);
}

API CUresult cuKernelSetAttribute(int attribute, int value, CUfunction f, CUdevice dev)
{
    return cuFuncSetAttribute(f, attribute, value);
}

API CUresult cuFuncSetCacheConfig(CUfunction f, int config)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    return CU_OK;
}
API CUresult cuFuncSetSharedMemConfig(CUfunction f, int config)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    return CU_OK;
}
API CUresult cuKernelSetCacheConfig(CUfunction f, int config, CUdevice dev)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    return CU_OK;
}

static int blocks(int block, size_t shared)
{
    const emu_config *c = emu_conf();
    int by_threads = block > 0 ? c->threads_sm / ((block + 31) / 32 * 32) : 0;
    int by_shared = shared ? (int)((size_t)c->shared_sm / shared) : by_threads;
    int limit = c->threads_sm / 64;
    int n = by_threads < by_shared ? by_threads : by_shared;
    return n < limit ? n : limit;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block, size_t shared)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    if (!n || block <= 0)
        return CU_INVALID;
    *n = blocks(block, shared);
    return CU_OK;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, CUfunction f, int block, size_t shared,
                                                                  unsigned flags)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(n, f, block, shared);
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, size_t (*shared_of)(int),
                                              size_t shared, int limit)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    if (!grid || !block)
        return CU_INVALID;
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = emu_conf()->sms * blocks(*block, shared_of ? shared_of(*block) : shared);
    return CU_OK;
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f, size_t (*shared_of)(int),
                                                       size_t shared, int limit, unsigned flags)
{
    return cuOccupancyMaxPotentialBlockSize(grid, block, f, shared_of, shared, limit);
}

API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *size, CUfunction f, int count, int block)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    if (!size)
        return CU_INVALID;
    *size = count > 0 ? (size_t)emu_conf()->shared_sm / (size_t)count : 0;
    return CU_OK;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f, const CUlaunchConfig *c)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    if (!size || !c)
        return CU_INVALID;
    *size = 8;
    return CU_OK;
}

/* cuSOLVER 13 asks without a function when a handle is created, and fails where that is an error. */
API CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c)
{
    NEED_CTX();
    if (f)
        NEED_LIVE(f, KIND_FUNCTION);
    if (!n || !c)
        return CU_INVALID;
    *n = emu_conf()->sms / 8;
    return CU_OK;
}

/* batch.c: many copies in one call. */
#include <string.h>
#include "emu.h"

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s);

API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attrs,
                                   size_t *attr_at, size_t attr_count, CUstream s)
{
    NEED_CTX();
    if (!to || !from || !sizes || !count || s == NULL)
        return CU_INVALID;
    CUresult r = CU_OK;
    for (size_t i = 0; i < count && !r; i++)
        r = cuMemcpyAsync(to[i], from[i], sizes[i], s);
    return r;
}

API CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attrs,
                                size_t *attr_at, size_t attr_count, size_t *failed, CUstream s)
{
    return cuMemcpyBatchAsync_v2(to, from, sizes, count, attrs, attr_at, attr_count, s);
}

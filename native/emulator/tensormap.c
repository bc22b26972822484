/* tensormap.c: descriptors of tensors for the copy unit of compute capability 9 and later. They are opaque to programs,
 * which hand them to kernels; here they remember their address, and no kernel reads through them. */
#include <string.h>
#include "emu.h"

enum { MAX_RANK = 5, ALIGNED_BY = 64, ADDRESS_ALIGNED_BY = 16 };
typedef struct { uint64_t address, rank, rest[14]; } tensor_map;
_Static_assert(sizeof(tensor_map) == 128, "CUtensorMap");

static CUresult encode(tensor_map *map, unsigned rank, unsigned least_rank, const void *address, const uint64_t *dims,
                       const uint64_t *strides, const unsigned *steps)
{
    NEED_INIT();
    if (emu_conf()->major < 9)
        return CU_NOT_SUPPORTED;
    if (!map || (uintptr_t)map % ALIGNED_BY || !address || (uintptr_t)address % ADDRESS_ALIGNED_BY)
        return CU_INVALID;
    if (rank < least_rank || rank > MAX_RANK || !dims || (rank > 1 && !strides) || !steps)
        return CU_INVALID;
    for (unsigned i = 0; i < rank; i++)
        if (!dims[i] || dims[i] > 1ull << 32 || !steps[i])
            return CU_INVALID;
    *map = (tensor_map){.address = (uintptr_t)address, .rank = rank};
    return CU_OK;
}

API CUresult cuTensorMapEncodeTiled(tensor_map *map, int type, unsigned rank, void *address, const uint64_t *dims,
                                    const uint64_t *strides, const unsigned *box, const unsigned *steps)
{
    return box ? encode(map, rank, 1, address, dims, strides, steps) : CU_INVALID;
}

API CUresult cuTensorMapEncodeIm2col(tensor_map *map, int type, unsigned rank, void *address, const uint64_t *dims,
                                     const uint64_t *strides, const int *lower, const int *upper, unsigned channels,
                                     unsigned pixels, const unsigned *steps)
{
    return lower && upper ? encode(map, rank, 3, address, dims, strides, steps) : CU_INVALID;
}

API CUresult cuTensorMapEncodeIm2colWide(tensor_map *map, int type, unsigned rank, void *address, const uint64_t *dims,
                                         const uint64_t *strides, int lower, int upper, unsigned channels,
                                         unsigned pixels, const unsigned *steps)
{
    return encode(map, rank, 3, address, dims, strides, steps);
}

API CUresult cuTensorMapReplaceAddress(tensor_map *map, void *address)
{
    NEED_INIT();
    if (!map || (uintptr_t)map % ALIGNED_BY || !address || (uintptr_t)address % ADDRESS_ALIGNED_BY)
        return CU_INVALID;
    map->address = (uintptr_t)address;
    return CU_OK;
}

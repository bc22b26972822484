/* array.c: textures and surfaces. The size is computed from the descriptor and corrected by the driver's own
 * requirements where it tells them. Sparse and deferred arrays bring their memory by cuMemCreate.
 */
#include "charge.h"

static uint64_t element_bytes(int format)
{
    switch (format) {
    case 0x02: case 0x09: case 0x10: return 2;
    case 0x03: case 0x0a: case 0x20: return 4;
    default: return format <= 0x20 ? 1 : 8; /* formats with a block or plane layout: an upper bound */
    }
}

static uint64_t bytes_of(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned channels)
{
    uint64_t bytes = width * (height ? height : 1) * (depth ? depth : 1) * element_bytes(format) * (channels ? channels : 1);
    return granules(bytes);
}

static CUresult made(CUresult result, struct slot *slot, void **array, uint64_t charge, int requirements)
{
    struct array_requirements need = {0};
    if (slot && result == CUDA_SUCCESS &&
        REAL_AT(requirements, struct array_requirements *, void *, int)(&need, *array, slot->device) == CUDA_SUCCESS &&
        need.bytes > charge && memory_reserve(slot, need.bytes - charge))
        charge = need.bytes;
    return charge_done(result, slot, LEDGER_ARRAY, array ? (uintptr_t)*array : 0, charge);
}

CUresult on_array_create(enum aliquot_symbol symbol, void **array, const struct array_v2 *desc)
{
    struct slot *slot = desc ? charged_slot() : NULL;
    uint64_t charge = slot ? bytes_of(desc->width, desc->height, 1, desc->format, desc->channels) : 0;
    if (slot && !memory_reserve(slot, charge))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const struct array_v2 *)(array, desc);
    return made(result, slot, array, charge, SYM_cuArrayGetMemoryRequirements);
}

CUresult on_array_create_v1(enum aliquot_symbol symbol, void **array, const struct array_v1 *desc)
{
    struct slot *slot = desc ? charged_slot() : NULL;
    uint64_t charge = slot ? bytes_of(desc->width, desc->height, 1, desc->format, desc->channels) : 0;
    if (slot && !memory_reserve(slot, charge))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const struct array_v1 *)(array, desc);
    return made(result, slot, array, charge, SYM_cuArrayGetMemoryRequirements);
}

CUresult on_array3d_create(enum aliquot_symbol symbol, void **array, const struct array3d_v2 *desc)
{
    struct slot *slot = desc && !(desc->flags & (ARRAY_SPARSE | ARRAY_DEFERRED)) ? charged_slot() : NULL;
    uint64_t charge = slot ? bytes_of(desc->width, desc->height, desc->depth, desc->format, desc->channels) : 0;
    if (slot && !memory_reserve(slot, charge))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const struct array3d_v2 *)(array, desc);
    return made(result, slot, array, charge, SYM_cuArrayGetMemoryRequirements);
}

CUresult on_array3d_create_v1(enum aliquot_symbol symbol, void **array, const struct array3d_v1 *desc)
{
    struct slot *slot = desc ? charged_slot() : NULL;
    uint64_t charge = slot ? bytes_of(desc->width, desc->height, desc->depth, desc->format, desc->channels) : 0;
    if (slot && !memory_reserve(slot, charge))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const struct array3d_v1 *)(array, desc);
    return made(result, slot, array, charge, SYM_cuArrayGetMemoryRequirements);
}

CUresult on_mipmap_create(enum aliquot_symbol symbol, void **array, const struct array3d_v2 *desc, unsigned levels)
{
    struct slot *slot = desc && !(desc->flags & (ARRAY_SPARSE | ARRAY_DEFERRED)) ? charged_slot() : NULL;
    uint64_t charge = 0;
    for (unsigned level = 0; slot && level < levels && level < 32; level++) {
        uint64_t width = desc->width >> level, height = desc->height >> level, depth = desc->depth >> level;
        charge += bytes_of(width ? width : 1, height, depth, desc->format, desc->channels);
    }
    if (slot && !memory_reserve(slot, charge))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const struct array3d_v2 *, unsigned)(array, desc, levels);
    return made(result, slot, array, charge, SYM_cuMipmappedArrayGetMemoryRequirements);
}

CUresult on_handle_destroy(enum aliquot_symbol symbol, void *handle)
{
    CUresult result = REAL_AT(symbol, void *)(handle);
    if (result == CUDA_SUCCESS)
        charge_drop(LEDGER_ARRAY, (uintptr_t)handle);
    return result;
}

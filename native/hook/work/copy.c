/* copy.c: which copies are gated.
 *
 * A copy within a GPU takes its memory bandwidth as fast as a kernel does, whichever engine it runs on, and is gated; one
 * from or to the host moves what PCIe carries, some hundredth of that, and goes without a token, so that it overlaps a
 * neighbour's turn. Where an address may be either, the driver is asked; small copies are not worth the question.
 */
#include "work/copy.h"
#include "work/own.h"

#define LEAST_BYTES (64u << 10)

enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };
enum { POINTER_MEMORY_TYPE = 2 };

static bool on_device(CUdeviceptr at)
{
    unsigned type = MEMORY_HOST;
    return REAL(cuPointerGetAttribute, void *, int, CUdeviceptr)(&type, POINTER_MEMORY_TYPE, at) == CUDA_SUCCESS &&
           type == MEMORY_DEVICE;
}

static bool end_stays(int type, CUdeviceptr at)
{
    return type == MEMORY_DEVICE || type == MEMORY_ARRAY || (type == MEMORY_UNIFIED && on_device(at));
}

static bool is_large(size_t bytes) { return bytes >= LEAST_BYTES && conf_load() == MODE_HELD; }

bool copy_stays(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return is_large(bytes) && on_device(to) && on_device(from);
}

bool copies_stay(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count)
{
    for (size_t i = 0; to && from && bytes && i < count; i++)
        if (copy_stays(to[i], from[i], bytes[i]))
            return true;
    return false;
}

bool copy2d_stays(const struct copy2d *copy)
{
    return copy && is_large(copy->width * copy->height) && end_stays(copy->src_type, copy->src_device) &&
           end_stays(copy->dst_type, copy->dst_device);
}

bool copy3d_stays(const struct copy3d *copy)
{
    return copy && is_large(copy->width * copy->height * copy->depth) && end_stays(copy->src_type, copy->src_device) &&
           end_stays(copy->dst_type, copy->dst_device);
}

/* Where both contexts are on one GPU; a copy from one GPU to another is bounded by what joins them. */
bool peers_stay(const void *to, const void *from, size_t bytes)
{
    if (!is_large(bytes))
        return false;
    const struct gpu_context *one = context_of((void *)to, false), *other = context_of((void *)from, false);
    return one && other && one->slot == other->slot;
}

bool peers3d_stay(const struct copy3d *copy)
{
    return copy3d_stays(copy) && peers_stay(copy->dst_context, copy->src_context, SIZE_MAX);
}

bool boxes_stay(const struct copy_box *boxes, size_t count)
{
    for (size_t i = 0; boxes && i < count; i++)
        if (is_large(boxes[i].width * boxes[i].height * boxes[i].depth) &&
            (boxes[i].src.type == BOX_ARRAY || on_device(boxes[i].src.at)) &&
            (boxes[i].dst.type == BOX_ARRAY || on_device(boxes[i].dst.at)))
            return true;
    return false;
}

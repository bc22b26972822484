/* wrong.c: what is wrong with a call that the tenant's limit has refused.
 *
 * OUT_OF_MEMORY is not the answer to arguments that the driver refuses whatever room there is. They are looked at only
 * once there is none: by the driver where it has a question that allocates nothing, else by what CUDA documents. What
 * looks wrong is then left to the driver, whose answer counts (REFUSE in charge.h). Not seen are a symbol that a lazily
 * loaded module does not have, code that the driver cannot compile, and objects that the driver has no question for.
 */
#include "memory/charge.h"
#include "memory/image.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MOST (64u << 10) /* PTX names its version in the first lines, behind comments */

enum { SCHEDULING = 7, CONTEXT_FLAGS = 0xff };
enum { LAYERED = 1, CUBE = 4, GATHER = 8, ARRAY_FLAGS = 0x1ff };

bool wrong_stream(void *stream)
{
    unsigned flags;
    return (uintptr_t)stream > (uintptr_t)STREAM_PER_THREAD &&
           REAL(cuStreamGetFlags, void *, unsigned *)(stream, &flags) != CUDA_SUCCESS;
}

bool wrong_context_flags(unsigned flags)
{
    unsigned scheduling = flags & SCHEDULING;
    return flags & ~(unsigned)CONTEXT_FLAGS || (scheduling & (scheduling - 1));
}

/* The extents of an array say what it is, together with the flags. */
bool wrong_shape(uint64_t width, uint64_t height, uint64_t depth, unsigned flags)
{
    if (flags & ~(unsigned)ARRAY_FLAGS)
        return true;
    if (flags & CUBE)
        return width != height || !depth || (flags & LAYERED ? depth % 6 : depth != 6);
    if (flags & LAYERED)
        return !depth;
    return (depth && !height) || (flags & GATHER && (!height || depth));
}

bool wrong_place(const struct node_place *place)
{
    size_t nodes = 0;
    int type;
    if (!place->node || !place->graph || (place->count && !place->deps) ||
        REAL(cuGraphGetNodes, void *, void **, size_t *)(place->graph, NULL, &nodes) != CUDA_SUCCESS)
        return true;
    for (size_t i = 0; i < place->count; i++)
        if (REAL(cuGraphNodeGetType, void *, int *)(place->deps[i], &type) != CUDA_SUCCESS)
            return true;
    return false;
}

/* The driver's answer to such a node in a graph of its own, which takes no memory as it is never launched. */
CUresult wrong_allocation_node(const struct alloc_node *params)
{
    struct alloc_node same = *params;
    void *graph, *node;
    CUresult result = REAL(cuGraphCreate, void **, unsigned)(&graph, 0);
    if (result != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    same.bytes = 1;
    result = REAL(cuGraphAddMemAllocNode, void **, void *, const void *, size_t, struct alloc_node *)(&node, graph,
                                                                                                      NULL, 0, &same);
    REAL(cuGraphDestroy, void *)(graph);
    return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

bool wrong_multicast(const struct multicast_prop *prop)
{
    size_t unit = 0;
    return !prop || !prop->devices || !prop->bytes || prop->flags || prop->handle_types & ~(uint64_t)SHARE_FD ||
           REAL(cuMulticastGetGranularity, size_t *, const void *, int)(&unit, prop, 0) != CUDA_SUCCESS ||
           (unit && prop->bytes % unit);
}

/* Neither machine code nor a fat binary nor PTX. */
bool wrong_image(const void *image)
{
    if (image_begins(image, FATBIN_WRAPPER) || image_begins(image, FATBIN) || image_begins(image, ELFMAG))
        return false;
    return !memmem(image, strnlen(image, TEXT_MOST), ".version", strlen(".version"));
}

bool wrong_file(const char *path)
{
    char *start = calloc(1, TEXT_MOST + 1);
    int fd = start ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t bytes = fd >= 0 ? read(fd, start, TEXT_MOST) : 0;
    bool wrong = fd >= 0 && (bytes <= 0 || wrong_image(start));
    if (fd >= 0)
        close(fd);
    free(start);
    return wrong;
}

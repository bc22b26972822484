/* array.c: arrays, kept as pitched rows of device memory. */
#include <string.h>
#include "emu.h"

static size_t format_bytes(int format)
{
    switch (format) {
    case 0x01:
    case 0x08: return 1;
    case 0x02:
    case 0x09:
    case 0x10: return 2;
    case 0x03:
    case 0x0a:
    case 0x20: return 4;
    }
    return 0;
}

/* False where the array has more bytes than there are addresses. */
static bool sizes(struct emu_array *a)
{
    size_t rows;
    if (__builtin_mul_overflow(a->desc.width, a->element, &a->pitch) ||
        __builtin_add_overflow(a->pitch, 511, &a->pitch))
        return false;
    a->pitch &= ~(size_t)511;
    return !__builtin_mul_overflow(a->desc.height ? a->desc.height : 1, a->desc.depth ? a->desc.depth : 1, &rows) &&
           !__builtin_mul_overflow(a->pitch, rows, &a->bytes) && a->bytes < SIZE_MAX / 2;
}

/* What extents and flags make of an array, as the driver documents them. */
static bool shaped(const CUarray3d *d)
{
    enum { LAYERED = 1, CUBE = 4, GATHER = 8, ALL = 0x1ff };
    if (d->flags & ~(unsigned)ALL)
        return false;
    if (d->flags & CUBE)
        return d->width == d->height && d->depth && (d->flags & LAYERED ? d->depth % 6 == 0 : d->depth == 6);
    if (d->flags & LAYERED)
        return d->depth;
    return (d->height || !d->depth) && (!(d->flags & GATHER) || (d->height && !d->depth));
}

API CUresult cuArray3DCreate_v2(CUarray *out, const CUarray3d *d)
{
    NEED_CTX();
    if (!out || !d || !d->width || !format_bytes(d->format) ||
        (d->channels != 1 && d->channels != 2 && d->channels != 4) || !shaped(d))
        return CU_INVALID;
    CUcontext c = emu_root(emu_current());
    struct emu_array made = {.ctx = c, .life = c->life, .desc = *d, .dev = c->dev};
    made.element = format_bytes(d->format) * d->channels;
    CUresult r = emu_forbid_in_capture();
    if (!r && !sizes(&made))
        r = CU_OOM;
    if (!r)
        r = emu_mem_new(made.bytes, MEM_DEVICE, made.dev, !(d->flags & EMU_DEFERRED), &made.ptr);
    if (r)
        return r;
    CUarray a = emu_object_new(KIND_ARRAY, sizeof *a);
    if (!a) {
        emu_mem_drop(made.ptr);
        return CU_OOM;
    }
    memcpy(&a->object + 1, &made.object + 1, sizeof *a - sizeof a->object);
    *out = a;
    return CU_OK;
}

/* An array goes with its context, which has taken its memory. */
CUresult emu_array_use(CUarray a)
{
    if (!emu_object_alive(a, KIND_ARRAY))
        return CU_INVALID_HANDLE;
    return emu_object_alive(a->ctx, KIND_CONTEXT) && a->ctx->life == a->life && a->ctx->alive ? CU_OK
                                                                                              : CU_CONTEXT_DESTROYED;
}

/* What still copies from it or to it ends first. */
CUresult emu_array_end(CUarray a)
{
    CUresult r = emu_array_use(a);
    if (r == CU_OK)
        emu_ctx_sync(a->ctx);
    if (!emu_object_end_once(a, KIND_ARRAY))
        return CU_INVALID_HANDLE;
    if (r == CU_OK)
        emu_mem_drop(a->ptr);
    emu_object_free(a, NULL);
    return r;
}

API CUresult cuArrayCreate_v2(CUarray *out, const CUarray2d *d)
{
    if (!d)
        return CU_INVALID;
    CUarray3d d3 = {d->width, d->height, 0, d->format, d->channels, 0};
    return cuArray3DCreate_v2(out, &d3);
}

API CUresult cuArrayDestroy(CUarray a)
{
    NEED_INIT();
    if (emu_object_alive(a, KIND_ARRAY) && a->part)
        return CU_INVALID;
    return emu_array_end(a);
}

#define NEED_ARRAY(a)                                                                                                  \
    do {                                                                                                               \
        CUresult use_ = emu_array_use(a);                                                                              \
        if (use_)                                                                                                      \
            return use_;                                                                                               \
    } while (0)

API CUresult cuArray3DGetDescriptor_v2(CUarray3d *d, CUarray a)
{
    NEED_CTX();
    NEED_ARRAY(a);
    if (!d)
        return CU_INVALID;
    *d = a->desc;
    return CU_OK;
}

API CUresult cuArrayGetDescriptor_v2(CUarray2d *d, CUarray a)
{
    NEED_CTX();
    NEED_ARRAY(a);
    if (!d)
        return CU_INVALID;
    *d = (CUarray2d){a->desc.width, a->desc.height, a->desc.format, a->desc.channels};
    return CU_OK;
}

typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} requirements;

API CUresult cuArrayGetMemoryRequirements(requirements *r, CUarray a, CUdevice dev)
{
    NEED_INIT();
    NEED_ARRAY(a);
    if (!r || (emu_conf()->strict && !(a->desc.flags & EMU_DEFERRED)))
        return CU_INVALID;
    *r = (requirements){a->bytes, 512, {0}};
    return CU_OK;
}

enum { HOST = 1, DEVICE = 2, ARRAY = 3 };
typedef struct {
    int type;
    CUarray array;
    size_t at;
    CUdeviceptr p;
} end;

static bool inside(const end *e, size_t n)
{
    if (e->type != ARRAY)
        return e->p != 0;
    return e->array->desc.height <= 1 && n <= e->array->desc.width * e->array->element &&
           e->at <= e->array->desc.width * e->array->element - n;
}

/* Copies from and to an array of one dimension, by bytes. */
static CUresult line(end to, end from, size_t n, CUstream s, bool wait)
{
    NEED_CTX();
    if (to.type == ARRAY)
        NEED_ARRAY(to.array);
    if (from.type == ARRAY)
        NEED_ARRAY(from.array);
    if (!inside(&to, n) || !inside(&from, n))
        return CU_INVALID;
    CUmemcpy3d c = {.src_x = from.at,
                    .src_type = from.type,
                    .src_host = (void *)from.p,
                    .src_dev = from.p,
                    .src_array = from.array,
                    .dst_x = to.at,
                    .dst_type = to.type,
                    .dst_host = (void *)to.p,
                    .dst_dev = to.p,
                    .dst_array = to.array,
                    .width = n,
                    .height = 1,
                    .depth = 1};
    return emu_enqueue_copy(&c, emu_stream(s), wait);
}

#define A(array, at) ((end){ARRAY, array, at, 0})
#define H(host) ((end){HOST, NULL, 0, (CUdeviceptr)(host)})
#define D(pointer) ((end){DEVICE, NULL, 0, pointer})
API CUresult cuMemcpyHtoA_v2(CUarray a, size_t at, const void *h, size_t n)
{
    return line(A(a, at), H(h), n, NULL, true);
}
API CUresult cuMemcpyAtoH_v2(void *h, CUarray a, size_t at, size_t n) { return line(H(h), A(a, at), n, NULL, true); }
API CUresult cuMemcpyDtoA_v2(CUarray a, size_t at, CUdeviceptr d, size_t n)
{
    return line(A(a, at), D(d), n, NULL, true);
}
API CUresult cuMemcpyAtoD_v2(CUdeviceptr d, CUarray a, size_t at, size_t n)
{
    return line(D(d), A(a, at), n, NULL, true);
}

API CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_at, CUarray from, size_t from_at, size_t n)
{
    return line(A(to, to_at), A(from, from_at), n, NULL, true);
}

API CUresult cuMemcpyHtoAAsync_v2(CUarray a, size_t at, const void *h, size_t n, CUstream s)
{
    return line(A(a, at), H(h), n, s, false);
}

API CUresult cuMemcpyAtoHAsync_v2(void *h, CUarray a, size_t at, size_t n, CUstream s)
{
    return line(H(h), A(a, at), n, s, false);
}

/* copy.c: moving bytes. Every copy is one three-dimensional box between two places; plain copies are one row. */
#include <stdlib.h>
#include <string.h>
#include "emu.h"

enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 };

static char *place(int type, const void *host, CUdeviceptr dev, CUarray array, size_t *pitch, size_t *height)
{
    if (type == ARRAY) {
        *pitch = array->pitch;
        *height = array->desc.height ? array->desc.height : 1;
        return (char *)array->ptr;
    }
    return type == HOST ? (char *)host : (char *)dev;
}

void emu_copy(const CUmemcpy3d *c)
{
    size_t sp = c->src_pitch, sh = c->src_height, dp = c->dst_pitch, dh = c->dst_height;
    char *from = place(c->src_type, c->src_host, c->src_dev, c->src_array, &sp, &sh);
    char *to = place(c->dst_type, c->dst_host, c->dst_dev, c->dst_array, &dp, &dh);
    sp = sp ? sp : c->width;
    dp = dp ? dp : c->width;
    sh = sh ? sh : c->height;
    dh = dh ? dh : c->height;
    from += c->src_x + sp * (c->src_y + sh * c->src_z);
    to += c->dst_x + dp * (c->dst_y + dh * c->dst_z);
    for (size_t z = 0; z < c->depth; z++)
        for (size_t y = 0; y < c->height; y++)
            memmove(to + dp * (y + dh * z), from + sp * (y + sh * z), c->width);
}

static bool array_named(int type, CUarray a)
{
    return type >= HOST && type <= UNIFIED && (type != ARRAY || emu_array_use(a) == CU_OK);
}

bool emu_copy_named(const CUmemcpy3d *c)
{
    return array_named(c->src_type, c->src_array) && array_named(c->dst_type, c->dst_array);
}

typedef struct {
    int type;
    const void *host;
    CUdeviceptr dev;
    CUarray array;
    size_t x, y, z, pitch, height;
} side;

static bool within(size_t at, size_t n, size_t all) { return n <= all && at <= all - n; }

static bool inside(const side *s, const CUmemcpy3d *c)
{
    if (s->type == ARRAY) {
        const CUarray3d *d = &s->array->desc;
        return within(s->x, c->width, d->width * s->array->element) &&
               within(s->y, c->height, d->height ? d->height : 1) && within(s->z, c->depth, d->depth ? d->depth : 1);
    }
    if (s->type == HOST ? !s->host : !s->dev)
        return false;
    size_t pitch = s->pitch ? s->pitch : c->width, rows = s->height ? s->height : c->height, last;
    bool wraps = __builtin_add_overflow(s->z, c->depth - 1, &last) || __builtin_mul_overflow(last, rows, &last) ||
                 __builtin_add_overflow(last, s->y, &last) || __builtin_add_overflow(last, c->height - 1, &last) ||
                 __builtin_mul_overflow(last, pitch, &last) || __builtin_add_overflow(last, s->x, &last) ||
                 __builtin_add_overflow(last, c->width, &last);
    return s->type != DEVICE || (!wraps && emu_mem_holds(s->dev, last));
}

bool emu_copy_fits(const CUmemcpy3d *c)
{
    const side from = {c->src_type, c->src_host, c->src_dev,   c->src_array, c->src_x,
                       c->src_y,    c->src_z,    c->src_pitch, c->src_height};
    const side to = {c->dst_type, c->dst_host, c->dst_dev,   c->dst_array, c->dst_x,
                     c->dst_y,    c->dst_z,    c->dst_pitch, c->dst_height};
    return !c->width || !c->height || !c->depth || (inside(&from, c) && inside(&to, c));
}

/* Host memory that the driver knows nothing of. */
static bool pageable(int type, const void *host, CUdeviceptr dev)
{
    return type == HOST ? !emu_mem_find((CUdeviceptr)host) : type == UNIFIED && !emu_mem_find(dev);
}

static bool flat_box(const CUmemcpy3d *c)
{
    return c->height == 1 && c->depth == 1 && !c->src_x && !c->src_y && !c->src_z;
}

/* Pageable sources are read when the call is made, as the real driver stages them. False: no memory for it. */
static bool stage(emu_op *op)
{
    CUmemcpy3d *c = &op->u.copy;
    if (!flat_box(c) || !pageable(c->src_type, c->src_host, c->src_dev))
        return true;
    op->stage = malloc(c->width);
    if (!op->stage)
        return false;
    memcpy(op->stage, place(c->src_type, c->src_host, c->src_dev, NULL, NULL, NULL), c->width);
    c->src_type = HOST;
    c->src_host = op->stage;
    return true;
}

/* A copy to pageable memory has ended when the call returns, however it was asked for: the memory may be on the stack. So
 * has one from pageable memory that was not staged. */
static bool ends_at_once(const CUmemcpy3d *c)
{
    return pageable(c->dst_type, c->dst_host, c->dst_dev) ||
           (!flat_box(c) && pageable(c->src_type, c->src_host, c->src_dev));
}

CUresult emu_enqueue_copy(const CUmemcpy3d *c, CUstream s, bool wait)
{
    if (!s)
        return CU_INVALID_HANDLE;
    if (!emu_copy_named(c))
        return CU_INVALID;
    if (s->capture) {
        if (wait) {
            emu_capture_invalidate(s);
            return CU_CAPTURE_UNSUPPORTED;
        }
        return emu_capture_add(s, 1, c, sizeof *c, NULL);
    }
    CUresult r = emu_legacy_use(s);
    if (!r && wait && emu_conf()->strict)
        r = emu_forbid_in_capture();
    if (r)
        return r;
    if (!c->width || !c->height || !c->depth)
        return CU_OK;
    if (!emu_copy_fits(c))
        return CU_INVALID;
    wait = wait || ends_at_once(c);
    pthread_mutex_lock(&emu_lock);
    emu_op op = {.kind = OP_COPY, .u.copy = *c};
    wait = wait || (s->head && !stage(&op));
    r = emu_submit(s, emu_op_new(&op));
    emu_unlock();
    if (wait && !r)
        emu_stream_sync(s);
    return r;
}

static CUresult flat(int to_type, CUdeviceptr to, int from_type, CUdeviceptr from, size_t size, CUstream s, bool wait)
{
    NEED_CTX();
    bool to_ok = to_type != DEVICE || emu_mem_holds(to, size),
         from_ok = from_type != DEVICE || emu_mem_holds(from, size);
    if ((!to_ok || !from_ok || !to || !from) && size)
        return CU_INVALID;
    CUmemcpy3d c = {.src_type = from_type,
                    .src_host = (void *)from,
                    .src_dev = from,
                    .dst_type = to_type,
                    .dst_host = (void *)to,
                    .dst_dev = to,
                    .width = size,
                    .height = 1,
                    .depth = 1};
    return emu_enqueue_copy(&c, emu_stream(s), wait);
}

#define P(x) ((CUdeviceptr)(x))
typedef CUdeviceptr D;
API CUresult cuMemcpy(D to, D from, size_t n) { return flat(UNIFIED, to, UNIFIED, from, n, NULL, true); }
API CUresult cuMemcpyHtoD_v2(D to, const void *from, size_t n)
{
    return flat(DEVICE, to, HOST, P(from), n, NULL, true);
}
API CUresult cuMemcpyDtoH_v2(void *to, D from, size_t n) { return flat(HOST, P(to), DEVICE, from, n, NULL, true); }
API CUresult cuMemcpyDtoD_v2(D to, D from, size_t n) { return flat(DEVICE, to, DEVICE, from, n, NULL, true); }
API CUresult cuMemcpyAsync(D to, D from, size_t n, CUstream s) { return flat(UNIFIED, to, UNIFIED, from, n, s, false); }

API CUresult cuMemcpyHtoDAsync_v2(D to, const void *from, size_t n, CUstream s)
{
    return flat(DEVICE, to, HOST, P(from), n, s, false);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, D from, size_t n, CUstream s)
{
    return flat(HOST, P(to), DEVICE, from, n, s, false);
}

API CUresult cuMemcpyDtoDAsync_v2(D to, D from, size_t n, CUstream s)
{
    return flat(DEVICE, to, DEVICE, from, n, s, false);
}

static CUresult peer(D to, CUcontext a, D from, CUcontext b, size_t n, CUstream s, bool wait)
{
    CUresult r = emu_context_of(&a);
    if (!r)
        r = emu_context_of(&b);
    return r ? r : flat(DEVICE, to, DEVICE, from, n, s, wait);
}

API CUresult cuMemcpyPeer(D to, CUcontext a, D from, CUcontext b, size_t n)
{
    return peer(to, a, from, b, n, NULL, true);
}

API CUresult cuMemcpyPeerAsync(D to, CUcontext a, D from, CUcontext b, size_t n, CUstream s)
{
    return peer(to, a, from, b, n, s, false);
}

static CUresult box2d(const CUmemcpy2d *c, CUstream s, bool wait)
{
    NEED_CTX();
    if (!c)
        return CU_INVALID;
    CUmemcpy3d b = {.src_x = c->src_x,
                    .src_y = c->src_y,
                    .src_type = c->src_type,
                    .src_host = c->src_host,
                    .src_dev = c->src_dev,
                    .src_array = c->src_array,
                    .src_pitch = c->src_pitch,
                    .dst_x = c->dst_x,
                    .dst_y = c->dst_y,
                    .dst_type = c->dst_type,
                    .dst_host = c->dst_host,
                    .dst_dev = c->dst_dev,
                    .dst_array = c->dst_array,
                    .dst_pitch = c->dst_pitch,
                    .width = c->width,
                    .height = c->height,
                    .depth = 1};
    return emu_enqueue_copy(&b, emu_stream(s), wait);
}

API CUresult cuMemcpy2D_v2(const CUmemcpy2d *c) { return box2d(c, NULL, true); }
API CUresult cuMemcpy2DUnaligned_v2(const CUmemcpy2d *c) { return box2d(c, NULL, true); }
API CUresult cuMemcpy2DAsync_v2(const CUmemcpy2d *c, CUstream s) { return box2d(c, s, false); }

static CUresult box3d(const CUmemcpy3d *c, CUstream s, bool wait)
{
    NEED_CTX();
    return c ? emu_enqueue_copy(c, emu_stream(s), wait) : CU_INVALID;
}

API CUresult cuMemcpy3D_v2(const CUmemcpy3d *c) { return box3d(c, NULL, true); }
API CUresult cuMemcpy3DAsync_v2(const CUmemcpy3d *c, CUstream s) { return box3d(c, s, false); }

static CUresult peer3d(const CUmemcpy3d *c, CUstream s, bool wait)
{
    NEED_CTX();
    if (!c)
        return CU_INVALID;
    CUcontext from = c->src_ctx, to = c->dst_ctx;
    CUresult r = emu_context_of(&from);
    if (!r)
        r = emu_context_of(&to);
    return r ? r : emu_enqueue_copy(c, emu_stream(s), wait);
}

API CUresult cuMemcpy3DPeer(const CUmemcpy3d *c) { return peer3d(c, NULL, true); }
API CUresult cuMemcpy3DPeerAsync(const CUmemcpy3d *c, CUstream s) { return peer3d(c, s, false); }

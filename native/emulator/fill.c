/* fill.c: memset in its widths, flat and pitched. */
#include <string.h>
#include "emu.h"

void emu_fill(const CUmemsetNode *f)
{
    for (size_t y = 0; y < (f->height ? f->height : 1); y++) {
        char *row = (char *)f->dst + y * f->pitch;
        if (f->element == 1)
            memset(row, (int)f->value, f->width);
        for (size_t x = 0; f->element == 2 && x < f->width; x++)
            ((uint16_t *)row)[x] = (uint16_t)f->value;
        for (size_t x = 0; f->element == 4 && x < f->width; x++)
            ((uint32_t *)row)[x] = f->value;
    }
}

bool emu_fill_fits(const CUmemsetNode *f)
{
    size_t rows, row;
    if (!f->height || !f->width)
        return true;
    if (__builtin_mul_overflow(f->height - 1, f->pitch, &rows) || __builtin_mul_overflow(f->width, f->element, &row))
        return false;
    return !__builtin_add_overflow(rows, row, &row) && emu_mem_holds(f->dst, row);
}

/* A capture takes any address: cuDNN captures its plans with addresses of nothing to see what graph they make. */
static CUresult fill(CUdeviceptr dst, size_t pitch, unsigned value, unsigned element, size_t w, size_t h, CUstream s,
                     bool wait)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    if (!st)
        return CU_INVALID_HANDLE;
    CUmemsetNode f = {dst, pitch, value, element, w, h};
    if (st->capture) {
        if (!wait)
            return emu_capture_add(st, 2, &f, sizeof f, NULL);
        emu_capture_invalidate(st);
        return CU_CAPTURE_UNSUPPORTED;
    }
    if (!emu_fill_fits(&f))
        return CU_INVALID;
    CUresult r = emu_legacy_use(st);
    if (!r && wait && emu_conf()->strict)
        r = emu_forbid_in_capture();
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    r = emu_submit(st, emu_op_new(&(emu_op){.kind = OP_FILL, .u.fill = f}));
    emu_unlock();
    if (wait)
        emu_stream_sync(st);
    return r;
}

typedef CUdeviceptr D;
API CUresult cuMemsetD8_v2(D d, unsigned char v, size_t n) { return fill(d, 0, v, 1, n, 1, NULL, true); }
API CUresult cuMemsetD16_v2(D d, unsigned short v, size_t n) { return fill(d, 0, v, 2, n, 1, NULL, true); }
API CUresult cuMemsetD32_v2(D d, unsigned v, size_t n) { return fill(d, 0, v, 4, n, 1, NULL, true); }
API CUresult cuMemsetD8Async(D d, unsigned char v, size_t n, CUstream s) { return fill(d, 0, v, 1, n, 1, s, false); }
API CUresult cuMemsetD16Async(D d, unsigned short v, size_t n, CUstream s) { return fill(d, 0, v, 2, n, 1, s, false); }
API CUresult cuMemsetD32Async(D d, unsigned v, size_t n, CUstream s) { return fill(d, 0, v, 4, n, 1, s, false); }

API CUresult cuMemsetD2D8_v2(D d, size_t pitch, unsigned char v, size_t w, size_t h)
{
    return fill(d, pitch, v, 1, w, h, NULL, true);
}

API CUresult cuMemsetD2D16_v2(D d, size_t pitch, unsigned short v, size_t w, size_t h)
{
    return fill(d, pitch, v, 2, w, h, NULL, true);
}

API CUresult cuMemsetD2D32_v2(D d, size_t pitch, unsigned v, size_t w, size_t h)
{
    return fill(d, pitch, v, 4, w, h, NULL, true);
}

API CUresult cuMemsetD2D8Async(D d, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s)
{
    return fill(d, pitch, v, 1, w, h, s, false);
}

API CUresult cuMemsetD2D16Async(D d, size_t pitch, unsigned short v, size_t w, size_t h, CUstream s)
{
    return fill(d, pitch, v, 2, w, h, s, false);
}

API CUresult cuMemsetD2D32Async(D d, size_t pitch, unsigned v, size_t w, size_t h, CUstream s)
{
    return fill(d, pitch, v, 4, w, h, s, false);
}

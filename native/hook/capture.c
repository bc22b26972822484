/* capture.c: what is being recorded into a graph must not see us.
 *
 * Captures spread from stream to stream by event waits, so whether a stream captures is asked of the driver; the count
 * of running captures only says whether the question is worth asking.
 */
#include "gate.h"

_Atomic int capture_count;

bool capture_running(void)
{
    return atomic_load_explicit(&capture_count, memory_order_relaxed) > 0;
}

bool stream_captures(void *stream, bool own)
{
    int status = 0;
    void *named = !stream && own ? STREAM_PER_THREAD : stream;
    CUresult result = REAL(cuStreamIsCapturing, void *, int *)(named, &status);
    return result == CUDA_SUCCESS && status != 0;
}

static CUresult began(CUresult result)
{
    if (result == CUDA_SUCCESS)
        atomic_fetch_add(&capture_count, 1);
    return result;
}

static CUresult ended(CUresult result)
{
    bool over = result == CUDA_SUCCESS ||
                (result >= CUDA_ERROR_CAPTURE_INVALIDATED && result <= CUDA_ERROR_CAPTURE_UNJOINED && result != 903);
    if (over && atomic_fetch_sub(&capture_count, 1) <= 0)
        atomic_store(&capture_count, 0);
    return result;
}

CUresult on_begin_capture_v1(enum aliquot_symbol symbol, void *stream)
{
    return began(REAL_AT(symbol, void *)(stream));
}

CUresult on_begin_capture(enum aliquot_symbol symbol, void *stream, int mode)
{
    return began(REAL_AT(symbol, void *, int)(stream, mode));
}

CUresult on_begin_capture_to_graph(enum aliquot_symbol symbol, void *stream, void *graph, const void *deps,
                                   const void *edges, size_t count, int mode)
{
    return began(REAL_AT(symbol, void *, void *, const void *, const void *, size_t, int)(stream, graph, deps, edges,
                                                                                          count, mode));
}

CUresult on_begin_capture_to_cig(enum aliquot_symbol symbol, void *stream, void *params)
{
    return began(REAL_AT(symbol, void *, void *)(stream, params));
}

CUresult on_end_capture(enum aliquot_symbol symbol, void *stream, void **graph)
{
    return ended(REAL_AT(symbol, void *, void **)(stream, graph));
}

CUresult on_end_capture_to_cig(enum aliquot_symbol symbol, void *stream)
{
    return ended(REAL_AT(symbol, void *)(stream));
}

CUresult on_stream_destroy(enum aliquot_symbol symbol, void *stream)
{
    if (conf_load() == MODE_HELD)
        forget_stream(stream);
    return REAL_AT(symbol, void *)(stream);
}

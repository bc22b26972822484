/* capture.c: what is being recorded into a graph must not see us.
 *
 * Captures spread from stream to stream by event waits, so whether a stream captures is asked of the driver; the count
 * of running captures only says whether the question is worth asking. A capture begins with every driver_lock held, so
 * no own call is between its question and its event; the stream's earlier work keeps an event behind it (streams.c).
 */
#include "gate.h"
#include "own.h"

#define MAX_ORIGINS 64

struct gate_shared gate_shared = {.revision = GATE_CLOSED + 1, .epoch = 1};

/* Where captures began, so that one that is abandoned with its stream or context does not count forever. Captures past
 * the end of the table are only counted. */
static struct origin {
    void *stream, *context;
} origins[MAX_ORIGINS];
static pthread_mutex_t origins_lock = PTHREAD_MUTEX_INITIALIZER;

static _Atomic int beginning; /* calls of the driver that may begin a capture */

bool capture_running(void)
{
    return atomic_load_explicit(&gate_shared.captures, memory_order_relaxed) > 0;
}

/* Also "yes" while one begins, which a GPU that became known meanwhile does not hold up. */
bool capture_possible(void)
{
    return capture_running() || atomic_load(&beginning) != 0;
}

/* Also "yes" when the driver cannot say: then the stream is left alone. */
bool stream_captures(void *stream, bool own)
{
    int status = 0;
    void *named = !stream && own ? STREAM_PER_THREAD : stream;
    return REAL(cuStreamIsCapturing, void *, int *)(named, &status) != CUDA_SUCCESS || status != 0;
}

/* A per-thread default stream is identified by its thread. */
static void *origin_of(enum aliquot_symbol symbol, void *stream)
{
    bool own = stream == STREAM_PER_THREAD ||
               (!stream && (symbol == SYM_cuStreamBeginCapture_ptsz || symbol == SYM_cuStreamBeginCapture_v2_ptsz ||
                            symbol == SYM_cuStreamBeginCaptureToGraph_ptsz ||
                            symbol == SYM_cuStreamBeginRecaptureToGraph_ptsz || symbol == SYM_cuStreamEndCapture_ptsz));
    return own ? (void *)pthread_self() : stream;
}

static void turn_everywhere(void *stream)
{
    for (struct gpu_context *context = context_at(NULL); context; context = context->next)
        stream_turns_tail(context, stream);
}

static unsigned begins(void *stream)
{
    atomic_fetch_add(&beginning, 1);
    if (conf_load() != MODE_HELD)
        return 0;
    unsigned locks = own_lock_all();
    if ((uintptr_t)stream > (uintptr_t)STREAM_PER_THREAD)
        turn_everywhere(stream);
    turn_everywhere(STREAM_LEGACY);
    return locks;
}

static CUresult began(CUresult result, unsigned locks, void *origin)
{
    void *context = NULL;
    if (result == CUDA_SUCCESS) {
        REAL(cuCtxGetCurrent, void **)(&context);
        pthread_mutex_lock(&origins_lock);
        unsigned i = 0;
        while (i < MAX_ORIGINS && origins[i].stream)
            i++;
        if (i < MAX_ORIGINS)
            origins[i] = (struct origin){origin, context};
        atomic_fetch_add(&gate_shared.captures, 1);
        gate_look_anew();
        pthread_mutex_unlock(&origins_lock);
    }
    atomic_fetch_sub(&beginning, 1);
    own_unlock_all(locks);
    return result;
}

/* One capture ended: that of `stream`, or with NULL all of `context`. False: none was known there. */
static bool forget_origin(const void *stream, const void *context)
{
    bool found = false;
    pthread_mutex_lock(&origins_lock);
    for (unsigned i = 0; i < MAX_ORIGINS; i++)
        if (origins[i].stream && (stream ? origins[i].stream == stream : origins[i].context == context)) {
            origins[i] = (struct origin){NULL, NULL};
            atomic_fetch_sub(&gate_shared.captures, 1);
            found = true;
        }
    pthread_mutex_unlock(&origins_lock);
    return found;
}

void captures_end_with(const void *context)
{
    if (capture_running())
        forget_origin(NULL, context);
}

static CUresult ended(CUresult result, void *origin)
{
    bool over = result == CUDA_SUCCESS ||
                (result >= CUDA_ERROR_CAPTURE_INVALIDATED && result <= CUDA_ERROR_CAPTURE_UNJOINED && result != 903);
    if (over && !forget_origin(origin, NULL) && atomic_fetch_sub(&gate_shared.captures, 1) <= 0)
        atomic_store(&gate_shared.captures, 0);
    return result;
}

CUresult on_begin_capture_v1(enum aliquot_symbol symbol, void *stream)
{
    unsigned locks = begins(stream);
    return began(REAL_AT(symbol, void *)(stream), locks, origin_of(symbol, stream));
}

CUresult on_begin_capture(enum aliquot_symbol symbol, void *stream, int mode)
{
    unsigned locks = begins(stream);
    return began(REAL_AT(symbol, void *, int)(stream, mode), locks, origin_of(symbol, stream));
}

CUresult on_begin_capture_to_graph(enum aliquot_symbol symbol, void *stream, void *graph, const void *deps,
                                   const void *edges, size_t count, int mode)
{
    unsigned locks = begins(stream);
    CUresult result = REAL_AT(symbol, void *, void *, const void *, const void *, size_t, int)(stream, graph, deps,
                                                                                                edges, count, mode);
    return began(result, locks, origin_of(symbol, stream));
}

CUresult on_begin_recapture(enum aliquot_symbol symbol, void *stream, int mode, void *graph, void *callback, void *data)
{
    unsigned locks = begins(stream);
    CUresult result = REAL_AT(symbol, void *, int, void *, void *, void *)(stream, mode, graph, callback, data);
    return began(result, locks, origin_of(symbol, stream));
}

CUresult on_begin_capture_to_cig(enum aliquot_symbol symbol, void *stream, void *params)
{
    unsigned locks = begins(stream);
    return began(REAL_AT(symbol, void *, void *)(stream, params), locks, origin_of(symbol, stream));
}

CUresult on_end_capture(enum aliquot_symbol symbol, void *stream, void **graph)
{
    return ended(REAL_AT(symbol, void *, void **)(stream, graph), origin_of(symbol, stream));
}

CUresult on_end_capture_to_cig(enum aliquot_symbol symbol, void *stream)
{
    return ended(REAL_AT(symbol, void *)(stream), origin_of(symbol, stream));
}

/* By waiting for an event of a capture a stream joins it. */
CUresult on_wait_event(enum aliquot_symbol symbol, void *stream, void *event, unsigned flags)
{
    if (!capture_running())
        return REAL_AT(symbol, void *, void *, unsigned)(stream, event, flags);
    unsigned locks = own_lock_all();
    if ((uintptr_t)stream > (uintptr_t)STREAM_PER_THREAD)
        turn_everywhere(stream);
    CUresult result = REAL_AT(symbol, void *, void *, unsigned)(stream, event, flags);
    own_unlock_all(locks);
    return result;
}

CUresult on_stream_destroy(enum aliquot_symbol symbol, void *stream)
{
    if (conf_load() != MODE_HELD)
        return REAL_AT(symbol, void *)(stream);
    unsigned locks = own_lock_all();
    turn_everywhere(stream);
    gate_object_ends();
    CUresult result = REAL_AT(symbol, void *)(stream);
    if (capture_running() && result == CUDA_SUCCESS)
        forget_origin(stream, NULL);
    own_unlock_all(locks);
    return result;
}

void captures_after_fork(void)
{
    pthread_mutex_init(&origins_lock, NULL);
    for (unsigned i = 0; i < MAX_ORIGINS; i++)
        origins[i] = (struct origin){NULL, NULL};
    atomic_store(&gate_shared.captures, 0);
    atomic_store(&beginning, 0);
}

/* captured.c: the calls that begin and end captures.
 *
 * A capture begins with every driver_lock held; the stream's earlier work keeps an event behind it. The graph of a
 * capture that is spoiled, or that ends with its stream or context, is destroyed by the driver unasked, and what is
 * charged for its allocations ends with it.
 */
#include "memory/charge.h"
#include "work/own.h"

#define MAX_ABANDONED 64

static struct ledger_entry abandoned[MAX_ABANDONED]; /* the names of graphs whose captures ended with their stream */
static unsigned abandoned_count;
static pthread_mutex_t abandoned_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_own(enum aliquot_symbol symbol, const void *stream)
{
    return stream == STREAM_PER_THREAD ||
           (!stream && (symbol == SYM_cuStreamBeginCapture_ptsz || symbol == SYM_cuStreamBeginCapture_v2_ptsz ||
                        symbol == SYM_cuStreamBeginCaptureToGraph_ptsz ||
                        symbol == SYM_cuStreamBeginRecaptureToGraph_ptsz || symbol == SYM_cuStreamEndCapture_ptsz));
}

/* A per-thread default stream is identified by its thread. */
static void *origin_of(enum aliquot_symbol symbol, void *stream)
{
    return is_own(symbol, stream) ? (void *)pthread_self() : stream;
}

static void turn_everywhere(void *stream)
{
    for (struct gpu_context *context = context_at(NULL); context; context = context->next)
        stream_turns_tail(context, stream);
}

static unsigned begins(void *stream)
{
    capture_begins();
    if (conf_load() != MODE_HELD)
        return 0;
    unsigned locks = own_lock_all();
    if ((uintptr_t)stream > (uintptr_t)STREAM_PER_THREAD)
        turn_everywhere(stream);
    turn_everywhere(STREAM_LEGACY);
    return locks;
}

static CUresult began(CUresult result, unsigned locks, void *origin, void *graph)
{
    if (result == CUDA_SUCCESS)
        capture_began(origin, graph);
    capture_is_settled();
    own_unlock_all(locks);
    return result;
}

/* Its name is out before the driver may give its handle to another; with the lock of the captures held. */
void graph_abandoned(const void *graph)
{
    pthread_mutex_lock(&abandoned_lock);
    if (abandoned_count < MAX_ABANDONED && ledger_take(LEDGER_GRAPH, (uintptr_t)graph, &abandoned[abandoned_count]))
        abandoned_count++;
    pthread_mutex_unlock(&abandoned_lock);
}

/* Gives back what captures held that ended with their stream or context. */
void captures_abandoned(void)
{
    for (;;) {
        struct ledger_entry name;
        pthread_mutex_lock(&abandoned_lock);
        bool some = abandoned_count;
        if (some)
            name = abandoned[--abandoned_count];
        pthread_mutex_unlock(&abandoned_lock);
        if (!some)
            return;
        graph_dropped(&name);
    }
}

static bool take_name(void *graph, void *name) { return ledger_take(LEDGER_GRAPH, (uintptr_t)graph, name); }

/* `name`: what was taken out of the graph that is being captured there, before the driver may give the handle to another. */
static CUresult ended(CUresult result, void *origin, const struct ledger_entry *name)
{
    bool over = result == CUDA_SUCCESS ||
                (result >= CUDA_ERROR_CAPTURE_INVALIDATED && result <= CUDA_ERROR_CAPTURE_UNJOINED && result != 903);
    if (name && over && result != CUDA_SUCCESS)
        graph_dropped(name);
    else if (name)
        ledger_put(*name, NULL);
    if (over)
        capture_ended(origin);
    return result;
}

/* A capture into a graph of its own has begun, or has not. */
static CUresult began_own(CUresult result, unsigned locks, enum aliquot_symbol symbol, void *stream)
{
    void *graph = result == CUDA_SUCCESS ? capture_graph(stream, is_own(symbol, stream)) : NULL;
    return began(result, locks, origin_of(symbol, stream), graph);
}

CUresult on_begin_capture_v1(enum aliquot_symbol symbol, void *stream)
{
    unsigned locks = begins(stream);
    return began_own(REAL_AT(symbol, void *)(stream), locks, symbol, stream);
}

CUresult on_begin_capture(enum aliquot_symbol symbol, void *stream, int mode)
{
    unsigned locks = begins(stream);
    return began_own(REAL_AT(symbol, void *, int)(stream, mode), locks, symbol, stream);
}

CUresult on_begin_capture_to_graph(enum aliquot_symbol symbol, void *stream, void *graph, const void *deps,
                                   const void *edges, size_t count, int mode)
{
    unsigned locks = begins(stream);
    CUresult result = REAL_AT(symbol, void *, void *, const void *, const void *, size_t, int)(stream, graph, deps,
                                                                                               edges, count, mode);
    return began(result, locks, origin_of(symbol, stream), NULL);
}

CUresult on_begin_recapture(enum aliquot_symbol symbol, void *stream, int mode, void *graph, void *callback, void *data)
{
    unsigned locks = begins(stream);
    CUresult result = REAL_AT(symbol, void *, int, void *, void *, void *)(stream, mode, graph, callback, data);
    return began(result, locks, origin_of(symbol, stream), NULL);
}

CUresult on_begin_capture_to_cig(enum aliquot_symbol symbol, void *stream, void *params)
{
    unsigned locks = begins(stream);
    return began(REAL_AT(symbol, void *, void *)(stream, params), locks, origin_of(symbol, stream), NULL);
}

CUresult on_end_capture(enum aliquot_symbol symbol, void *stream, void **graph)
{
    struct ledger_entry name;
    void *origin = origin_of(symbol, stream);
    bool known = capture_graph_taken(origin, take_name, &name);
    return ended(REAL_AT(symbol, void *, void **)(stream, graph), origin, known ? &name : NULL);
}

CUresult on_end_capture_to_cig(enum aliquot_symbol symbol, void *stream)
{
    return ended(REAL_AT(symbol, void *)(stream), origin_of(symbol, stream), NULL);
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
    if (result == CUDA_SUCCESS)
        capture_ends_with_stream(stream);
    own_unlock_all(locks);
    captures_abandoned();
    return result;
}

void abandoned_after_fork(void)
{
    pthread_mutex_init(&abandoned_lock, NULL);
    abandoned_count = 0;
}

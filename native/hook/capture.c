/* capture.c: what is being recorded into a graph must not see us.
 *
 * Captures spread from stream to stream by event waits, so whether a stream captures is asked of the driver; the count
 * of running captures only says whether the question is worth asking. A capture begins with every driver_lock held, so
 * no own call is between its question and its event; the stream's earlier work keeps an event behind it (streams.c).
 *
 * The graph of a capture that is spoiled, or that ends with its stream or context, is destroyed by the driver unasked, and
 * what is charged for its allocations ends with it.
 */
#include "gate.h"
#include "own.h"

#define MAX_ORIGINS 64

struct gate_shared gate_shared = {.revision = GATE_CLOSED + 1, .epoch = 1};

/* Where captures began, so that one that is abandoned with its stream or context does not count forever. Captures past
 * the end of the table are only counted. `graph`: NULL where the program had it before. */
static struct origin {
    void *stream, *context, *graph;
} origins[MAX_ORIGINS];
static struct ledger_entry abandoned[MAX_ORIGINS]; /* the names of their graphs */
static unsigned abandoned_count;
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

void *capture_graph(void *stream, bool own)
{
    int status;
    uint64_t id;
    const void *deps;
    size_t count;
    void *graph = NULL, *named = !stream && own ? STREAM_PER_THREAD : stream;
    CUresult result = REAL(cuStreamGetCaptureInfo_v2, void *, int *, uint64_t *, void **, const void **, size_t *)(
        named, &status, &id, &graph, &deps, &count);
    return result == CUDA_SUCCESS ? graph : NULL;
}

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
    atomic_fetch_add(&beginning, 1);
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
    void *context = NULL;
    if (result == CUDA_SUCCESS) {
        REAL(cuCtxGetCurrent, void **)(&context);
        pthread_mutex_lock(&origins_lock);
        unsigned i = 0;
        while (i < MAX_ORIGINS && origins[i].stream)
            i++;
        if (i < MAX_ORIGINS)
            origins[i] = (struct origin){origin, context, graph};
        atomic_fetch_add(&gate_shared.captures, 1);
        gate_look_anew();
        pthread_mutex_unlock(&origins_lock);
    }
    atomic_fetch_sub(&beginning, 1);
    own_unlock_all(locks);
    return result;
}

/* With origins_lock held. */
static void abandon(const void *graph)
{
    if (graph && abandoned_count < MAX_ORIGINS &&
        ledger_take(LEDGER_GRAPH, (uintptr_t)graph, &abandoned[abandoned_count]))
        abandoned_count++;
}

/* One capture ended: that of `stream`, or with NULL all of `context`. False: none was known there. */
static bool forget_origin(const void *stream, const void *context, bool by_call)
{
    bool found = false;
    pthread_mutex_lock(&origins_lock);
    for (unsigned i = 0; i < MAX_ORIGINS; i++)
        if (origins[i].stream && (stream ? origins[i].stream == stream : origins[i].context == context)) {
            if (!by_call)
                abandon(origins[i].graph);
            origins[i] = (struct origin){NULL, NULL, NULL};
            atomic_fetch_sub(&gate_shared.captures, 1);
            found = true;
        }
    pthread_mutex_unlock(&origins_lock);
    return found;
}

void captures_end_with(const void *context)
{
    if (capture_running())
        forget_origin(NULL, context, false);
}

void captures_abandoned(void)
{
    for (;;) {
        struct ledger_entry name;
        pthread_mutex_lock(&origins_lock);
        bool some = abandoned_count;
        if (some)
            name = abandoned[--abandoned_count];
        pthread_mutex_unlock(&origins_lock);
        if (!some)
            return;
        graph_dropped(&name);
    }
}

/* The name of the graph that is being captured there is out before the driver may give the handle to another. */
static bool ending(const void *origin, struct ledger_entry *name)
{
    bool known = false;
    pthread_mutex_lock(&origins_lock);
    for (unsigned i = 0; i < MAX_ORIGINS && !known; i++)
        known = origins[i].graph && origins[i].stream == origin &&
                ledger_take(LEDGER_GRAPH, (uintptr_t)origins[i].graph, name);
    pthread_mutex_unlock(&origins_lock);
    return known;
}

static CUresult ended(CUresult result, void *origin, const struct ledger_entry *name)
{
    bool over = result == CUDA_SUCCESS ||
                (result >= CUDA_ERROR_CAPTURE_INVALIDATED && result <= CUDA_ERROR_CAPTURE_UNJOINED && result != 903);
    if (name && over && result != CUDA_SUCCESS)
        graph_dropped(name);
    else if (name)
        ledger_put(*name, NULL);
    if (over && !forget_origin(origin, NULL, true) && atomic_fetch_sub(&gate_shared.captures, 1) <= 0)
        atomic_store(&gate_shared.captures, 0);
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
    bool known = ending(origin, &name);
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
    if (capture_running() && result == CUDA_SUCCESS)
        forget_origin(stream, NULL, false);
    own_unlock_all(locks);
    captures_abandoned();
    return result;
}

void captures_after_fork(void)
{
    pthread_mutex_init(&origins_lock, NULL);
    for (unsigned i = 0; i < MAX_ORIGINS; i++)
        origins[i] = (struct origin){NULL, NULL, NULL};
    abandoned_count = 0;
    atomic_store(&gate_shared.captures, 0);
    atomic_store(&beginning, 0);
}

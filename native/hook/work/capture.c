/* capture.c: what is being recorded into a graph must not see us.
 *
 * Captures spread from stream to stream by event waits, so whether a stream captures is asked of the driver; the count
 * of running captures only says whether the question is worth asking. A capture begins with every driver_lock held, so
 * no own call is between its question and its event; the stream's earlier work keeps an event behind it (streams.c).
 * The calls that begin and end captures are in memory/captured.c.
 */
#include "work/gate.h"

#define MAX_ORIGINS 64

struct gate_shared gate_shared = {.revision = GATE_CLOSED + 1, .epoch = 1};

/* Where captures began, so that one that is abandoned with its stream or context does not count forever. Captures past
 * the end of the table are only counted. `graph`: NULL where the program had it before. */
static struct origin { void *stream, *context, *graph; } origins[MAX_ORIGINS];
static pthread_mutex_t origins_lock = PTHREAD_MUTEX_INITIALIZER;

static _Atomic int beginning; /* calls of the driver that may begin a capture */

bool capture_running(void) { return atomic_load_explicit(&gate_shared.captures, memory_order_relaxed) > 0; }

/* Also "yes" while one begins, which a GPU that became known meanwhile does not hold up. */
bool capture_possible(void) { return capture_running() || atomic_load(&beginning) != 0; }

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
    CUresult result = REAL(cuStreamGetCaptureInfo_v2, void *, int *, uint64_t *, void **, const void **,
                           size_t *)(named, &status, &id, &graph, &deps, &count);
    return result == CUDA_SUCCESS ? graph : NULL;
}

/* The driver is about to be asked for a capture, and has answered. */
void capture_begins(void) { atomic_fetch_add(&beginning, 1); }

void capture_is_settled(void) { atomic_fetch_sub(&beginning, 1); }

/* One has begun at `origin`, with the graph that it made for itself, in the current context. */
void capture_began(void *origin, void *graph)
{
    void *context = NULL;
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

/* Does `take` take a graph that is being captured at `origin`? No capture is forgotten meanwhile. */
bool capture_graph_taken(const void *origin, bool (*take)(void *graph, void *with), void *with)
{
    bool taken = false;
    pthread_mutex_lock(&origins_lock);
    for (unsigned i = 0; i < MAX_ORIGINS && !taken; i++)
        taken = origins[i].graph && origins[i].stream == origin && take(origins[i].graph, with);
    pthread_mutex_unlock(&origins_lock);
    return taken;
}

/* One capture ended: that of `stream`, or with NULL all of `context`. False: none was known there. */
static bool forget_origin(const void *stream, const void *context, bool by_call)
{
    bool found = false;
    pthread_mutex_lock(&origins_lock);
    for (unsigned i = 0; i < MAX_ORIGINS; i++)
        if (origins[i].stream && (stream ? origins[i].stream == stream : origins[i].context == context)) {
            if (!by_call && origins[i].graph)
                aliquot_above.capture_is_abandoned(origins[i].graph);
            origins[i] = (struct origin){NULL, NULL, NULL};
            atomic_fetch_sub(&gate_shared.captures, 1);
            found = true;
        }
    pthread_mutex_unlock(&origins_lock);
    return found;
}

/* By the call for it. */
void capture_ended(const void *origin)
{
    if (!forget_origin(origin, NULL, true) && atomic_fetch_sub(&gate_shared.captures, 1) <= 0)
        atomic_store(&gate_shared.captures, 0);
}

/* Its stream has ended. */
void capture_ends_with_stream(const void *stream)
{
    if (capture_running())
        forget_origin(stream, NULL, false);
}

void captures_end_with(const void *context)
{
    if (capture_running())
        forget_origin(NULL, context, false);
}

void captures_after_fork(void)
{
    pthread_mutex_init(&origins_lock, NULL);
    for (unsigned i = 0; i < MAX_ORIGINS; i++)
        origins[i] = (struct origin){NULL, NULL, NULL};
    atomic_store(&gate_shared.captures, 0);
    atomic_store(&beginning, 0);
}

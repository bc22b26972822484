/* capture.c: turning stream calls into a graph.
 *
 * A capture begins in one stream and spreads to others through events. What would need the captured work to have run
 * (synchronising, or an implicit wait through the legacy stream) is refused and spoils the capture, as does a call that
 * may synchronise (allocating) unless the capture's and the thread's modes allow it.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "graph.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };
typedef struct emu_capture capture;
static capture *captures;
static uint64_t next_id;
static _Atomic int running; /* captures, so that without one nothing is locked */
static __thread int thread_mode = GLOBAL;

/* With graph_lock: the capture is over. */
static void take_out(capture *c)
{
    for (capture **at = &captures; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    atomic_fetch_sub(&running, 1);
    c->graph->owned = false;
    emu_object_end(c, END_DESTROYED);
    emu_object_free(c, NULL);
}

/* Both are false where there is no memory for it. */
static bool set_deps(CUstream s, const CUgraphNode *deps, size_t count)
{
    CUgraphNode *copy = count ? malloc(count * sizeof *copy) : NULL;
    if (count && !copy)
        return false;
    if (count)
        memcpy(copy, deps, count * sizeof *copy);
    free(s->deps);
    s->deps = copy;
    s->dep_count = count;
    return true;
}

static bool add_dep(CUstream s, CUgraphNode n)
{
    for (size_t i = 0; i < s->dep_count; i++)
        if (s->deps[i] == n)
            return true;
    CUgraphNode *more = realloc(s->deps, (s->dep_count + 1) * sizeof *more);
    if (!more)
        return false;
    s->deps = more;
    s->deps[s->dep_count++] = n;
    return true;
}

/* The graph would lack what could not be remembered. */
static CUresult spoil(capture *c)
{
    c->invalid = true;
    return CU_OOM;
}

void emu_capture_invalidate(CUstream s)
{
    capture *c = s->capture; /* another thread may end it just now */
    if (c)
        c->invalid = true;
}

/* The captures that a blocking stream of `c` takes part in depend on its legacy stream, and this on them. */
static bool through_legacy(CUcontext c, bool spoil)
{
    bool any = false;
    if (!atomic_load(&running))
        return false;
    pthread_mutex_lock(&graph_lock);
    for (capture *at = captures; at; at = at->next)
        for (CUstream s = at->members; s; s = s->next_captured)
            if (s->ctx == c && !(s->flags & 1)) {
                at->invalid |= spoil;
                any = true;
            }
    pthread_mutex_unlock(&graph_lock);
    return any;
}

bool emu_capturing_in(CUcontext c) { return through_legacy(c, true); }

CUresult emu_legacy_use(CUstream s) { return s->legacy && emu_capturing_in(s->ctx) ? CU_CAPTURE_IMPLICIT : CU_OK; }

/* Does a thread in `thread_mode` spoil `c` when it makes an unsafe call? */
static bool spoils(const capture *c)
{
    bool mine = pthread_equal(c->thread, pthread_self());
    return c->mode == GLOBAL ? thread_mode == GLOBAL || mine : c->mode == THREAD_LOCAL && mine;
}

static bool takes_part(const capture *c, CUcontext ctx)
{
    for (CUstream s = c->members; s; s = s->next_captured)
        if (s->ctx == ctx)
            return true;
    return false;
}

static CUresult forbid(CUcontext ctx)
{
    bool refused = false;
    if (!atomic_load(&running) || thread_mode == RELAXED)
        return CU_OK;
    pthread_mutex_lock(&graph_lock);
    for (capture *c = captures; c; c = c->next)
        if (spoils(c) && (!ctx || takes_part(c, ctx)))
            refused = c->invalid = true;
    pthread_mutex_unlock(&graph_lock);
    return refused ? CU_CAPTURE_UNSUPPORTED : CU_OK;
}

CUresult emu_forbid_in_capture(void) { return forbid(NULL); }

/* Waiting for all of a context: cannot be while one of its streams captures, unless the modes allow unsafe calls; and
 * never while one that the legacy stream waits for does. */
CUresult emu_forbid_in_capture_of(CUcontext c)
{
    if (emu_capturing_in(c))
        return CU_CAPTURE_UNSUPPORTED;
    return emu_conf()->strict ? forbid(c) : CU_OK;
}

CUresult emu_unsafe_call(unsigned which)
{
    bool unsafe = emu_conf()->strict && (which == UNSAFE_EVENT || emu_conf()->capture_unsafe & which);
    return unsafe ? forbid(NULL) : CU_OK;
}

static bool active(const capture *c, uint64_t id) { return emu_object_alive(c, KIND_CAPTURE) && c->id == id; }

void emu_capture_spoiled_by(CUevent e)
{
    pthread_mutex_lock(&graph_lock);
    if (emu_conf()->strict && active(e->capture, e->capture_id))
        e->capture->invalid = true;
    pthread_mutex_unlock(&graph_lock);
}

static void join(CUstream s, capture *c)
{
    pthread_mutex_lock(&graph_lock);
    s->next_captured = c->members;
    c->members = s;
    s->capture = c;
    pthread_mutex_unlock(&graph_lock);
}

/* A stream that ends while it captures spoils the capture. */
void emu_capture_forget(CUstream s)
{
    capture *c = s->capture;
    if (!c)
        return;
    pthread_mutex_lock(&graph_lock);
    for (CUstream *at = &c->members; *at; at = &(*at)->next_captured)
        if (*at == s) {
            *at = s->next_captured;
            break;
        }
    s->capture = NULL;
    c->invalid = true;
    CUgraph lost = NULL;
    if (c->origin == s) { /* no call can end it any more */
        for (CUstream o = c->members; o; o = o->next_captured)
            o->capture = NULL;
        lost = c->given ? NULL : c->graph;
        take_out(c);
    }
    pthread_mutex_unlock(&graph_lock);
    if (lost)
        graph_end(lost);
}

CUresult emu_capture_add(CUstream s, int type, const void *params, size_t size, CUgraphNode *out)
{
    CUgraphNode node;
    capture *c = s->capture;
    if (!c || c->invalid)
        return CU_CAPTURE_INVALIDATED;
    CUresult r = graph_add(&node, c->graph, s->deps, s->dep_count, type, params);
    if (r)
        return r;
    if (!set_deps(s, &node, 1))
        return spoil(c);
    if (out)
        *out = node;
    return CU_OK;
}

CUresult emu_capture_event(CUstream s, CUevent e)
{
    capture *c = s->capture;
    if (!c || c->invalid)
        return CU_CAPTURE_INVALIDATED;
    CUgraphNode *copy = s->dep_count ? malloc(s->dep_count * sizeof *copy) : NULL;
    if (s->dep_count && !copy)
        return spoil(c);
    if (s->dep_count)
        memcpy(copy, s->deps, s->dep_count * sizeof *copy);
    free(e->deps);
    e->deps = copy;
    e->dep_count = s->dep_count;
    e->capture = c;
    e->capture_id = c->id;
    return CU_OK;
}

CUresult emu_capture_wait(CUstream s, CUevent e)
{
    if (!e->capture || !active(e->capture, e->capture_id)) {
        if (s->capture && emu_event_recorded(e))
            s->capture->invalid = true;
        return emu_event_recorded(e) || e->capture ? CU_CAPTURE_ISOLATION : CU_OK;
    }
    if (s->capture && s->capture != e->capture) {
        s->capture->invalid = e->capture->invalid = true;
        return CU_CAPTURE_MERGE;
    }
    if (s->legacy)
        return CU_CAPTURE_IMPLICIT;
    if (!s->capture) {
        join(s, e->capture);
        set_deps(s, NULL, 0);
    }
    for (size_t i = 0; i < e->dep_count; i++)
        if (!add_dep(s, e->deps[i]))
            return spoil(s->capture);
    return CU_OK;
}

static CUresult begin(CUstream handle, CUgraph g, const CUgraphNode *deps, size_t count, int mode)
{
    NEED_CTX();
    CUstream s = emu_stream(handle);
    if (!s || mode < GLOBAL || mode > RELAXED)
        return s ? CU_INVALID : CU_INVALID_HANDLE;
    if (s->legacy)
        return CU_CAPTURE_UNSUPPORTED;
    if (s->capture || (g && (g->owned || !graph_has(g, deps, count))))
        return CU_INVALID;
    CUgraph into = g ? g : graph_new();
    capture *c = into && set_deps(s, deps, count) ? emu_object_new(KIND_CAPTURE, sizeof *c) : NULL;
    if (!c) {
        if (into && !g)
            graph_end(into);
        return CU_OOM;
    }
    c->graph = into;
    c->graph->owned = true;
    c->given = g;
    c->origin = s;
    c->thread = pthread_self();
    c->mode = mode;
    pthread_mutex_lock(&graph_lock);
    c->id = ++next_id;
    c->next = captures;
    captures = c;
    atomic_fetch_add(&running, 1);
    pthread_mutex_unlock(&graph_lock);
    join(s, c);
    return CU_OK;
}

API CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { return begin(s, NULL, NULL, 0, mode); }
API CUresult cuStreamBeginCapture(CUstream s) { return begin(s, NULL, NULL, 0, GLOBAL); }

API CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph g, const CUgraphNode *deps, const CUedge *edges,
                                         size_t count, int mode)
{
    NEED_INIT();
    NEED_GRAPH(g);
    return begin(s, g, deps, count, mode);
}

static bool is_joined(const capture *c)
{
    bool joined = true;
    for (CUgraphNode n = c->graph->first; n; n = n->next)
        n->mark = false;
    for (size_t i = 0; i < c->origin->dep_count; i++)
        graph_mark_ancestors(c->origin->deps[i]);
    for (CUstream o = c->members; o; o = o->next_captured)
        for (size_t i = 0; i < o->dep_count; i++)
            joined &= o->deps[i]->mark;
    return joined;
}

API CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
    NEED_CTX();
    CUstream s = emu_stream(handle);
    if (!s || !out)
        return CU_INVALID;
    *out = NULL;
    capture *c = s->capture;
    if (!c)
        return CU_INVALID;
    if (c->origin != s)
        return CU_CAPTURE_UNMATCHED;
    if (c->mode != RELAXED && !pthread_equal(c->thread, pthread_self()))
        return CU_CAPTURE_WRONG_THREAD;
    CUresult r = c->invalid ? CU_CAPTURE_INVALIDATED : is_joined(c) ? CU_OK : CU_CAPTURE_UNJOINED;
    CUgraph graph = c->graph;
    bool given = c->given;
    pthread_mutex_lock(&graph_lock);
    for (CUstream o = c->members; o; o = o->next_captured) {
        o->capture = NULL;
        set_deps(o, NULL, 0);
    }
    take_out(c);
    pthread_mutex_unlock(&graph_lock);
    if (!r)
        *out = graph;
    else if (!given)
        graph_end(graph);
    return r;
}

/* No context is needed for a stream that is named, unless the configuration says so; none is spoiled by the question. */
API CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    NEED_INIT();
    bool by_context = handle == NULL || handle == (CUstream)1 || handle == (CUstream)2;
    CUresult r = by_context || emu_conf()->capture_status_needs_context ? emu_need_context() : CU_OK;
    if (r)
        return r;
    CUstream s = emu_stream(handle);
    if (!s || !status)
        return s ? CU_INVALID : CU_INVALID_HANDLE;
    if (s->legacy && through_legacy(s->ctx, false))
        return CU_CAPTURE_IMPLICIT;
    pthread_mutex_lock(&graph_lock);
    capture *c = s->capture;
    *status = c ? (c->invalid ? 2 : 1) : 0;
    pthread_mutex_unlock(&graph_lock);
    return CU_OK;
}

API CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *deps, size_t count, unsigned replace)
{
    NEED_CTX();
    CUstream s = emu_stream(handle);
    capture *c = s ? s->capture : NULL;
    if (!c || !graph_has(c->graph, deps, count))
        return CU_INVALID;
    bool kept = !replace || set_deps(s, deps, count);
    for (size_t i = 0; !replace && i < count; i++)
        kept &= add_dep(s, deps[i]);
    return kept ? CU_OK : spoil(c);
}

API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream s, CUgraphNode *deps, const CUedge *edges, size_t count,
                                                  unsigned replace)
{
    return cuStreamUpdateCaptureDependencies(s, deps, count, replace);
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    if (!mode || *mode < GLOBAL || *mode > RELAXED)
        return CU_INVALID;
    int old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CU_OK;
}

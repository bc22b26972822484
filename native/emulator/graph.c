/* graph.c: the graph itself: nodes, edges, copies and questions about them. */
#include <stdlib.h>
#include <string.h>
#include "graph.h"

pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned next_graph, next_node;

CUgraph graph_new(void)
{
    CUgraph g = calloc(1, sizeof *g);
    g->id = __atomic_add_fetch(&next_graph, 1, __ATOMIC_RELAXED);
    return g;
}

static CUresult set_params(CUgraphNode n, const void *from)
{
    node_params *p = &n->p;
    switch (n->type) {
    case N_KERNEL: {
        memcpy(&p->kernel, from, offsetof(CUkernelNode, kern));
        if (!p->kernel.func)
            return CU_INVALID;
        NEED_LIVE(p->kernel.func, KIND_FUNCTION);
        p->ns = emu_kernel_ns(p->kernel.func->name, p->kernel.params, p->kernel.extra, 0);
        if (!emu_kernel_until(p->kernel.func->name, p->kernel.params, &p->until))
            p->until.at = 0;
        p->kernel.params = p->kernel.extra = NULL;
        break;
    }
    case N_COPY: p->copy = *(const CUmemcpy3d *)from; break;
    case N_FILL: p->fill = *(const CUmemsetNode *)from; break;
    case N_HOST: p->host = *(const CUhostNode *)from; break;
    case N_CHILD: return cuGraphClone(&p->child, *(const CUgraph *)from);
    case N_WAIT: case N_RECORD:
        p->event = *(const CUevent *)from;
        NEED_LIVE(p->event, KIND_EVENT);
        break;
    case N_ALLOC: {
        p->alloc = *(const CUallocNode *)from;
        int dev = p->alloc.props.location.id;
        return emu_mem_new(p->alloc.bytes, MEM_POOL, dev < 0 || dev >= emu_conf()->count ? 0 : dev, false, &p->alloc.dptr);
    }
    case N_FREE: p->ptr = *(const CUdeviceptr *)from; break;
    case N_EMPTY: break;
    }
    return CU_OK;
}

CUresult graph_add(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count, int type, const void *params)
{
    if (!g || !out || (count && !deps))
        return CU_INVALID;
    CUgraphNode n = calloc(1, sizeof *n);
    n->type = type;
    n->graph = g;
    CUresult r = params ? set_params(n, params) : CU_OK;
    if (r) {
        free(n);
        return r;
    }
    n->deps = count ? malloc(count * sizeof *n->deps) : NULL;
    for (size_t i = 0; i < count; i++)
        n->deps[n->dep_count++] = deps[i];
    pthread_mutex_lock(&graph_lock);
    n->id = ++next_node;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    g->count++;
    pthread_mutex_unlock(&graph_lock);
    *out = n;
    return CU_OK;
}

CUresult graph_set(CUgraphNode n, const void *params)
{
    NEED_INIT();
    return n ? set_params(n, params) : CU_INVALID;
}

CUdeviceptr emu_node_ptr(CUgraphNode n) { return n->p.alloc.dptr; }

void graph_mark_ancestors(CUgraphNode n)
{
    if (n->mark)
        return;
    n->mark = true;
    for (size_t i = 0; i < n->dep_count; i++)
        graph_mark_ancestors(n->deps[i]);
}

/* All nodes, each after those it depends on; NULL when they form a cycle. The caller frees it. */
CUgraphNode *graph_order(CUgraph g)
{
    CUgraphNode *out = malloc((g->count + 1) * sizeof *out);
    size_t done = 0, before;
    for (CUgraphNode n = g->first; n; n = n->next)
        n->mark = false;
    do {
        before = done;
        for (CUgraphNode n = g->first; n; n = n->next) {
            bool free_to_go = !n->mark;
            for (size_t i = 0; i < n->dep_count && free_to_go; i++)
                free_to_go = n->deps[i]->mark;
            if (free_to_go) {
                n->mark = true;
                out[done++] = n;
            }
        }
    } while (done > before);
    if (done == g->count)
        return out;
    free(out);
    return NULL;
}

API CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    NEED_INIT();
    if (!out || flags)
        return CU_INVALID;
    *out = graph_new();
    return CU_OK;
}

API CUresult cuGraphDestroy(CUgraph g)
{
    NEED_INIT();
    if (!g)
        return CU_INVALID;
    for (CUgraphNode n = g->first, next; n; n = next) {
        next = n->next;
        free(n->deps);
        if (n->type == N_CHILD && n->p.child)
            cuGraphDestroy(n->p.child);
        free(n);
    }
    free(g);
    return CU_OK;
}

API CUresult cuGraphClone(CUgraph *out, CUgraph g)
{
    NEED_INIT();
    if (!out || !g)
        return CU_INVALID;
    CUgraph copy = graph_new();
    for (CUgraphNode n = g->first; n; n = n->next) {
        CUgraphNode twin;
        CUresult r = graph_add(&twin, copy, n->deps, n->dep_count, n->type, NULL);
        if (r)
            return r;
        twin->p = n->p;
        twin->origin = n;
        if (n->type == N_CHILD)
            cuGraphClone(&twin->p.child, n->p.child);
    }
    for (CUgraphNode n = copy->first; n; n = n->next)
        for (size_t i = 0; i < n->dep_count; i++)
            for (CUgraphNode m = copy->first; m; m = m->next)
                if (m->origin == n->deps[i])
                    n->deps[i] = m;
    *out = copy;
    return CU_OK;
}

API CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode n, CUgraph clone)
{
    NEED_INIT();
    for (CUgraphNode m = clone->first; m; m = m->next)
        if (m->origin == n) {
            *out = m;
            return CU_OK;
        }
    return CU_INVALID;
}

API CUresult cuGraphNodeGetType(CUgraphNode n, int *type)
{
    NEED_INIT();
    *type = (int)n->type;
    return CU_OK;
}

/* Fills up to *count entries; with no room given only counts. */
#define LIST(each, want, item) \
    do { \
        size_t room = out ? *count : 0, found = 0; \
        each if (want) \
        { \
            if (found < room) \
                out[found] = item; \
            found++; \
        } \
        *count = out && room < found ? room : found; \
    } while (0)

API CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *out, size_t *count)
{
    NEED_INIT();
    LIST(for (CUgraphNode n = g->first; n; n = n->next), true, n);
    return CU_OK;
}

API CUresult cuGraphGetRootNodes(CUgraph g, CUgraphNode *out, size_t *count)
{
    NEED_INIT();
    LIST(for (CUgraphNode n = g->first; n; n = n->next), !n->dep_count, n);
    return CU_OK;
}

API CUresult cuGraphNodeGetDependencies(CUgraphNode of, CUgraphNode *out, size_t *count)
{
    NEED_INIT();
    LIST(for (size_t i = 0; i < of->dep_count; i++), true, of->deps[i]);
    return CU_OK;
}

API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode of, CUgraphNode *out, CUedge *edges, size_t *count)
{
    if (edges && out)
        memset(edges, 0, *count * sizeof *edges);
    return cuGraphNodeGetDependencies(of, out, count);
}

API CUresult cuGraphNodeGetDependentNodes(CUgraphNode of, CUgraphNode *out, size_t *count)
{
    NEED_INIT();
    LIST(for (CUgraphNode n = of->graph->first; n; n = n->next) for (size_t i = 0; i < n->dep_count; i++),
         n->deps[i] == of, n);
    return CU_OK;
}

API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode of, CUgraphNode *out, CUedge *edges, size_t *count)
{
    if (edges && out)
        memset(edges, 0, *count * sizeof *edges);
    return cuGraphNodeGetDependentNodes(of, out, count);
}

API CUresult cuGraphGetEdges(CUgraph g, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    NEED_INIT();
    size_t room = from && to ? *count : 0, found = 0;
    for (CUgraphNode n = g->first; n; n = n->next)
        for (size_t i = 0; i < n->dep_count; i++, found++)
            if (found < room) {
                from[found] = n->deps[i];
                to[found] = n;
            }
    *count = room && room < found ? room : found;
    return CU_OK;
}

API CUresult cuGraphGetEdges_v2(CUgraph g, CUgraphNode *from, CUgraphNode *to, CUedge *edges, size_t *count)
{
    if (edges && from)
        memset(edges, 0, *count * sizeof *edges);
    return cuGraphGetEdges(g, from, to, count);
}

API CUresult cuGraphAddDependencies(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    NEED_INIT();
    for (size_t i = 0; i < count; i++) {
        CUgraphNode n = to[i];
        n->deps = realloc(n->deps, (n->dep_count + 1) * sizeof *n->deps);
        n->deps[n->dep_count++] = from[i];
    }
    return CU_OK;
}

API CUresult cuGraphAddDependencies_v2(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, const CUedge *edges,
                                       size_t count)
{
    return cuGraphAddDependencies(g, from, to, count);
}

API CUresult cuGraphRemoveDependencies(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    NEED_INIT();
    for (size_t i = 0; i < count; i++)
        for (size_t d = 0; d < to[i]->dep_count; d++)
            if (to[i]->deps[d] == from[i])
                to[i]->deps[d--] = to[i]->deps[--to[i]->dep_count];
    return CU_OK;
}

API CUresult cuGraphRemoveDependencies_v2(CUgraph g, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUedge *edges, size_t count)
{
    return cuGraphRemoveDependencies(g, from, to, count);
}

API CUresult cuGraphGetId(CUgraph g, unsigned *id) { NEED_INIT(); *id = g->id; return CU_OK; }
API CUresult cuGraphNodeGetLocalId(CUgraphNode n, unsigned *id) { NEED_INIT(); *id = n->id; return CU_OK; }
API CUresult cuGraphNodeGetContainingGraph(CUgraphNode n, CUgraph *g) { NEED_INIT(); *g = n->graph; return CU_OK; }

/* graph.c: the graph itself: nodes, edges, copies and questions about them. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "graph.h"

pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned next_graph, next_node;

CUgraph graph_new(void)
{
    CUgraph g = emu_object_new(KIND_GRAPH, sizeof *g);
    if (g)
        g->id = atomic_fetch_add_explicit(&next_graph, 1, memory_order_relaxed) + 1;
    return g;
}

static bool contains(CUgraph g, CUgraph other)
{
    bool found = g == other;
    for (CUgraphNode n = g->first; n && !found; n = n->next)
        found = n->type == N_CHILD && contains(n->p.child, other);
    return found;
}

static CUresult fill_child(CUgraphNode n, const CUchildNode *from)
{
    NEED_GRAPH(from->graph);
    if (from->graph->moved)
        return CU_INVALID;
    if (!from->moved) {
        CUresult r = cuGraphClone(&n->p.child, from->graph);
        if (!r)
            n->p.child->owned = true;
        return r;
    }
    if (from->graph->owned || contains(from->graph, n->graph))
        return CU_INVALID;
    n->p.child = from->graph;
    n->p.child->owned = n->p.child->moved = true;
    return CU_OK;
}

CUresult graph_fill(CUgraphNode n, const void *from)
{
    node_params *p = &n->p;
    switch (n->type) {
    case N_KERNEL: {
        memcpy(&p->kernel, from, offsetof(CUkernelNode, kern));
        NEED_LIVE(p->kernel.func, KIND_FUNCTION);
        p->ns = emu_kernel_ns(p->kernel.func->name, p->kernel.params, p->kernel.extra, 0);
        if (!emu_kernel_until(p->kernel.func->name, p->kernel.params, &p->until))
            p->until.at = 0;
        p->kernel.params = p->kernel.extra = NULL;
        break;
    }
    case N_COPY: p->copy = *(const CUmemcpy3d *)from; return emu_copy_named(&p->copy) ? CU_OK : CU_INVALID;
    case N_FILL: p->fill = *(const CUmemsetNode *)from; break;
    case N_HOST: p->host = *(const CUhostNode *)from; return p->host.fn ? CU_OK : CU_INVALID;
    case N_CHILD: return fill_child(n, from);
    case N_WAIT:
    case N_RECORD:
        p->event = *(const CUevent *)from;
        NEED_LIVE(p->event, KIND_EVENT);
        break;
    case N_ALLOC: {
        p->alloc = *(const CUallocNode *)from;
        CUresult r = graph_memory_new(&p->alloc);
        if (!r)
            graph_memory_hold(p->alloc.dptr, 1);
        return r;
    }
    case N_FREE: p->ptr = *(const CUdeviceptr *)from; break;
    case N_EMPTY: break;
    }
    return CU_OK;
}

bool graph_has(CUgraph g, const CUgraphNode *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!nodes || !emu_object_alive(nodes[i], KIND_NODE) || nodes[i]->graph != g)
            return false;
    return true;
}

static void release_node(void *node) { free(((CUgraphNode)node)->deps); }

static void discard(CUgraphNode n)
{
    if (n->type == N_ALLOC)
        graph_memory_hold(n->p.alloc.dptr, -1);
    emu_object_end(n, END_DESTROYED);
    emu_object_free(n, release_node);
}

static CUgraphNode node_new(CUgraph g, int type, const CUgraphNode *deps, size_t count)
{
    CUgraphNode *copy = count ? malloc(count * sizeof *copy) : NULL;
    CUgraphNode n = copy || !count ? emu_object_new(KIND_NODE, sizeof *n) : NULL;
    if (!n) {
        free(copy);
        return NULL;
    }
    n->type = type;
    n->graph = g;
    n->deps = copy;
    for (size_t i = 0; i < count; i++)
        n->deps[n->dep_count++] = deps[i];
    return n;
}

static void append(CUgraph g, CUgraphNode n)
{
    pthread_mutex_lock(&graph_lock);
    n->id = ++next_node;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    g->count++;
    pthread_mutex_unlock(&graph_lock);
}

CUresult graph_add(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count, int type, const void *params)
{
    NEED_GRAPH(g);
    bool fixed = g->moved && (type == N_ALLOC || type == N_FREE);
    if (!out || fixed || !graph_has(g, deps, count) || (!params && type != N_EMPTY))
        return CU_INVALID;
    CUgraphNode n = node_new(g, type, deps, count);
    if (!n)
        return CU_OOM;
    CUresult r = params ? graph_fill(n, params) : CU_OK;
    if (r) {
        discard(n);
        return r;
    }
    append(g, n);
    *out = n;
    return CU_OK;
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

/* All nodes, each after those it depends on; CU_INVALID when they form a cycle. The caller frees the list. */
CUresult graph_order(CUgraph g, CUgraphNode **list)
{
    CUgraphNode *out = malloc((g->count + 1) * sizeof *out);
    size_t done = 0, before;
    if (!out)
        return CU_OOM;
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
    if (done == g->count) {
        *list = out;
        return CU_OK;
    }
    free(out);
    return CU_INVALID;
}

API CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    NEED_INIT();
    if (!out || flags)
        return CU_INVALID;
    CUgraph g = graph_new();
    if (g)
        *out = g;
    return g ? CU_OK : CU_OOM;
}

void graph_end(CUgraph g)
{
    if (!emu_object_end_once(g, KIND_GRAPH))
        return;
    for (CUgraphNode n = g->first, next; n; n = next) {
        next = n->next;
        if (n->type == N_CHILD)
            graph_end(n->p.child);
        discard(n);
    }
    emu_object_free(g, NULL);
}

API CUresult cuGraphDestroy(CUgraph g)
{
    NEED_INIT();
    NEED_GRAPH(g);
    if (g->owned)
        return CU_INVALID;
    graph_end(g);
    return CU_OK;
}

static CUresult clone_node(CUgraph copy, CUgraphNode n)
{
    CUgraphNode twin = node_new(copy, n->type, n->deps, n->dep_count);
    if (!twin)
        return CU_OOM;
    twin->p = n->p;
    twin->origin = n;
    if (n->type == N_ALLOC)
        graph_memory_hold(n->p.alloc.dptr, 1);
    append(copy, twin);
    if (n->type != N_CHILD)
        return CU_OK;
    twin->p.child = NULL;
    CUresult r = cuGraphClone(&twin->p.child, n->p.child);
    if (!r)
        twin->p.child->owned = true;
    return r;
}

API CUresult cuGraphClone(CUgraph *out, CUgraph g)
{
    NEED_INIT();
    NEED_GRAPH(g);
    if (!out)
        return CU_INVALID;
    CUgraph copy = graph_new();
    CUresult r = copy ? CU_OK : CU_OOM;
    for (CUgraphNode n = g->first; n && !r; n = n->next)
        r = clone_node(copy, n);
    if (r) {
        graph_end(copy);
        return r;
    }
    for (CUgraphNode n = copy->first; n; n = n->next)
        for (size_t i = 0; i < n->dep_count; i++)
            for (CUgraphNode m = copy->first; m; m = m->next)
                if (m->origin == n->deps[i])
                    n->deps[i] = m;
    *out = copy;
    return CU_OK;
}

API CUresult cuGraphAddDependencies(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    NEED_INIT();
    NEED_GRAPH(g);
    if (!graph_has(g, from, count) || !graph_has(g, to, count))
        return CU_INVALID;
    for (size_t i = 0; i < count; i++) {
        CUgraphNode n = to[i], *more = realloc(n->deps, (n->dep_count + 1) * sizeof *more);
        if (!more)
            return CU_OOM;
        n->deps = more;
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
    NEED_GRAPH(g);
    if (!graph_has(g, from, count) || !graph_has(g, to, count))
        return CU_INVALID;
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

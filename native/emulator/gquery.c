/* gquery.c: what a program asks about graphs and their nodes. */
#include <string.h>
#include "graph.h"

API CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode n, CUgraph clone)
{
    NEED_INIT();
    NEED_NODE(n);
    NEED_GRAPH(clone);
    if (!out)
        return CU_INVALID;
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
    NEED_NODE(n);
    if (!type)
        return CU_INVALID;
    *type = (int)n->type;
    return CU_OK;
}

/* Fills up to *count entries; with no room given only counts. */
#define LIST(each, want, item)                                                                                         \
    do {                                                                                                               \
        if (!count)                                                                                                    \
            return CU_INVALID;                                                                                         \
        size_t room = out ? *count : 0, found = 0;                                                                     \
        each if (want)                                                                                                 \
        {                                                                                                              \
            if (found < room)                                                                                          \
                out[found] = item;                                                                                     \
            found++;                                                                                                   \
        }                                                                                                              \
        *count = out && room < found ? room : found;                                                                   \
    } while (0)

API CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *out, size_t *count)
{
    NEED_INIT();
    NEED_GRAPH(g);
    LIST(for (CUgraphNode n = g->first; n; n = n->next), true, n);
    return CU_OK;
}

API CUresult cuGraphGetRootNodes(CUgraph g, CUgraphNode *out, size_t *count)
{
    NEED_INIT();
    NEED_GRAPH(g);
    LIST(for (CUgraphNode n = g->first; n; n = n->next), !n->dep_count, n);
    return CU_OK;
}

API CUresult cuGraphNodeGetDependencies(CUgraphNode of, CUgraphNode *out, size_t *count)
{
    NEED_INIT();
    NEED_NODE(of);
    LIST(for (size_t i = 0; i < of->dep_count; i++), true, of->deps[i]);
    return CU_OK;
}

API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode of, CUgraphNode *out, CUedge *edges, size_t *count)
{
    if (edges && out && count)
        memset(edges, 0, *count * sizeof *edges);
    return cuGraphNodeGetDependencies(of, out, count);
}

API CUresult cuGraphNodeGetDependentNodes(CUgraphNode of, CUgraphNode *out, size_t *count)
{
    NEED_INIT();
    NEED_NODE(of);
    LIST(for (CUgraphNode n = of->graph->first; n; n = n->next) for (size_t i = 0; i < n->dep_count; i++),
         n->deps[i] == of, n);
    return CU_OK;
}

API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode of, CUgraphNode *out, CUedge *edges, size_t *count)
{
    if (edges && out && count)
        memset(edges, 0, *count * sizeof *edges);
    return cuGraphNodeGetDependentNodes(of, out, count);
}

API CUresult cuGraphGetEdges(CUgraph g, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    NEED_INIT();
    NEED_GRAPH(g);
    if (!count)
        return CU_INVALID;
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
    if (edges && from && count)
        memset(edges, 0, *count * sizeof *edges);
    return cuGraphGetEdges(g, from, to, count);
}

#define ANSWER(name, handle, need, type, field)                                                                        \
    API CUresult name(handle of, type *out)                                                                            \
    {                                                                                                                  \
        NEED_INIT();                                                                                                   \
        need(of);                                                                                                      \
        if (!out)                                                                                                      \
            return CU_INVALID;                                                                                         \
        *out = of->field;                                                                                              \
        return CU_OK;                                                                                                  \
    }
ANSWER(cuGraphGetId, CUgraph, NEED_GRAPH, unsigned, id)
ANSWER(cuGraphNodeGetLocalId, CUgraphNode, NEED_NODE, unsigned, id)
ANSWER(cuGraphNodeGetContainingGraph, CUgraphNode, NEED_NODE, CUgraph, graph)

/* gnodes.c: adding nodes to a graph by hand, and reading or changing their parameters. */
#include <string.h>
#include "graph.h"

#define HEAD CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count
#define ADD(type, params)                                                                                              \
    NEED_INIT();                                                                                                       \
    return graph_add(out, g, deps, count, type, params)
#define ADD_IN(c, type, params)                                                                                        \
    NEED_INIT();                                                                                                       \
    CUresult in_ = emu_context_of(&c);                                                                                 \
    return in_ ? in_ : graph_add(out, g, deps, count, type, params)
API CUresult cuGraphAddEmptyNode(HEAD) { ADD(N_EMPTY, NULL); }
API CUresult cuGraphAddKernelNode(HEAD, const CUkernelNode *p) { ADD(N_KERNEL, p); }
API CUresult cuGraphAddHostNode(HEAD, const CUhostNode *p) { ADD(N_HOST, p); }
API CUresult cuGraphAddMemcpyNode(HEAD, const CUmemcpy3d *p, CUcontext c) { ADD_IN(c, N_COPY, p); }
API CUresult cuGraphAddMemsetNode(HEAD, const CUmemsetNode *p, CUcontext c) { ADD_IN(c, N_FILL, p); }
API CUresult cuGraphAddChildGraphNode(HEAD, CUgraph child) { ADD(N_CHILD, (&(CUchildNode){child, 0})); }
API CUresult cuGraphAddEventRecordNode(HEAD, CUevent e) { ADD(N_RECORD, &e); }
API CUresult cuGraphAddEventWaitNode(HEAD, CUevent e) { ADD(N_WAIT, &e); }
API CUresult cuGraphAddMemFreeNode(HEAD, CUdeviceptr ptr) { ADD(N_FREE, &ptr); }

API CUresult cuGraphAddMemAllocNode(HEAD, CUallocNode *p)
{
    NEED_INIT();
    CUresult r = graph_add(out, g, deps, count, N_ALLOC, p);
    if (!r)
        p->dptr = (*out)->p.alloc.dptr;
    return r;
}

API CUresult cuGraphAddKernelNode_v2(HEAD, const CUkernelNode *p)
{
    CUkernelNode k = p ? *p : (CUkernelNode){0};
    if (!k.func)
        k.func = k.kern;
    ADD(N_KERNEL, p ? &k : NULL);
}

API CUresult cuGraphAddNode(HEAD, CUnodeParams *p)
{
    NEED_INIT();
    if (!p)
        return CU_INVALID;
    switch (p->type) {
    case N_KERNEL: return cuGraphAddKernelNode_v2(out, g, deps, count, &p->u.kernel);
    case N_COPY: return graph_add(out, g, deps, count, N_COPY, &p->u.memcpy_.copy);
    case N_ALLOC: return cuGraphAddMemAllocNode(out, g, deps, count, &p->u.alloc);
    case N_EMPTY: return graph_add(out, g, deps, count, N_EMPTY, NULL);
    case N_FILL:
    case N_HOST:
    case N_CHILD:
    case N_WAIT:
    case N_RECORD:
    case N_FREE: return graph_add(out, g, deps, count, p->type, &p->u);
    }
    return emu_unsupported("cuGraphAddNode of this type");
}

API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, const CUedge *edges, size_t count,
                               CUnodeParams *p)
{
    return cuGraphAddNode(out, g, deps, count, p);
}

API CUresult cuGraphAddNode_v3(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, const CUedge *edges, size_t count,
                               CUnodeParams *p)
{
    return cuGraphAddNode(out, g, deps, count, p);
}

#define GET(name, want, type_, field)                                                                                  \
    API CUresult name(CUgraphNode n, type_ *p)                                                                         \
    {                                                                                                                  \
        NEED_INIT();                                                                                                   \
        NEED_NODE(n);                                                                                                  \
        if (!p || n->type != (want))                                                                                   \
            return CU_INVALID;                                                                                         \
        *p = n->p.field;                                                                                               \
        return CU_OK;                                                                                                  \
    }
GET(cuGraphMemcpyNodeGetParams, N_COPY, CUmemcpy3d, copy)
GET(cuGraphMemsetNodeGetParams, N_FILL, CUmemsetNode, fill)
GET(cuGraphHostNodeGetParams, N_HOST, CUhostNode, host)
GET(cuGraphChildGraphNodeGetGraph, N_CHILD, CUgraph, child)
GET(cuGraphEventRecordNodeGetEvent, N_RECORD, CUevent, event)
GET(cuGraphEventWaitNodeGetEvent, N_WAIT, CUevent, event)
GET(cuGraphMemAllocNodeGetParams, N_ALLOC, CUallocNode, alloc)
GET(cuGraphMemFreeNodeGetParams, N_FREE, CUdeviceptr, ptr)
GET(cuGraphKernelNodeGetParams_v2, N_KERNEL, CUkernelNode, kernel)

API CUresult cuGraphKernelNodeGetParams(CUgraphNode n, CUkernelNode *p)
{
    NEED_INIT();
    NEED_NODE(n);
    if (!p || n->type != N_KERNEL)
        return CU_INVALID;
    memcpy(p, &n->p.kernel, offsetof(CUkernelNode, kern));
    return CU_OK;
}

#define SET(name, want, type_)                                                                                         \
    API CUresult name(CUgraphNode n, type_ p)                                                                          \
    {                                                                                                                  \
        NEED_INIT();                                                                                                   \
        NEED_NODE(n);                                                                                                  \
        return n->type == (want) && p ? graph_fill(n, p) : CU_INVALID;                                                 \
    }
SET(cuGraphKernelNodeSetParams, N_KERNEL, const CUkernelNode *)
SET(cuGraphKernelNodeSetParams_v2, N_KERNEL, const CUkernelNode *)
SET(cuGraphMemcpyNodeSetParams, N_COPY, const CUmemcpy3d *)
SET(cuGraphMemsetNodeSetParams, N_FILL, const CUmemsetNode *)
SET(cuGraphHostNodeSetParams, N_HOST, const CUhostNode *)
#undef SET
#define SET(name, want)                                                                                                \
    API CUresult name(CUgraphNode n, CUevent e)                                                                        \
    {                                                                                                                  \
        NEED_INIT();                                                                                                   \
        NEED_NODE(n);                                                                                                  \
        return n->type == (want) ? graph_fill(n, &e) : CU_INVALID;                                                     \
    }
SET(cuGraphEventRecordNodeSetEvent, N_RECORD)
SET(cuGraphEventWaitNodeSetEvent, N_WAIT)

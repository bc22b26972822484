/* gnodes.c: adding nodes to a graph by hand, and reading or changing their parameters. */
#include <string.h>
#include "graph.h"

#define HEAD CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count
#define ADD(type, params) NEED_INIT(); return graph_add(out, g, deps, count, type, params)
API CUresult cuGraphAddEmptyNode(HEAD) { ADD(N_EMPTY, NULL); }
API CUresult cuGraphAddKernelNode(HEAD, const CUkernelNode *p) { ADD(N_KERNEL, p); }
API CUresult cuGraphAddHostNode(HEAD, const CUhostNode *p) { ADD(N_HOST, p); }
API CUresult cuGraphAddMemcpyNode(HEAD, const CUmemcpy3d *p, CUcontext c) { ADD(N_COPY, p); }
API CUresult cuGraphAddMemsetNode(HEAD, const CUmemsetNode *p, CUcontext c) { ADD(N_FILL, p); }
API CUresult cuGraphAddChildGraphNode(HEAD, CUgraph child) { ADD(N_CHILD, &child); }
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
    CUkernelNode k = *p;
    if (!k.func)
        k.func = k.kern;
    ADD(N_KERNEL, &k);
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
    case N_FILL: case N_HOST: case N_CHILD: case N_WAIT: case N_RECORD: case N_FREE:
        return graph_add(out, g, deps, count, p->type, &p->u);
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

#define GET(name, want, type_, field) \
    API CUresult name(CUgraphNode n, type_ *p) \
    { \
        NEED_INIT(); \
        if (!n || !p || n->type != (want)) \
            return CU_INVALID; \
        *p = n->p.field; \
        return CU_OK; \
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
    if (!n || !p || n->type != N_KERNEL)
        return CU_INVALID;
    memcpy(p, &n->p.kernel, offsetof(CUkernelNode, kern));
    return CU_OK;
}

API CUresult cuGraphKernelNodeSetParams(CUgraphNode n, const CUkernelNode *p) { return graph_set(n, p); }
API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode n, const CUkernelNode *p) { return graph_set(n, p); }
API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode n, const CUmemcpy3d *p) { return graph_set(n, p); }
API CUresult cuGraphMemsetNodeSetParams(CUgraphNode n, const CUmemsetNode *p) { return graph_set(n, p); }
API CUresult cuGraphHostNodeSetParams(CUgraphNode n, const CUhostNode *p) { return graph_set(n, p); }
API CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode n, CUevent e) { return graph_set(n, &e); }
API CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode n, CUevent e) { return graph_set(n, &e); }
API CUresult cuUserObjectCreate(void **out, void *data, CUhostFn end, unsigned count, unsigned flags)
{
    NEED_INIT();
    *out = data ? data : (void *)1; /* never destroyed here, so the destructor is never called */
    return CU_OK;
}

API CUresult cuUserObjectRetain(void *object, unsigned count) { NEED_INIT(); return CU_OK; }
API CUresult cuUserObjectRelease(void *object, unsigned count) { NEED_INIT(); return CU_OK; }
API CUresult cuGraphRetainUserObject(CUgraph g, void *object, unsigned n, unsigned flags) { NEED_INIT(); return CU_OK; }
API CUresult cuGraphReleaseUserObject(CUgraph g, void *object, unsigned n) { NEED_INIT(); return CU_OK; }

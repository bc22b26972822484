/* gexec.c: executable graphs. A launch puts the nodes into the stream one after another, in an order that respects every
 * dependency: the GPU runs one kernel at a time here anyway.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "graph.h"
#include "shm.h"

static _Atomic unsigned next_id;

#define NEED_EXEC(e)                                                                                                   \
    do {                                                                                                               \
        if (!emu_object_alive(e, KIND_EXEC))                                                                           \
            return CU_INVALID;                                                                                         \
    } while (0)

static CUresult add(CUgraphExec e, CUgraphNode n)
{
    exec_node *more = realloc(e->nodes, (e->count + 1) * sizeof *more);
    if (!more)
        return CU_OOM;
    e->nodes = more;
    e->nodes[e->count++] = (exec_node){n, n->type, n->p, true};
    if (n->type == N_ALLOC)
        graph_memory_hold(n->p.alloc.dptr, 1);
    return CU_OK;
}

static CUresult flatten(CUgraphExec e, CUgraph g)
{
    CUgraphNode *order;
    CUresult r = graph_order(g, &order);
    if (r)
        return r;
    for (size_t i = 0; i < g->count && !r; i++)
        r = order[i]->type == N_CHILD ? flatten(e, order[i]->p.child) : add(e, order[i]);
    free(order);
    return r;
}

static void let_go(CUgraphExec e)
{
    for (size_t i = 0; i < e->count; i++)
        if (e->nodes[i].type == N_ALLOC)
            graph_memory_hold(e->nodes[i].p.alloc.dptr, -1);
    free(e->nodes);
}

static void release(void *exec) { let_go(exec); }

static void discard(CUgraphExec e)
{
    if (emu_object_end_once(e, KIND_EXEC))
        emu_object_free(e, release);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
    NEED_CTX();
    NEED_GRAPH(g);
    if (!out || g->moved)
        return CU_INVALID;
    CUgraphExec e = emu_object_new(KIND_EXEC, sizeof *e);
    if (!e)
        return CU_OOM;
    e->ctx = emu_current();
    e->life = e->ctx->life;
    e->dev = e->ctx->dev;
    e->flags = flags;
    e->id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed) + 1;
    pthread_mutex_lock(&graph_lock);
    CUresult r = flatten(e, g);
    pthread_mutex_unlock(&graph_lock);
    if (r)
        discard(e);
    else
        *out = e;
    return r;
}

API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *bad, char *log, size_t size)
{
    return cuGraphInstantiateWithFlags(out, g, 0);
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *bad, char *log, size_t size)
{
    return cuGraphInstantiateWithFlags(out, g, 0);
}

typedef struct {
    uint64_t flags;
    CUstream upload;
    CUgraphNode bad;
    int result;
} instantiate_params;

API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, instantiate_params *p)
{
    CUresult r = p ? cuGraphInstantiateWithFlags(out, g, p->flags) : CU_INVALID;
    if (!p)
        return r;
    p->bad = NULL;
    p->result = r ? 1 : 0;
    return r;
}

/* Launches still in a stream are plain copies of the nodes, so nothing here is needed any more. */
API CUresult cuGraphExecDestroy(CUgraphExec e)
{
    NEED_INIT();
    NEED_EXEC(e);
    discard(e);
    return CU_OK;
}

static emu_op node_op(const exec_node *n)
{
    static const enum op_kind kinds[] = {OP_KERNEL, OP_COPY, OP_FILL, OP_HOST, OP_NOP, OP_NOP, OP_WAIT, OP_EVENT};
    bool marks = n->type == N_WAIT || n->type == N_RECORD;
    bool runs = n->enabled && n->type <= N_RECORD && (!marks || emu_object_alive(n->p.event, KIND_EVENT));
    emu_op op = {.kind = runs ? kinds[n->type] : OP_NOP};
    if (op.kind == OP_KERNEL) {
        op.left_ns = n->p.ns;
        if (n->p.until.at)
            emu_op_spin(&op, &n->p.until);
    } else if (op.kind == OP_COPY)
        op.u.copy = n->p.copy;
    else if (op.kind == OP_FILL)
        op.u.fill = n->p.fill;
    else if (op.kind == OP_HOST) {
        op.u.host.fn = (void *)n->p.host.fn;
        op.u.host.data = n->p.host.data;
    } else if (n->type == N_FREE && n->enabled) {
        op.kind = OP_FREE;
        op.u.ptr = n->p.ptr;
    } else if (op.kind == OP_WAIT || op.kind == OP_EVENT) {
        op.u.ev.event = n->p.event;
    }
    return op;
}

/* With emu_lock: all or nothing of a launch goes into the stream. */
static CUresult submit(CUgraphExec e, CUstream s)
{
    emu_op *first = NULL, **at = &first, *next;
    CUresult r = emu_sched_start(s->ctx->dev) ? CU_OK : CU_OOM;
    for (size_t i = 0; i < e->count && !r; i++) {
        emu_op op = node_op(&e->nodes[i]);
        *at = emu_op_new(&op);
        if (*at)
            at = &(*at)->next;
        else
            r = CU_OOM;
    }
    if (r)
        graph_memory_unlaunch(e);
    for (emu_op *op = first; op; op = next) {
        next = op->next;
        op->next = NULL;
        if (r)
            emu_op_drop(op);
        else
            r = emu_submit(s, op);
    }
    return r;
}

static CUresult nodes_usable(CUgraphExec e)
{
    for (size_t i = 0; i < e->count; i++) {
        if (e->nodes[i].type == N_WAIT || e->nodes[i].type == N_RECORD)
            NEED_LIVE(e->nodes[i].p.event, KIND_EVENT);
        if (e->nodes[i].type == N_COPY && !emu_copy_named(&e->nodes[i].p.copy))
            return CU_INVALID;
        if (e->nodes[i].type == N_COPY && !emu_copy_fits(&e->nodes[i].p.copy))
            return emu_sticky = CU_ILLEGAL_ADDRESS;
        if (e->nodes[i].type == N_FILL && !emu_fill_fits(&e->nodes[i].p.fill))
            return emu_sticky = CU_ILLEGAL_ADDRESS;
    }
    return CU_OK;
}

API CUresult cuGraphLaunch(CUgraphExec e, CUstream s)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    if (!st)
        return CU_INVALID_HANDLE;
    NEED_EXEC(e);
    if (!emu_object_alive(e->ctx, KIND_CONTEXT) || e->ctx->life != e->life)
        return CU_INVALID;
    if (st->capture)
        return CU_CAPTURE_UNSUPPORTED;
    CUresult r = emu_legacy_use(st);
    if (!r)
        r = nodes_usable(e);
    if (!r)
        r = graph_memory_launch(e);
    if (!r)
        emu_count_launch();
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    r = submit(e, st);
    emu_unlock();
    return r;
}

API CUresult cuGraphUpload(CUgraphExec e, CUstream s)
{
    NEED_CTX();
    NEED_EXEC(e);
    return emu_stream(s) ? graph_memory_upload(e) : CU_INVALID_HANDLE;
}

API CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode *bad, int *result)
{
    NEED_CTX();
    NEED_EXEC(e);
    NEED_GRAPH(g);
    if (g->moved)
        return CU_INVALID;
    struct emu_gexec fresh = {.dev = e->dev};
    CUresult r = flatten(&fresh, g);
    bool same = !r && fresh.count == e->count;
    for (size_t i = 0; same && i < e->count; i++)
        same = fresh.nodes[i].type == e->nodes[i].type;
    if (bad)
        *bad = NULL;
    if (result)
        *result = same ? 0 : 2; /* the topology changed */
    if (!same) {
        let_go(&fresh);
        return r == CU_OOM ? CU_OOM : CU_GRAPH_UPDATE_FAILURE;
    }
    let_go(e);
    e->nodes = fresh.nodes;
    return CU_OK;
}

typedef struct {
    int result;
    CUgraphNode bad, from;
} update_info;

API CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, update_info *info)
{
    if (info)
        info->bad = info->from = NULL;
    return cuGraphExecUpdate(e, g, NULL, info ? &info->result : NULL);
}

static exec_node *find(CUgraphExec e, CUgraphNode n)
{
    for (size_t i = 0; i < e->count; i++)
        if (e->nodes[i].origin == n)
            return &e->nodes[i];
    return NULL;
}

static CUresult exec_set(CUgraphExec e, CUgraphNode n, enum node_type type, const void *params)
{
    NEED_INIT();
    NEED_EXEC(e);
    NEED_NODE(n);
    exec_node *x = find(e, n);
    if (!x || n->type != type || !params)
        return CU_INVALID;
    struct emu_node copy = *n;
    CUresult r = graph_fill(&copy, params);
    if (!r)
        x->p = copy.p;
    return r;
}

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec e, CUgraphNode n, const CUkernelNode *p)
{
    return exec_set(e, n, N_KERNEL, p);
}
API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec e, CUgraphNode n, const CUkernelNode *p)
{
    return exec_set(e, n, N_KERNEL, p);
}
API CUresult cuGraphExecHostNodeSetParams(CUgraphExec e, CUgraphNode n, const CUhostNode *p)
{
    return exec_set(e, n, N_HOST, p);
}
API CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec e, CUgraphNode n, CUevent v)
{
    return exec_set(e, n, N_RECORD, &v);
}
API CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec e, CUgraphNode n, CUevent v)
{
    return exec_set(e, n, N_WAIT, &v);
}

API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode n, const CUmemcpy3d *p, CUcontext c)
{
    NEED_INIT();
    CUresult r = emu_context_of(&c);
    return r ? r : exec_set(e, n, N_COPY, p);
}

API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode n, const CUmemsetNode *p, CUcontext c)
{
    NEED_INIT();
    CUresult r = emu_context_of(&c);
    return r ? r : exec_set(e, n, N_FILL, p);
}

API CUresult cuGraphNodeSetEnabled(CUgraphExec e, CUgraphNode n, unsigned on)
{
    NEED_INIT();
    NEED_EXEC(e);
    NEED_NODE(n);
    exec_node *x = find(e, n);
    if (!x)
        return CU_INVALID;
    x->enabled = on;
    return CU_OK;
}

API CUresult cuGraphNodeGetEnabled(CUgraphExec e, CUgraphNode n, unsigned *on)
{
    NEED_INIT();
    NEED_EXEC(e);
    NEED_NODE(n);
    exec_node *x = find(e, n);
    if (!x || !on)
        return CU_INVALID;
    *on = x->enabled;
    return CU_OK;
}

API CUresult cuGraphExecGetFlags(CUgraphExec e, uint64_t *flags)
{
    NEED_INIT();
    NEED_EXEC(e);
    if (!flags)
        return CU_INVALID;
    *flags = e->flags;
    return CU_OK;
}
API CUresult cuGraphExecGetId(CUgraphExec e, unsigned *id)
{
    NEED_INIT();
    NEED_EXEC(e);
    if (!id)
        return CU_INVALID;
    *id = e->id;
    return CU_OK;
}

/* graph.c: memory that lives in graphs. Charged when its node is added or captured, held while the graph or anything
 * instantiated from it lives. The driver keeps it longer, as a cache of the device: that is trimmed at once, and what is
 * still in use stays charged until a later completion point finds it gone (pool.c).
 *
 * A graph with memory has one ledger entry of kind GRAPH under a number of ours; the graph's and the executables'
 * handles lead to it.
 */
#include "charge.h"

static _Atomic uint64_t numbers = 1ull << 63; /* no handle looks like that */

static void add(void *graph, struct slot *slot, uint64_t bytes)
{
    atomic_fetch_add(&slot->graph_bytes, bytes);
    struct ledger_entry name, body;
    if (ledger_get(LEDGER_GRAPH, (uintptr_t)graph, &name) && ledger_get(LEDGER_GRAPH, name.other, &body)) {
        body.bytes += bytes;
        ledger_put(body);
        return;
    }
    uint64_t number = atomic_fetch_add(&numbers, 1);
    ledger_put((struct ledger_entry){.kind = LEDGER_GRAPH, .key = number, .slot = slot, .bytes = bytes, .refs = 1});
    ledger_put((struct ledger_entry){.kind = LEDGER_GRAPH, .key = (uintptr_t)graph, .other = number, .refs = 1});
}

static struct slot *node_slot(const struct alloc_node *params)
{
    if (conf_load() != MODE_HELD || !params || params->pool.location.type != LOCATION_DEVICE)
        return NULL;
    return slot_of_device(params->pool.location.id);
}

static CUresult added(CUresult result, struct slot *slot, void *graph, uint64_t bytes)
{
    if (slot && result == CUDA_SUCCESS)
        add(graph, slot, bytes);
    else if (slot)
        memory_release(slot, bytes);
    return result;
}

CUresult on_graph_add_alloc(enum aliquot_symbol symbol, void **node, void *graph, const void *deps, size_t count,
                            struct alloc_node *params)
{
    struct slot *slot = node_slot(params);
    uint64_t bytes = slot ? granules(params->bytes) : 0;
    if (slot && (!slot_attach(slot) || !memory_reserve(slot, bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, void *, const void *, size_t, struct alloc_node *)(node, graph, deps,
                                                                                                  count, params);
    return added(result, slot, graph, bytes);
}

static struct slot *any_node_slot(const struct node_params *params)
{
    return params && params->type == NODE_MEM_ALLOC ? node_slot(&params->alloc) : NULL;
}

CUresult on_graph_add_node(enum aliquot_symbol symbol, void **node, void *graph, const void *deps, size_t count,
                           struct node_params *params)
{
    struct slot *slot = any_node_slot(params);
    uint64_t bytes = slot ? granules(params->alloc.bytes) : 0;
    if (slot && (!slot_attach(slot) || !memory_reserve(slot, bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, void *, const void *, size_t, struct node_params *)(node, graph, deps,
                                                                                                   count, params);
    return added(result, slot, graph, bytes);
}

CUresult on_graph_add_node_v2(enum aliquot_symbol symbol, void **node, void *graph, const void *deps, const void *edges,
                              size_t count, struct node_params *params)
{
    struct slot *slot = any_node_slot(params);
    uint64_t bytes = slot ? granules(params->alloc.bytes) : 0;
    if (slot && (!slot_attach(slot) || !memory_reserve(slot, bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, void *, const void *, const void *, size_t, struct node_params *)(
        node, graph, deps, edges, count, params);
    return added(result, slot, graph, bytes);
}

/* An allocation that was captured: the graph being captured into pays. */
CUresult graph_captured_alloc(CUresult result, struct slot *slot, void *stream, uint64_t bytes)
{
    int status = 0;
    uint64_t id;
    void *graph = NULL;
    const void *deps;
    size_t count;
    if (result == CUDA_SUCCESS)
        REAL(cuStreamGetCaptureInfo_v2, void *, int *, uint64_t *, void **, const void **, size_t *)(
            stream, &status, &id, &graph, &deps, &count);
    if (result == CUDA_SUCCESS && !graph)
        return result; /* no graph to tie it to: stays charged, on the safe side */
    return added(result, slot, graph, bytes);
}

static CUresult instantiated(CUresult result, void **exec, void *graph)
{
    struct ledger_entry name, gone;
    if (result == CUDA_SUCCESS && exec && ledger_get(LEDGER_GRAPH, (uintptr_t)graph, &name)) {
        ledger_ref(LEDGER_GRAPH, name.other, 1, &gone);
        name.key = (uintptr_t)*exec;
        ledger_put(name);
    }
    return result;
}

CUresult on_graph_instantiate(enum aliquot_symbol symbol, void **exec, void *graph, void **error, char *log,
                              size_t bytes)
{
    return instantiated(REAL_AT(symbol, void **, void *, void **, char *, size_t)(exec, graph, error, log, bytes), exec,
                        graph);
}

CUresult on_graph_instantiate_flags(enum aliquot_symbol symbol, void **exec, void *graph, unsigned long long flags)
{
    return instantiated(REAL_AT(symbol, void **, void *, unsigned long long)(exec, graph, flags), exec, graph);
}

CUresult on_graph_instantiate_params(enum aliquot_symbol symbol, void **exec, void *graph, void *params)
{
    return instantiated(REAL_AT(symbol, void **, void *, void *)(exec, graph, params), exec, graph);
}

/* A graph or an executable ends. */
CUresult on_graph_destroy(enum aliquot_symbol symbol, void *handle)
{
    CUresult result = REAL_AT(symbol, void *)(handle);
    struct ledger_entry name, gone;
    if (result == CUDA_SUCCESS && ledger_take(LEDGER_GRAPH, (uintptr_t)handle, &name) &&
        ledger_ref(LEDGER_GRAPH, name.other, -1, &gone)) {
        atomic_fetch_sub(&gone.slot->graph_bytes, gone.bytes);
        graph_cache_grown(gone.slot, gone.bytes);
    }
    return result;
}

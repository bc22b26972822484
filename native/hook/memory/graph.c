/* graph.c: memory that lives in graphs. Charged when its node is added or captured, held while the graph or anything
 * instantiated from it lives. The driver keeps it longer, as a cache of the device: that is trimmed. What a launch has
 * allocated and nothing has freed outlives the graph too: its pointers are kept, and stay charged until a later
 * completion point (pool.c) finds that the driver does not know them any more.
 *
 * A graph with memory has one ledger entry of kind GRAPH under a number of ours; the graph's and the executables'
 * handles lead to it. A second executable of the same graph holds as much again. What the slot is charged for all of
 * them is in whole steps of the driver's, since it takes memory for graphs in those, and never below what it has taken.
 */
#include "memory/charge.h"

#define GRAPH_STEP_MOST (32ull << 20) /* until the driver shows a smaller one */
#define LINGERING_NS 500000000ull     /* memory of graphs that are gone is waited for this long; the rest is in use */
#define LOST_NS 20000000ull           /* between two looks at what is in use though its graph is gone */
#define LOST_MOST 256                 /* pointers in one look; those beyond stay charged */

static _Atomic uint64_t numbers = 1ull << 63;            /* no handle looks like that */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* what a slot is charged for graphs, living and gone */

/* What living graphs may make the device reserve, with `more` bytes of them; with the lock held. */
static uint64_t graphs_cost(const struct slot *slot, uint64_t more)
{
    uint64_t has = slot->memory.graphs.bytes + slot->memory.graphs.lost,
             bytes = more > UINT64_MAX - has ? UINT64_MAX : has + more;
    return round_up(bytes, slot->memory.graphs.step ? slot->memory.graphs.step : GRAPH_STEP_MOST);
}

static uint64_t graphs_reserved(struct slot *slot)
{
    uint64_t reserved = 0;
    if (REAL(cuDeviceGetGraphMemAttribute, int, int, void *)(slot->link.device, GRAPH_RESERVED_CURRENT, &reserved) !=
        CUDA_SUCCESS)
        return 0;
    uint64_t unit = reserved & -reserved, known = slot->memory.graphs.step ? slot->memory.graphs.step : GRAPH_STEP_MOST;
    if (unit && unit < known)
        known = unit;
    if (reserved)
        slot->memory.graphs.step = known;
    return reserved;
}

struct lost {
    struct slot *slot;
    uint64_t bytes;
    struct ledger_entry entries[LOST_MOST];
    unsigned count;
};

static void note_lost(struct ledger_entry *entry, void *with)
{
    struct lost *lost = with;
    if (entry->other || entry->slot != lost->slot)
        return;
    lost->bytes += entry->bytes;
    if (lost->count < LOST_MOST)
        lost->entries[lost->count++] = *entry;
}

/* The driver does not know its address any more, or has given it to another. */
static bool was_freed(uint64_t ptr)
{
    struct ledger_entry another;
    CUdeviceptr base;
    size_t bytes;
    CUresult result = REAL(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr)(&base, &bytes, ptr);
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_FOUND ||
           ledger_get(LEDGER_POINTER, ptr, &another) || ledger_get(LEDGER_SMALL, ptr, &another) ||
           ledger_get(LEDGER_ASYNC, ptr, &another);
}

/* What is in use though its graph is gone; with the lock held. */
static uint64_t graphs_lost(struct slot *slot)
{
    struct lost lost = {.slot = slot};
    slot->memory.graphs.looked_ns = now_ns();
    ledger_each(LEDGER_NODE, note_lost, &lost);
    for (unsigned i = 0; i < lost.count; i++)
        if (was_freed(lost.entries[i].key) && ledger_take(LEDGER_NODE, lost.entries[i].key, &lost.entries[i]))
            lost.bytes -= lost.entries[i].bytes;
    return lost.bytes;
}

/* Brings the charge to what the device has reserved and the living may make it reserve; the bytes that may come soon. */
static uint64_t settle(struct slot *slot, bool trim)
{
    if (trim)
        REAL(cuDeviceGraphMemTrim, int)(slot->link.device);
    uint64_t reserved = graphs_reserved(slot), lost = slot->memory.graphs.lost ? graphs_lost(slot) : 0;
    slot->memory.graphs.lost = lost < reserved ? lost : reserved;
    uint64_t cost = graphs_cost(slot, 0), charge = reserved > cost ? reserved : cost;
    uint64_t coming = reserved > cost || slot->memory.graphs.lost ? charge - slot->memory.graphs.bytes : 0;
    if (charge < slot->memory.graphs.charge)
        memory_release(slot, slot->memory.graphs.charge - charge);
    else if (!memory_reserve(slot, charge - slot->memory.graphs.charge, MEMORY_ASK))
        charge = slot->memory.graphs.charge;
    slot->memory.graphs.charge = charge;
    return coming;
}

static bool lost_due(const struct slot *slot)
{
    return slot->memory.graphs.lost && now_ns() - slot->memory.graphs.looked_ns > LOST_NS;
}

/* Of one slot, trimmed; of all (NULL) where what is charged may be too much. */
uint64_t graphs_reclaim(struct slot *slot)
{
    uint64_t more = 0;
    if (slot ? pthread_mutex_lock(&lock) != 0 : pthread_mutex_trylock(&lock) != 0)
        return 1;
    for (unsigned i = 0; slot_at(i); i++) {
        struct slot *one = slot_at(i);
        bool too_much = one->memory.graphs.charge > graphs_cost(one, 0) || lost_due(one);
        uint64_t coming = 0;
        if (one->memory.graphs.charge && (one == slot || (!slot && (too_much || !one->memory.graphs.step))))
            coming = settle(one, slot || too_much);
        if (slot || one->memory.graphs.lost || now_ns() - one->memory.graphs.gone_ns < LINGERING_NS)
            more += coming + (slot ? 0 : one->memory.graphs.lost);
    }
    pthread_mutex_unlock(&lock);
    return more;
}

static bool take_more(struct slot *slot, bool alone, void *with)
{
    uint64_t bytes = *(uint64_t *)with;
    (void)alone;
    pthread_mutex_lock(&lock);
    uint64_t cost = graphs_cost(slot, bytes),
             charge = cost > slot->memory.graphs.charge ? cost : slot->memory.graphs.charge;
    bool good = memory_reserve(slot, charge - slot->memory.graphs.charge, MEMORY_ASK);
    if (good) {
        slot->memory.graphs.charge = charge;
        slot->memory.graphs.bytes += bytes;
    }
    pthread_mutex_unlock(&lock);
    return good;
}

bool graph_begin(struct slot *slot, uint64_t bytes) { return !slot || charge_try(slot, bytes, take_more, &bytes); }

struct ended { uint64_t number, bytes; };

static void lose(struct ledger_entry *entry, void *with)
{
    struct ended *ended = with;
    if (entry->other != ended->number)
        return;
    entry->other = 0;
    ended->bytes += entry->bytes;
}

/* The memory of a graph, or of a second executable (0), is the program's no more. */
static void gone(struct slot *slot, uint64_t bytes, uint64_t number)
{
    struct ended ended = {.number = number};
    int mode = quietly(CAPTURE_MODE_RELAXED);
    pthread_mutex_lock(&lock);
    if (number)
        ledger_each(LEDGER_NODE, lose, &ended);
    slot->memory.graphs.lost += ended.bytes;
    slot->memory.graphs.bytes -= bytes;
    slot->memory.graphs.gone_ns = now_ns();
    if (settle(slot, true))
        reclaim_later();
    pthread_mutex_unlock(&lock);
    quietly(mode);
}

/* After a free of a pointer that is none of the other kinds. */
void graph_freed(CUdeviceptr ptr)
{
    struct ledger_entry entry;
    if (!ledger_get(LEDGER_NODE, ptr, &entry) || entry.other)
        return;
    entry.slot->memory.graphs.gone_ns = now_ns();
    __atomic_store_n(&entry.slot->memory.graphs.looked_ns, 0, __ATOMIC_RELAXED);
    reclaim_later();
}

static void enter(void *graph, struct slot *slot, uint64_t bytes, CUdeviceptr ptr)
{
    struct ledger_entry name, body;
    pthread_mutex_lock(&lock);
    bool known = ledger_get(LEDGER_GRAPH, (uintptr_t)graph, &name) &&
                 ledger_change(LEDGER_GRAPH, name.other, 0, bytes, &body) != LEDGER_NONE;
    uint64_t number = known ? name.other : atomic_fetch_add(&numbers, 1);
    ledger_put(
        (struct ledger_entry){
            .kind = LEDGER_NODE, .key = ptr, .slot = slot, .bytes = bytes, .other = number, .refs = 1},
        NULL);
    if (!known) {
        ledger_put((struct ledger_entry){.kind = LEDGER_GRAPH, .key = number, .slot = slot, .bytes = bytes, .refs = 1},
                   NULL);
        ledger_put((struct ledger_entry){.kind = LEDGER_GRAPH, .key = (uintptr_t)graph, .other = number, .refs = 1},
                   NULL);
    }
    pthread_mutex_unlock(&lock);
    reclaim_later(); /* the next completion point sees what the device makes of it */
}

static struct slot *node_slot(const struct alloc_node *params)
{
    if (conf_load() != MODE_HELD || !params || params->pool.location.type != LOCATION_DEVICE)
        return NULL;
    struct slot *slot = slot_of_device(params->pool.location.id);
    if (slot)
        slot_attach(slot);
    return slot;
}

/* After graph_begin: enters what was reserved, or gives it back. */
static CUresult added(CUresult result, struct slot *slot, void *graph, uint64_t bytes, CUdeviceptr ptr)
{
    if (!slot)
        return result;
    if (result == CUDA_SUCCESS)
        enter(graph, slot, bytes, ptr);
    else
        gone(slot, bytes, 0);
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    return result;
}

/* Reserves for an allocation node. Where there is no room: true without a slot, when the driver is certain to refuse
 * where the node is to go, else false and the answer. */
static bool node_begin(struct slot **slot, uint64_t bytes, const struct node_place *place,
                       const struct alloc_node *params, CUresult *answer)
{
    if (graph_begin(*slot, bytes))
        return true;
    if (wrong_place(place)) {
        *slot = NULL;
        return true;
    }
    *answer = wrong_allocation_node(params);
    return false;
}

CUresult on_graph_add_alloc(enum aliquot_symbol symbol, void **node, void *graph, const void *deps, size_t count,
                            struct alloc_node *params)
{
    struct slot *slot = node_slot(params);
    struct node_place place = {node, graph, deps, count};
    uint64_t bytes = slot ? granules(params->bytes) : 0;
    CUresult result;
    if (!node_begin(&slot, bytes, &place, params, &result))
        return result;
    result = REAL_AT(symbol, void **, void *, const void *, size_t, struct alloc_node *)(node, graph, deps, count,
                                                                                         params);
    return added(result, slot, graph, bytes, slot ? params->ptr : 0);
}

static struct slot *any_node_slot(const struct node_params *params)
{
    return params && params->type == NODE_MEM_ALLOC ? node_slot(&params->alloc) : NULL;
}

struct moved { uint64_t from, to; };

static void follow(struct ledger_entry *entry, void *with)
{
    const struct moved *moved = with;
    if (entry->other == moved->from)
        entry->other = moved->to;
}

/* A child that was moved into its parent ends with it, and so does its memory; the program may not destroy, instantiate or
 * give memory to the child any more. */
static void adopted(CUresult result, void *graph, const struct node_params *params)
{
    struct ledger_entry child, name, body;
    if (result != CUDA_SUCCESS || params->type != NODE_GRAPH || params->child.ownership != GRAPH_MOVED ||
        !ledger_take(LEDGER_GRAPH, (uintptr_t)params->child.graph, &child))
        return;
    pthread_mutex_lock(&lock);
    if (!ledger_get(LEDGER_GRAPH, (uintptr_t)graph, &name)) {
        child.key = (uintptr_t)graph;
        ledger_put(child, NULL);
    } else if (ledger_take(LEDGER_GRAPH, child.other, &body)) {
        struct moved moved = {child.other, name.other};
        ledger_change(LEDGER_GRAPH, name.other, (int)body.refs - 1, body.bytes, &name);
        ledger_each(LEDGER_NODE, follow, &moved);
        ledger_each(LEDGER_GRAPH, follow, &moved); /* what was instantiated of the child before */
    }
    pthread_mutex_unlock(&lock);
}

CUresult on_graph_add_node(enum aliquot_symbol symbol, void **node, void *graph, const void *deps, size_t count,
                           struct node_params *params)
{
    struct slot *slot = any_node_slot(params);
    struct node_place place = {node, graph, deps, count};
    uint64_t bytes = slot ? granules(params->alloc.bytes) : 0;
    CUresult result;
    if (!node_begin(&slot, bytes, &place, &params->alloc, &result))
        return result;
    result = REAL_AT(symbol, void **, void *, const void *, size_t, struct node_params *)(node, graph, deps, count,
                                                                                          params);
    adopted(result, graph, params);
    return added(result, slot, graph, bytes, slot ? params->alloc.ptr : 0);
}

CUresult on_graph_add_node_v2(enum aliquot_symbol symbol, void **node, void *graph, const void *deps, const void *edges,
                              size_t count, struct node_params *params)
{
    struct slot *slot = any_node_slot(params);
    struct node_place place = {node, graph, deps, count};
    uint64_t bytes = slot ? granules(params->alloc.bytes) : 0;
    CUresult result;
    if (!node_begin(&slot, bytes, &place, &params->alloc, &result))
        return result;
    result = REAL_AT(symbol, void **, void *, const void *, const void *, size_t,
                     struct node_params *)(node, graph, deps, edges, count, params);
    adopted(result, graph, params);
    return added(result, slot, graph, bytes, slot ? params->alloc.ptr : 0);
}

/* An allocation that was captured: the graph that the stream captured into before it pays. Called with the charge lock held. */
CUresult graph_captured_alloc(CUresult result, struct slot *slot, const struct capturing *into, uint64_t bytes,
                              const CUdeviceptr *ptr)
{
    int status = 0;
    if (result == CUDA_SUCCESS)
        REAL(cuStreamIsCapturing, void *, int *)(into->stream, &status);
    if (status == CAPTURE_INVALIDATED) /* by another thread: the graph will never run */
        gone(slot, bytes, 0);
    else if (result != CUDA_SUCCESS || into->graph)
        return added(result, slot, into->graph, bytes, result == CUDA_SUCCESS ? *ptr : 0);
    pthread_rwlock_unlock(
        &slot->memory.charge_lock); /* without a graph to tie it to it stays charged, on the safe side */
    return result;
}

/* What leads to `number` is gone; its memory is, when it was the last. */
void graph_dropped(const struct ledger_entry *name)
{
    struct ledger_entry body;
    if (name->bytes)
        gone(name->slot, name->bytes, 0);
    else if (name->other && ledger_change(LEDGER_GRAPH, name->other, -1, 0, &body) == LEDGER_GONE)
        gone(body.slot, body.bytes, name->other);
}

/* Before a graph is instantiated: what leads from the executable to its memory. False: over the limit. */
static bool instantiating(void *graph, struct ledger_entry *exec)
{
    struct ledger_entry name, body;
    *exec = (struct ledger_entry){.kind = LEDGER_GRAPH, .refs = 1};
    if (!ledger_get(LEDGER_GRAPH, (uintptr_t)graph, &name) ||
        ledger_change(LEDGER_GRAPH, name.other, 1, 0, &body) == LEDGER_NONE)
        return true;
    exec->other = name.other;
    if (body.refs <= 2) /* the graph and this */
        return true;
    ledger_change(LEDGER_GRAPH, name.other, -1, 0, &body);
    if (!graph_begin(body.slot, body.bytes))
        return false;
    pthread_rwlock_unlock(&body.slot->memory.charge_lock);
    exec->slot = body.slot;
    exec->bytes = body.bytes;
    return true;
}

static CUresult instantiated(CUresult result, struct ledger_entry *exec, void **handle)
{
    if (!exec->other)
        return result;
    if (result == CUDA_SUCCESS) {
        exec->key = (uintptr_t)*handle;
        ledger_put(*exec, NULL);
    } else {
        graph_dropped(exec);
    }
    return result;
}

CUresult on_graph_instantiate(enum aliquot_symbol symbol, void **exec, void *graph, void **error, char *log,
                              size_t bytes)
{
    struct ledger_entry entry;
    if (!instantiating(graph, &entry))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return instantiated(REAL_AT(symbol, void **, void *, void **, char *, size_t)(exec, graph, error, log, bytes),
                        &entry, exec);
}

CUresult on_graph_instantiate_flags(enum aliquot_symbol symbol, void **exec, void *graph, unsigned long long flags)
{
    struct ledger_entry entry;
    if (!instantiating(graph, &entry))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return instantiated(REAL_AT(symbol, void **, void *, unsigned long long)(exec, graph, flags), &entry, exec);
}

CUresult on_graph_instantiate_params(enum aliquot_symbol symbol, void **exec, void *graph, void *params)
{
    struct ledger_entry entry;
    if (!instantiating(graph, &entry))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return instantiated(REAL_AT(symbol, void **, void *, void *)(exec, graph, params), &entry, exec);
}

/* A graph or an executable ends: its entry is out before the driver may give the handle to another. */
CUresult on_graph_destroy(enum aliquot_symbol symbol, void *handle)
{
    struct ledger_entry name;
    bool known = ledger_take(LEDGER_GRAPH, (uintptr_t)handle, &name);
    CUresult result = REAL_AT(symbol, void *)(handle);
    if (known && result == CUDA_SUCCESS)
        graph_dropped(&name);
    else if (known)
        ledger_put(name, NULL);
    return result;
}

CUresult on_graph_trim(enum aliquot_symbol symbol, int device)
{
    CUresult result = REAL_AT(symbol, int)(device);
    struct slot *slot = result == CUDA_SUCCESS && conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    if (slot)
        graphs_reclaim(slot);
    return result;
}

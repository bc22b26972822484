/* gmemory.c: memory of graphs. Its address is fixed when the allocation node is made; the memory is in use from a launch
 * to its free: by a node of a graph, cuMemFreeAsync, cuMemFree, or the next launch of an executable that was made with
 * AUTO_FREE_ON_LAUNCH. The end of the graph or of the executable frees nothing that is in use.
 *
 * What a launch needs is reserved of the device then, and stays with the device's graph memory, for the next one, until
 * cuDeviceGraphMemTrim.
 */
#include <stdlib.h>
#include "graph.h"
#include "shm.h"

#define AUTO_FREE_ON_LAUNCH 1

typedef struct memory {
    struct memory *next;
    CUdeviceptr at;
    uint64_t bytes;
    int dev;
    unsigned holders;   /* nodes and executables that have it */
    int submitted, run; /* allocations without a free: as far as they were asked for, and as far as streams have come */
} memory;
static memory *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* In use, and reserved from the device; the difference is a cache until it is trimmed. */
static uint64_t used[EMU_GPUS], used_high[EMU_GPUS], reserved[EMU_GPUS], reserved_high[EMU_GPUS];

static memory *find(CUdeviceptr at)
{
    memory *m = all;
    while (m && m->at != at)
        m = m->next;
    return m;
}

static void end_unless_needed(memory *m)
{
    if (m->holders || m->run > 0)
        return;
    for (memory **at = &all; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    emu_mem_drop(m->at);
    free(m);
}

static void freed(memory *m)
{
    if (m->run <= 0)
        return;
    if (--m->run == 0)
        used[m->dev] -= m->bytes;
    end_unless_needed(m);
}

CUresult graph_memory_new(CUallocNode *node)
{
    int dev = node->props.location.id;
    if (node->props.alloc_type != 1 || node->props.handle_types || dev < 0 || dev >= emu_conf()->count)
        return CU_INVALID;
    CUresult r = emu_mem_new(node->bytes, MEM_POOL, dev, false, &node->dptr);
    memory *m = r ? NULL : malloc(sizeof *m);
    if (!m && !r)
        emu_mem_drop(node->dptr);
    if (!m)
        return r ? r : CU_OOM;
    pthread_mutex_lock(&lock);
    *m = (memory){.next = all, .at = node->dptr, .bytes = (node->bytes + 511) & ~(uint64_t)511, .dev = dev};
    all = m;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

void graph_memory_hold(CUdeviceptr at, int change)
{
    pthread_mutex_lock(&lock);
    memory *m = find(at);
    if (m) {
        m->holders += (unsigned)change;
        end_unless_needed(m);
    }
    pthread_mutex_unlock(&lock);
}

void emu_graph_free_asked(CUdeviceptr at)
{
    pthread_mutex_lock(&lock);
    memory *m = find(at);
    if (m && m->submitted > 0)
        m->submitted--;
    pthread_mutex_unlock(&lock);
}

void emu_graph_freed(CUdeviceptr at)
{
    pthread_mutex_lock(&lock);
    memory *m = find(at);
    if (m)
        freed(m);
    pthread_mutex_unlock(&lock);
}

static void high(int dev)
{
    reserved_high[dev] = reserved[dev] > reserved_high[dev] ? reserved[dev] : reserved_high[dev];
    used_high[dev] = used[dev] > used_high[dev] ? used[dev] : used_high[dev];
}

/* With the lock: as much as this launch adds to what is in use is there. */
static CUresult reserve(CUgraphExec e)
{
    uint64_t need = 0;
    for (size_t i = 0; i < e->count; i++) {
        memory *m = e->nodes[i].type == N_ALLOC ? find(e->nodes[i].p.alloc.dptr) : NULL;
        need += m && m->run <= 0 ? m->bytes : 0;
    }
    uint64_t spare = reserved[e->dev] - used[e->dev], more = need > spare ? emu_pool_steps(need - spare) : 0;
    if (more && shm_charge(e->dev, more) != 0)
        return CU_OOM;
    reserved[e->dev] += more;
    high(e->dev);
    return CU_OK;
}

static bool frees(CUgraphExec e, CUdeviceptr at)
{
    for (size_t i = 0; i < e->count; i++)
        if (e->nodes[i].type == N_FREE && e->nodes[i].p.ptr == at)
            return true;
    return false;
}

/* What an earlier launch has allocated and nothing has freed may not be allocated again. */
static CUresult free_before_launch(CUgraphExec e)
{
    for (size_t i = 0; i < e->count; i++) {
        memory *m = e->nodes[i].type == N_ALLOC ? find(e->nodes[i].p.alloc.dptr) : NULL;
        if (!m || m->submitted <= 0)
            continue;
        if (!(e->flags & AUTO_FREE_ON_LAUNCH))
            return CU_INVALID;
        m->submitted--;
        freed(m);
    }
    return CU_OK;
}

CUresult graph_memory_upload(CUgraphExec e)
{
    pthread_mutex_lock(&lock);
    CUresult r = reserve(e);
    pthread_mutex_unlock(&lock);
    return r;
}

CUresult graph_memory_launch(CUgraphExec e)
{
    pthread_mutex_lock(&lock);
    CUresult r = free_before_launch(e);
    if (!r)
        r = reserve(e);
    for (size_t i = 0; i < e->count && !r; i++) {
        memory *m = e->nodes[i].type == N_ALLOC ? find(e->nodes[i].p.alloc.dptr) : NULL;
        memory *ends = e->nodes[i].type == N_FREE ? find(e->nodes[i].p.ptr) : NULL;
        if (m) {
            used[m->dev] += m->run++ ? 0 : m->bytes;
            m->submitted += !frees(e, m->at);
        } else if (ends && ends->submitted > 0) { /* of another graph */
            ends->submitted--;
        }
    }
    high(e->dev);
    pthread_mutex_unlock(&lock);
    return r;
}

void graph_memory_unlaunch(CUgraphExec e)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < e->count; i++) {
        memory *m = e->nodes[i].type == N_ALLOC ? find(e->nodes[i].p.alloc.dptr) : NULL;
        memory *ends = e->nodes[i].type == N_FREE ? find(e->nodes[i].p.ptr) : NULL;
        if (m) {
            m->submitted -= !frees(e, m->at);
            freed(m);
        } else if (ends && ends->run > 0) {
            ends->submitted++;
        }
    }
    pthread_mutex_unlock(&lock);
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, uint64_t *value)
{
    NEED_INIT();
    if (dev < 0 || dev >= emu_conf()->count)
        return CU_INVALID_DEVICE;
    if (attribute < 0 || attribute > 3 || !value)
        return CU_INVALID;
    pthread_mutex_lock(&lock);
    const uint64_t values[] = {used[dev], used_high[dev], reserved[dev], reserved_high[dev]};
    *value = values[attribute];
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, int attribute, uint64_t *value)
{
    NEED_INIT();
    if (dev < 0 || dev >= emu_conf()->count)
        return CU_INVALID_DEVICE;
    if (!value || *value || !(attribute & 1) || attribute > 3)
        return CU_INVALID; /* only the high marks, and only to nothing */
    pthread_mutex_lock(&lock);
    *(attribute == 1 ? &used_high[dev] : &reserved_high[dev]) = attribute == 1 ? used[dev] : reserved[dev];
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

API CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
    NEED_INIT();
    if (dev < 0 || dev >= emu_conf()->count)
        return CU_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    uint64_t kept = emu_pool_steps(used[dev]);
    if (reserved[dev] > kept) {
        shm_release(dev, reserved[dev] - kept);
        reserved[dev] = kept;
    }
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

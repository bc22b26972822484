/* pool.c: the memory pools of this process, and what they are charged.
 *
 * A pool is charged for what it has reserved of the GPU, not for what is handed out. Frees show at completion points,
 * where the driver shrinks pools to their release threshold: then those of which something was freed are settled
 * (reclaim.c). A pool that is destroyed with memory in use keeps it until the last of it is freed; the
 * driver destroys it only then, so that its remaining memory can be queried until the end.
 */
#include "memory/pool.h"

#include <sys/mman.h>

static struct pool *pools;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

bool pool_holds(const struct pool *pool, uint64_t *reserved, uint64_t *used)
{
    *reserved = *used = 0;
    return REAL(cuMemPoolGetAttribute, void *, int, void *)(pool->handle, POOL_RESERVED_CURRENT, reserved) ==
               CUDA_SUCCESS &&
           REAL(cuMemPoolGetAttribute, void *, int, void *)(pool->handle, POOL_USED_CURRENT, used) == CUDA_SUCCESS;
}

/* With list_lock held. Places are carved of pages that are never given back, and taken again. */
static struct pool *place(void)
{
    static struct pool *fresh;
    static unsigned left;
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (!pool->handle && !pool->users)
            return pool;
    if (!left) {
        void *pages = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED)
            return NULL;
        fresh = pages;
        left = 16384 / sizeof *fresh;
    }
    left--;
    pthread_mutex_init(&fresh->lock, NULL);
    fresh->next = pools;
    return pools = fresh++;
}

static struct pool *find(void *handle)
{
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->handle == handle)
            return pool;
    return NULL;
}

static struct pool *enter(void *handle, struct slot *slot, bool foreign)
{
    struct pool *pool = find(handle);
    if (pool || !(pool = place()))
        return pool;
    pool->handle = handle;
    pool->slot = slot;
    pool->charge = 0;
    pool->destroyed = false;
    pool->foreign = foreign;
    atomic_store(&pool->living, 0);
    atomic_store(&pool->freed, 0);
    return pool;
}

static void pool_made(void *handle, struct slot *slot, bool foreign)
{
    pthread_mutex_lock(&list_lock);
    enter(handle, slot, foreign);
    pthread_mutex_unlock(&list_lock);
}

static bool is_a_pool(void *handle)
{
    uint64_t reserved;
    return REAL(cuMemPoolGetAttribute, void *, int, void *)(handle, POOL_RESERVED_CURRENT, &reserved) == CUDA_SUCCESS;
}

/* The GPU whose memory a pool hands out that was not seen to be made: one it is the default pool of. */
static struct slot *default_slot(void *handle, bool *foreign)
{
    int count = 0;
    REAL(cuDeviceGetCount, int *)(&count);
    for (int device = 0; device < count; device++) {
        void *its = NULL;
        *foreign = REAL(cuDeviceGetDefaultMemPool, void **, int)(&its, device) != CUDA_SUCCESS || its != handle;
        if (!*foreign)
            return slot_of_device(device);
    }
    return slot_current();
}

static struct pool *hold(void *handle)
{
    pthread_mutex_lock(&list_lock);
    struct pool *pool = find(handle);
    if (pool)
        pool->users++;
    pthread_mutex_unlock(&list_lock);
    return pool;
}

struct pool *pool_open(void *handle, bool *gone)
{
    *gone = false;
    if (!handle || conf_load() != MODE_HELD)
        return NULL;
    struct pool *pool = hold(handle);
    if (!pool) {
        bool foreign = true;
        struct slot *slot = is_a_pool(handle) ? default_slot(handle, &foreign) : NULL;
        if (!slot)
            return NULL;
        pool_made(handle, slot, foreign);
        if (!(pool = hold(handle)))
            return NULL;
    }
    pthread_mutex_lock(&pool->lock);
    *gone = pool->destroyed || pool->handle != handle;
    if (!*gone && pool->slot)
        return pool;
    pool_close(pool);
    return NULL;
}

bool pool_is_foreign(void *handle)
{
    pthread_mutex_lock(&list_lock);
    const struct pool *pool = find(handle);
    bool foreign = pool && pool->foreign;
    pthread_mutex_unlock(&list_lock);
    return foreign;
}

void pool_close(struct pool *pool)
{
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_lock(&list_lock);
    pool->users--;
    pthread_mutex_unlock(&list_lock);
}

/* Its place is free before the driver may give the handle to another. */
static CUresult end(struct pool *pool, enum aliquot_symbol symbol)
{
    void *handle = pool->handle;
    pthread_mutex_lock(&list_lock);
    pool->handle = NULL;
    pthread_mutex_unlock(&list_lock);
    if (pool->slot)
        memory_release(pool->slot, pool->charge);
    pool->charge = 0;
    return REAL_AT(symbol, void *)(handle);
}

uint64_t pool_settle(struct pool *pool, bool trim)
{
    uint64_t reserved, used, keep = 0, step = atomic_load(&pool->slot->memory.pool_step);
    atomic_store(&pool->freed, 0);
    if (trim || pool->destroyed)
        REAL(cuMemPoolTrimTo, void *, size_t)(pool->handle, 0);
    uint64_t living = atomic_load(&pool->living); /* before what the pool says, so that a free between is seen */
    if (!pool_holds(pool, &reserved, &used))
        return 0;
    if (reserved < pool->charge) {
        memory_release(pool->slot, pool->charge - reserved);
        pool->charge = reserved;
    }
    if (pool->destroyed && !reserved && !used && !atomic_load(&pool->living)) {
        end(pool, SYM_cuMemPoolDestroy);
        return 0;
    }
    REAL(cuMemPoolGetAttribute, void *, int, void *)(pool->handle, POOL_RELEASE_THRESHOLD, &keep);
    if (keep < used)
        keep = used;
    bool more = used > living || (!living && reserved);
    if (more || reserved > round_up(keep, step ? step : POOL_STEP_MOST)) {
        atomic_store(&pool->freed, 1);
        reclaim_later();
    }
    return more ? reserved - (living < reserved ? living : 0) : 0;
}

/* All pools of a slot (NULL: of all), or only those of which something was freed. */
uint64_t pools_settle(struct slot *slot, bool trim)
{
    uint64_t more = 0;
    pthread_mutex_lock(&list_lock);
    for (struct pool *pool = pools; pool; pool = pool->next) {
        if (!pool->handle || !pool->slot || (slot && pool->slot != slot) || (!trim && !atomic_load(&pool->freed)))
            continue;
        pool->users++;
        pthread_mutex_unlock(&list_lock);
        pthread_mutex_lock(&pool->lock);
        if (pool->handle)
            more += pool_settle(pool, trim);
        pool_close(pool);
        pthread_mutex_lock(&list_lock);
    }
    pthread_mutex_unlock(&list_lock);
    return more;
}

CUresult on_pool_create(enum aliquot_symbol symbol, void **pool, const struct pool_props *props)
{
    if (props && props->handle_types)
        park_never(ALIQUOT_REPORT_SHARED); /* the driver need not wait until it is exported */
    CUresult result = REAL_AT(symbol, void **, const struct pool_props *)(pool, props);
    bool device = props && props->location.type == LOCATION_DEVICE;
    if (result == CUDA_SUCCESS && conf_load() == MODE_HELD)
        pool_made(*pool, device ? slot_of_device(props->location.id) : NULL, false);
    return result;
}

/* A destroyed pool is the current one of no device any more. */
static void leave_device(struct pool *pool)
{
    void *current = NULL, *its_default = NULL;
    int device = pool->slot->link.device;
    if (REAL(cuDeviceGetMemPool, void **, int)(&current, device) == CUDA_SUCCESS && current == pool->handle &&
        REAL(cuDeviceGetDefaultMemPool, void **, int)(&its_default, device) == CUDA_SUCCESS)
        REAL(cuDeviceSetMemPool, int, void *)(device, its_default);
}

static CUresult destroyed(struct pool *pool, enum aliquot_symbol symbol)
{
    uint64_t nothing = 0;
    void *its_default = NULL;
    if (REAL(cuDeviceGetDefaultMemPool, void **, int)(&its_default, pool->slot->link.device) == CUDA_SUCCESS &&
        its_default == pool->handle)
        return REAL_AT(symbol, void *)(pool->handle); /* which the driver refuses */
    leave_device(pool);
    REAL(cuMemPoolSetAttribute, void *, int, void *)(pool->handle, POOL_RELEASE_THRESHOLD, &nothing);
    pool->destroyed = true;
    pool_settle(pool, true);
    return CUDA_SUCCESS;
}

CUresult on_pool_destroy(enum aliquot_symbol symbol, void *handle)
{
    struct pool *pool = conf_load() == MODE_HELD ? hold(handle) : NULL;
    if (!pool)
        return REAL_AT(symbol, void *)(handle);
    pthread_mutex_lock(&pool->lock);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (pool->handle == handle && !pool->slot)
        result = end(pool, symbol);
    else if (pool->handle == handle && !pool->destroyed)
        result = destroyed(pool, symbol);
    pool_close(pool);
    return result;
}

CUresult on_pool_trim(enum aliquot_symbol symbol, void *handle, size_t keep)
{
    bool gone;
    struct pool *pool = pool_open(handle, &gone);
    CUresult result = gone ? CUDA_ERROR_INVALID_VALUE : REAL_AT(symbol, void *, size_t)(handle, keep);
    if (pool) {
        pool_settle(pool, false);
        pool_close(pool);
    }
    return result;
}

/* In the child of a fork CUDA is gone, and so are the pools. */
void pools_after_fork(void)
{
    pthread_mutex_init(&list_lock, NULL);
    for (struct pool *pool = pools; pool; pool = pool->next) {
        pthread_mutex_init(&pool->lock, NULL);
        pool->handle = NULL;
        pool->users = 0;
        pool->charge = 0;
    }
}

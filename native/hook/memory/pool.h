/* pool.h: a memory pool as the hook keeps it. */
#ifndef ALIQUOT_POOL_H
#define ALIQUOT_POOL_H

#include "memory/charge.h"

#define POOL_STEP_MOST (32ull << 20) /* what pools of a real driver are seen to grow by */

/* One for each pool that memory was taken of. `lock` is held from reading what the pool holds over the driver's call to
 * settling what it then holds, so that two threads cannot both count what one of them made it grow by. */
struct pool {
    struct pool *next;
    pthread_mutex_t lock;
    void *handle; /* NULL: for another pool to be taken */
    struct slot *slot;
    uint64_t charge;         /* reserved of the slot for it: at least what it has reserved of the GPU */
    _Atomic uint64_t living; /* bytes handed out and not freed */
    _Atomic int freed;       /* something was freed since it was last settled */
    bool destroyed;          /* by the program; the driver hears of it when it is empty */
    bool foreign;            /* not seen to be made and no GPU's default one: another process's */
    unsigned users;          /* threads that look at it now */
};

/* The pool of a handle, with its lock held; NULL: one that is not charged, or destroyed (*gone). */
struct pool *pool_open(void *handle, bool *gone);
void pool_close(struct pool *pool);
bool pool_is_foreign(void *handle);
/* What the pool holds of the GPU, and what of that is in use. */
bool pool_holds(const struct pool *pool, uint64_t *reserved, uint64_t *used);
/* With its lock held: trims to nothing if `trim`, brings the charge down to what the pool holds. The bytes that may come
 * once frees under way are done. */
uint64_t pool_settle(struct pool *pool, bool trim);
/* All pools of a slot (NULL: of all); without `trim` only those of which something was freed. */
uint64_t pools_settle(struct slot *slot, bool trim);

#endif

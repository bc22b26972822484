/* table.c: the allocations of this process by address: every pointer that the driver is asked about is looked up here.
 *
 * A treap: a search tree whose shape comes from random ranks, so that a million allocations, made in any order, are found
 * in some twenty steps.
 */
#include <stdlib.h>
#include "emu.h"

typedef struct node {
    emu_mem m;
    struct node *left, *right;
    uint32_t rank;
} node;
static node *root;
static uint64_t next_id;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t random_rank(void)
{
    static uint32_t x = 2463534242u; /* Marsaglia, Xorshift RNGs, 2003 */
    x ^= x << 13;
    x ^= x >> 17;
    return x ^= x << 5;
}

/* What begins before `key`, and the rest. */
static void split(node *t, CUdeviceptr key, node **below, node **above)
{
    while (t) {
        if (t->m.base < key) {
            *below = t;
            below = &t->right;
            t = t->right;
        } else {
            *above = t;
            above = &t->left;
            t = t->left;
        }
    }
    *below = *above = NULL;
}

/* All of `a` is before all of `b`. */
static node *merge(node *a, node *b)
{
    node *all = NULL, **at = &all;
    while (a && b) {
        bool first = a->rank > b->rank;
        *at = first ? a : b;
        at = first ? &a->right : &b->left;
        if (first)
            a = a->right;
        else
            b = b->left;
    }
    *at = a ? a : b;
    return all;
}

/* The last one that begins at `p` or before. */
static node *last_until(CUdeviceptr p)
{
    node *best = NULL;
    for (node *t = root; t; t = t->m.base <= p ? t->right : t->left)
        best = t->m.base <= p ? t : best;
    return best;
}

CUresult emu_mem_insert(emu_mem m)
{
    node *fresh = malloc(sizeof *fresh), *below, *above;
    if (!fresh)
        return CU_OOM;
    pthread_mutex_lock(&lock);
    m.id = ++next_id;
    *fresh = (node){.m = m, .rank = random_rank()};
    emu_parking_shared(m.kind == MEM_MANAGED);
    split(root, m.base, &below, &above);
    root = merge(merge(below, fresh), above);
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

emu_mem *emu_mem_find(CUdeviceptr p)
{
    static __thread emu_mem found; /* a copy: another thread may free it */
    pthread_mutex_lock(&lock);
    node *n = last_until(p);
    bool hit = n && (p < n->m.base + n->m.size || p == n->m.base);
    if (hit)
        found = n->m;
    pthread_mutex_unlock(&lock);
    return hit ? &found : NULL;
}

bool emu_mem_holds(CUdeviceptr p, size_t size)
{
    emu_mem *m = emu_mem_find(p);
    return m && size <= m->base + m->size - p;
}

bool emu_mem_take(CUdeviceptr base, emu_mem *out)
{
    node *below, *above, *hit = NULL;
    pthread_mutex_lock(&lock);
    node *n = last_until(base);
    if (n && n->m.base == base) {
        split(root, base, &below, &above);
        split(above, base + 1, &hit, &above);
        root = merge(merge(below, merge(hit->left, hit->right)), above);
    }
    pthread_mutex_unlock(&lock);
    if (hit) {
        *out = hit->m;
        emu_parking_shared(-(hit->m.kind == MEM_MANAGED));
    }
    free(hit);
    return hit;
}

bool emu_mem_next(CUdeviceptr from, emu_mem *out)
{
    node *best = NULL;
    pthread_mutex_lock(&lock);
    for (node *t = root; t; t = t->m.base >= from ? t->left : t->right)
        best = t->m.base >= from ? t : best;
    if (best)
        *out = best->m;
    pthread_mutex_unlock(&lock);
    return best;
}

void emu_mem_set_pool(CUdeviceptr base, CUmemoryPool pool)
{
    pthread_mutex_lock(&lock);
    node *n = last_until(base);
    if (n && n->m.base == base)
        n->m.pool = pool;
    pthread_mutex_unlock(&lock);
}

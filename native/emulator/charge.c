/* charge.c: what allocations take from the device. In strict mode it is pages of 2 MiB, as on hardware: a larger allocation
 * takes whole pages, smaller ones of one context share a page by its granules of 512 bytes, which shows in their
 * addresses. Otherwise, and for managed memory, which moves as it is touched, it is granules. Small allocations of pools,
 * which have charged their memory themselves, share pages of addresses only.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "emu.h"
#include "shm.h"

#define PAGE (2ull << 20)
#define GRANULE 512ull
#define GRANULES (PAGE / GRANULE)
typedef struct page {
    struct page *next, **at_prev; /* among those with as much room */
    uint64_t owner;               /* id of its context */
    CUdeviceptr base;
    uint64_t id;
    int dev;
    bool low, charged;      /* low: below 4 GiB */
    unsigned left, longest; /* granules: free, and what no free run is longer than */
    uint64_t taken[GRANULES / 64];
} page;
static page *by_room[GRANULES + 1];             /* by `longest`; full ones are known to their charges only */
static uint64_t any_by_room[GRANULES / 64 + 1]; /* a bit for each list that is not empty */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void list(page *p)
{
    page **at = &by_room[p->longest];
    if (!p->longest)
        return;
    p->next = *at;
    p->at_prev = at;
    if (p->next)
        p->next->at_prev = &p->next;
    *at = p;
    any_by_room[p->longest / 64] |= 1ull << p->longest % 64;
}

static void unlist(page *p)
{
    if (!p->longest)
        return;
    *p->at_prev = p->next;
    if (p->next)
        p->next->at_prev = p->at_prev;
    if (!by_room[p->longest])
        any_by_room[p->longest / 64] &= ~(1ull << p->longest % 64);
}

/* The first list from there on that is not empty, or one more than there are. */
static unsigned next_room(unsigned from)
{
    uint64_t bits = from <= GRANULES ? any_by_room[from / 64] >> from % 64 << from % 64 : 0;
    for (unsigned word = from / 64; word <= GRANULES / 64; bits = ++word <= GRANULES / 64 ? any_by_room[word] : 0)
        if (bits)
            return word * 64 + (unsigned)__builtin_ctzll(bits);
    return GRANULES + 1;
}

/* No longer run than that is free. */
static void bound(page *p, unsigned longest)
{
    unlist(p);
    p->longest = longest;
    list(p);
}

static bool is_taken(const page *p, unsigned i) { return p->taken[i / 64] >> i % 64 & 1; }

static void mark(page *p, unsigned at, unsigned count, bool taken)
{
    for (unsigned i = at; i < at + count; i++)
        p->taken[i / 64] = (p->taken[i / 64] & ~(1ull << i % 64)) | (uint64_t)taken << i % 64;
    p->left += taken ? -count : count;
    bound(p, taken && p->longest < p->left ? p->longest : p->left);
}

/* The first free run of `count` granules, or GRANULES. */
static unsigned room(page *p, unsigned count)
{
    unsigned run = 0, longest = 0;
    for (unsigned i = 0; i < GRANULES; i++) {
        if (i % 64 == 0 && p->taken[i / 64] == ~0ull) {
            run = 0;
            i += 63;
            continue;
        }
        run = is_taken(p, i) ? 0 : run + 1;
        longest = run > longest ? run : longest;
        if (run == count)
            return i + 1 - count;
    }
    bound(p, longest);
    return GRANULES;
}

/* A page of the address space, on a boundary of its size; 0: none is left. */
static CUdeviceptr map_page(bool low)
{
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (low ? MAP_32BIT : 0);
    char *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, how, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    char *at = (char *)(((uintptr_t)p + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    if (at > p)
        munmap(p, (size_t)(at - p));
    munmap(at + PAGE, (size_t)(p + PAGE - at));
    return (CUdeviceptr)at;
}

static page *new_page(int dev, uint64_t owner, bool low, bool charged)
{
    static uint64_t serial;
    CUdeviceptr base = map_page(low);
    page *p = base ? malloc(sizeof *p) : NULL;
    if (!p || (charged && shm_charge(dev, PAGE) != 0)) {
        if (base)
            munmap((void *)base, PAGE);
        free(p);
        return NULL;
    }
    *p = (page){.owner = owner,
                .base = base,
                .id = ++serial,
                .dev = dev,
                .low = low,
                .charged = charged,
                .left = GRANULES,
                .longest = GRANULES};
    list(p);
    return p;
}

static bool fits(const page *p, int dev, uint64_t owner, bool low, bool charged)
{
    return p->dev == dev && p->owner == owner && p->low == low && p->charged == charged;
}

static CUresult share(int dev, uint64_t owner, enum mem_kind kind, unsigned count, emu_charge *out)
{
    bool low = kind == MEM_LOW, charged = kind != MEM_POOL;
    unsigned at = GRANULES;
    page *p = NULL, *next;
    for (unsigned longest = next_room(count); at == GRANULES && longest <= GRANULES; longest = next_room(longest + 1))
        for (page *one = by_room[longest]; at == GRANULES && one; one = next) {
            next = one->next;
            at = fits(one, dev, owner, low, charged) ? room(one, count) : GRANULES;
            p = one;
        }
    if (at == GRANULES) {
        p = new_page(dev, owner, low, charged);
        if (!p)
            return CU_OOM;
        at = 0;
    }
    mark(p, at, count, true);
    *out = (emu_charge){.dev = dev, .page = p, .at = at, .count = count, .address = p->base + at * GRANULE};
    return CU_OK;
}

CUresult emu_charge_memory(int dev, CUcontext owner, enum mem_kind kind, size_t size, emu_charge *out)
{
    bool in_pages = kind == MEM_POOL || (emu_conf()->strict && kind != MEM_MANAGED);
    uint64_t grain = in_pages ? PAGE : GRANULE;
    *out = (emu_charge){.dev = dev};
    if (kind == MEM_POOL && size > PAGE - GRANULE)
        return CU_OK;
    if (!in_pages || size > PAGE - GRANULE) {
        out->bytes = (size + grain - 1) & ~(grain - 1);
        return shm_charge(dev, out->bytes) == 0 ? CU_OK : CU_OOM;
    }
    unsigned count = (unsigned)((size + GRANULE - 1) / GRANULE);
    pthread_mutex_lock(&lock);
    CUresult r = share(dev, owner ? owner->id : 0, kind, count, out);
    pthread_mutex_unlock(&lock);
    return r;
}

void emu_uncharge(const emu_charge *b)
{
    if (b->bytes)
        shm_release(b->dev, b->bytes);
    if (!b->page)
        return;
    pthread_mutex_lock(&lock);
    page *p = b->page;
    mark(p, b->at, b->count, false);
    if (p->left == GRANULES) {
        unlist(p);
        munmap((void *)p->base, PAGE);
        if (p->charged)
            shm_release(b->dev, PAGE);
        free(p);
    }
    pthread_mutex_unlock(&lock);
}

void emu_charge_block(emu_mem *m)
{
    page *p = m->charged.page;
    if (!p)
        return;
    m->base = p->base;
    m->size = PAGE;
    m->id = 1ull << 63 | p->id;
}

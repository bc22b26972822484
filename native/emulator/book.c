/* book.c: what allocations take from the device. In strict mode it is pages of 2 MiB, as on hardware: a larger allocation
 * takes whole pages, smaller ones of one context share a page by its granules of 512 bytes. Otherwise it is granules.
 */
#include <stdlib.h>
#include <string.h>
#include "emu.h"
#include "shm.h"

#define PAGE (2ull << 20)
#define GRANULE 512ull
#define GRANULES (PAGE / GRANULE)
typedef struct page {
    struct page *next;
    uint64_t owner; /* id of its context */
    int dev;
    unsigned left, longest; /* granules: free, and no longer run than this is free */
    uint64_t taken[GRANULES / 64];
} page;
static page *pages;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_taken(const page *p, unsigned i) { return p->taken[i / 64] >> i % 64 & 1; }

static void mark(page *p, unsigned at, unsigned count, bool taken)
{
    for (unsigned i = at; i < at + count; i++)
        p->taken[i / 64] = (p->taken[i / 64] & ~(1ull << i % 64)) | (uint64_t)taken << i % 64;
    p->left += taken ? -count : count;
}

/* The first free run of `count` granules, or GRANULES. */
static unsigned room(page *p, unsigned count)
{
    unsigned run = 0, longest = 0;
    if (p->longest < count)
        return GRANULES;
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
    p->longest = longest;
    return GRANULES;
}

static CUresult share(int dev, uint64_t owner, unsigned count, emu_booking *out)
{
    unsigned at = GRANULES;
    page *p = pages;
    for (; p; p = p->next)
        if (p->dev == dev && p->owner == owner && p->left >= count && (at = room(p, count)) < GRANULES)
            break;
    if (!p) {
        if (shm_charge(dev, PAGE) != 0)
            return CU_OOM;
        p = calloc(1, sizeof *p);
        *p = (page){.next = pages, .owner = owner, .dev = dev, .left = GRANULES, .longest = GRANULES};
        pages = p;
        at = 0;
    }
    mark(p, at, count, true);
    *out = (emu_booking){.dev = dev, .page = p, .at = at, .count = count};
    return CU_OK;
}

CUresult emu_book(int dev, CUcontext owner, size_t size, emu_booking *out)
{
    uint64_t grain = emu_conf()->strict ? PAGE : GRANULE;
    *out = (emu_booking){.dev = dev};
    if (!emu_conf()->strict || size > PAGE - GRANULE) {
        out->bytes = (size + grain - 1) & ~(grain - 1);
        return shm_charge(dev, out->bytes) == 0 ? CU_OK : CU_OOM;
    }
    pthread_mutex_lock(&lock);
    CUresult r = share(dev, owner ? owner->id : 0, (unsigned)((size + GRANULE - 1) / GRANULE), out);
    pthread_mutex_unlock(&lock);
    return r;
}

void emu_unbook(const emu_booking *b)
{
    if (b->bytes)
        shm_release(b->dev, b->bytes);
    if (!b->page)
        return;
    pthread_mutex_lock(&lock);
    page *p = b->page;
    mark(p, b->at, b->count, false);
    p->longest = GRANULES;
    if (p->left == GRANULES) {
        for (page **at = &pages; *at; at = &(*at)->next)
            if (*at == p) {
                *at = p->next;
                break;
            }
        free(p);
        shm_release(b->dev, PAGE);
    }
    pthread_mutex_unlock(&lock);
}

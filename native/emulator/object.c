/* object.c: ranges of objects whose end is remembered, see object.h. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "emu.h"

#define LIVE 0xa110c000u
#define DESTROYED 0xdead0000u
#define WITHOUT_CONTEXT 0xdeadc000u
#define POISON 0xdb
#define RANGE (1ull << 30) /* addresses that are reserved for a kind */
#define STEP (64ull << 10) /* of them made memory at a time */
typedef emu_head head;

static const char *const names[KINDS] = {
    "context",
    "stream",
    "event",
    "module",
    "function",
    "memory pool",
    "memory handle",
    "array",
    "mipmapped array",
    "texture or surface",
    "linker",
    "green context",
    "resource description",
    "graph",
    "node",
    "executable graph",
    "user object",
    "capture",
};
static struct {
    _Atomic size_t size; /* stored once, and read without the lock */
    size_t mapped, waiting;
    _Atomic uintptr_t base;
    _Atomic size_t used; /* bytes with an object, living or not */
    head *first, *last;
} heap[KINDS];
static head *ended, *ended_before; /* whose contents calls may still read: of this phase, and of the one before */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* With lock: whether `size` more bytes of the kind's range are memory. */
static bool grow(enum emu_kind kind)
{
    if (!heap[kind].base) {
        void *p = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return false;
        atomic_store(&heap[kind].base, (uintptr_t)p);
    }
    if (heap[kind].used + heap[kind].size <= heap[kind].mapped)
        return true;
    void *more = (void *)(heap[kind].base + heap[kind].mapped);
    if (heap[kind].mapped == RANGE || mprotect(more, STEP, PROT_READ | PROT_WRITE) != 0)
        return false;
    heap[kind].mapped += STEP;
    return true;
}

static head *from_range(enum emu_kind kind)
{
    if (!grow(kind))
        return NULL;
    head *h = (head *)(heap[kind].base + heap[kind].used);
    atomic_fetch_add(&heap[kind].used, heap[kind].size);
    return h;
}

/* The object of this kind that begins at the address, living or not; NULL where none does. */
static head *at(const void *address, enum emu_kind kind)
{
    uintptr_t base = atomic_load_explicit(&heap[kind].base, memory_order_acquire), from = (uintptr_t)address - base;
    if (!base || from >= atomic_load_explicit(&heap[kind].used, memory_order_acquire) || from % heap[kind].size)
        return NULL;
    return (head *)address;
}

/* With lock: the contents go, and the place waits for its turn. */
static void retire(head *h)
{
    unsigned kind = atomic_load(&h->word) & 0xff;
    if (h->release)
        h->release(h);
    memset(h + 1, POISON, heap[kind].size - sizeof *h);
    h->next = NULL;
    if (heap[kind].waiting++)
        heap[kind].last->next = h;
    else
        heap[kind].first = h;
    heap[kind].last = h;
}

static void retire_unread(void)
{
    if (!emu_call_phase())
        return;
    for (head *h = ended_before, *next; h; h = next) {
        next = h->next;
        retire(h);
    }
    ended_before = ended;
    ended = NULL;
}

void *emu_object_new(enum emu_kind kind, size_t size)
{
    pthread_mutex_lock(&lock);
    if (!heap[kind].size)
        heap[kind].size = (size + 15) & ~(size_t)15;
    head *h = heap[kind].waiting > EMU_QUARANTINE ? heap[kind].first : NULL;
    if (h) {
        heap[kind].first = h->next;
        heap[kind].waiting--;
    } else {
        h = from_range(kind);
    }
    pthread_mutex_unlock(&lock);
    if (h) {
        memset(h, 0, size);
        atomic_store(&h->word, LIVE | kind);
    }
    return h;
}

void emu_object_end(void *object, enum emu_end how)
{
    head *h = object;
    uint32_t kind = atomic_load(&h->word) & 0xff;
    atomic_store(&h->word, (how == END_DESTROYED ? DESTROYED : WITHOUT_CONTEXT) | kind);
}

bool emu_object_end_once(void *object, enum emu_kind kind)
{
    head *h = at(object, kind);
    uint32_t live = LIVE | kind;
    return h && atomic_compare_exchange_strong(&h->word, &live, DESTROYED | kind);
}

void emu_object_free(void *object, void (*release)(void *))
{
    head *h = object;
    pthread_mutex_lock(&lock);
    h->release = release;
    h->next = ended;
    ended = h;
    retire_unread();
    pthread_mutex_unlock(&lock);
}

bool emu_object_alive(const void *object, enum emu_kind kind)
{
    const head *h = at(object, kind);
    return h && atomic_load(&h->word) == (LIVE | kind);
}

static void stop(const void *object, uint32_t word, const char *call)
{
    const char *how = (word & ~0xffu) == DESTROYED ? "has been destroyed" : "went with its context";
    fprintf(stderr, "aliquot emulator: %s uses %s %p, which %s; a real driver reads freed memory here\n", call,
            names[word & 0xff], object, how);
    abort();
}

static int judge(const void *object, enum emu_kind which, const char *call, bool last)
{
    uint32_t kind = which;
    const head *h = at(object, which);
    if (!h)
        return CU_INVALID_HANDLE;
    uint32_t word = atomic_load(&h->word);
    if (word == (LIVE | kind))
        return CU_OK;
    if (word == (WITHOUT_CONTEXT | kind) && (last || emu_need_context() == CU_CONTEXT_DESTROYED))
        return CU_CONTEXT_DESTROYED;
    if (emu_conf()->strict && (word == (DESTROYED | kind) || word == (WITHOUT_CONTEXT | kind)))
        stop(object, word, call);
    return CU_INVALID_HANDLE;
}

int emu_use(const void *object, enum emu_kind kind, const char *call) { return judge(object, kind, call, false); }

int emu_use_last(const void *object, enum emu_kind kind, const char *call) { return judge(object, kind, call, true); }

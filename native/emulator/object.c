/* object.c: slabs of objects whose end is remembered, see object.h. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "emu.h"

#define LIVE 0xa110c000u
#define DESTROYED 0xdead0000u
#define WITHOUT_CONTEXT 0xdeadc000u
#define POISON 0xdb
#define SLAB 32
typedef emu_head head;

static const char *const names[KINDS] = {
    "context", "stream", "event", "module", "function", "memory pool", "memory handle", "array", "green context", "capture",
};
static struct { size_t size, left, waiting; char *slab; head *first, *last; } heap[KINDS];
static head *ended, *ended_before; /* whose contents calls may still read: of this phase, and of the one before */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static head *from_slab(enum emu_kind kind)
{
    if (!heap[kind].left) {
        heap[kind].slab = calloc(SLAB, heap[kind].size);
        heap[kind].left = heap[kind].slab ? SLAB : 0;
    }
    if (!heap[kind].left)
        return NULL;
    head *h = (head *)heap[kind].slab;
    heap[kind].slab += heap[kind].size;
    heap[kind].left--;
    return h;
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
    heap[kind].size = (size + 15) & ~(size_t)15;
    head *h = heap[kind].waiting > EMU_QUARANTINE ? heap[kind].first : NULL;
    if (h) {
        heap[kind].first = h->next;
        heap[kind].waiting--;
    } else {
        h = from_slab(kind);
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
    return object && atomic_load(&((const head *)object)->word) == (LIVE | kind);
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
    if (!object)
        return CU_INVALID_HANDLE;
    uint32_t word = atomic_load(&((const head *)object)->word);
    if (word == (LIVE | kind))
        return CU_OK;
    if (word == (WITHOUT_CONTEXT | kind) && (last || emu_need_context() == CU_CONTEXT_DESTROYED))
        return CU_CONTEXT_DESTROYED;
    if (emu_conf()->strict && (word == (DESTROYED | kind) || word == (WITHOUT_CONTEXT | kind)))
        stop(object, word, call);
    return CU_INVALID_HANDLE;
}

int emu_use(const void *object, enum emu_kind kind, const char *call)
{
    return judge(object, kind, call, false);
}

int emu_use_last(const void *object, enum emu_kind kind, const char *call)
{
    return judge(object, kind, call, true);
}

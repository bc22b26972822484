/* own.c: contexts as own calls know them, their events, and the lock; see own.h for who owns what. */
#include "work/gate.h"
#include "work/own.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SPARE 64

_Atomic int own_leaving;
static _Atomic(struct gpu_context *) contexts;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

struct gpu_context *context_at(struct gpu_context *after)
{
    return after ? after->next : atomic_load_explicit(&contexts, memory_order_acquire);
}

static struct gpu_context *find(const void *handle)
{
    struct gpu_context *context = context_at(NULL);
    while (context && __atomic_load_n(&context->handle, __ATOMIC_ACQUIRE) != handle)
        context = context->next;
    return context;
}

static struct slot *slot_of(void *handle)
{
    int device = -1;
    void *popped;
    if (REAL(cuCtxPushCurrent_v2, void *)(handle) != CUDA_SUCCESS)
        return NULL;
    CUresult result = REAL(cuCtxGetDevice, int *)(&device);
    REAL(cuCtxPopCurrent_v2, void **)(&popped);
    struct slot *slot = result == CUDA_SUCCESS ? slot_of_device(device) : NULL;
    return slot && slot_attach(slot) ? slot : NULL;
}

static struct gpu_context *take(struct slot *slot)
{
    for (struct gpu_context *context = context_at(NULL); context; context = context->next)
        if (!context->handle && context->slot == slot)
            return context;
    struct gpu_context *context = calloc(1, sizeof *context);
    if (context) {
        context->slot = slot;
        context->next = atomic_load(&contexts);
        atomic_store_explicit(&contexts, context, memory_order_release);
    }
    return context;
}

void streams_clear(struct gpu_context *context)
{
    context->count = context->looked = 0;
    if (context->room)
        memset(context->streams, 0, context->room * sizeof *context->streams);
    atomic_fetch_add(&context->slot->work.stream_epoch, 1);
}

/* With the driver_lock held: its work and its events are gone with it. */
void context_forget(struct gpu_context *context)
{
    gate_object_ends();
    context->life++;
    captures_end_with(context->handle);
    context->spare_count = context->tail_count = context->ending = 0;
    context->view_ending = false;
    context->watched = NULL;
    streams_clear(context);
    __atomic_store_n(&context->handle, NULL, __ATOMIC_RELEASE);
}

/* The context of this handle, known from now on. `created`: by a call that has just returned it. NULL: not on a GPU of the
 * tenant. */
struct gpu_context *context_of(void *handle, bool created)
{
    struct gpu_context *context = handle ? find(handle) : NULL;
    struct slot *slot = !handle || (context && !created) ? NULL : slot_of(handle);
    if (!slot)
        return context;
    pthread_mutex_lock(&slot->work.driver_lock);
    pthread_mutex_lock(&making);
    context = find(handle);
    if (context && created &&
        context->ending) { /* the one that had the handle before is gone, whose end has not returned */
        context_forget(context);
        context = NULL;
    }
    if (context && created) {
        context->created = true; /* also where it was seen before */
    } else if (!context && (context = take(slot))) {
        context->created = created;
        __atomic_store_n(&context->handle, handle, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&making);
    pthread_mutex_unlock(&slot->work.driver_lock);
    return context;
}

struct gpu_context *context_known(const void *handle) { return handle ? find(handle) : NULL; }

/* The driver is about to be asked to end it; the answer is for context_ended(). */
uint64_t context_ends(struct gpu_context *context)
{
    pthread_mutex_lock(&context->slot->work.driver_lock);
    context->ending++;
    uint64_t life = context->life;
    pthread_mutex_unlock(&context->slot->work.driver_lock);
    return life;
}

/* The driver has answered. */
void context_ended(struct gpu_context *context, uint64_t life, bool gone)
{
    pthread_mutex_lock(&context->slot->work.driver_lock);
    if (context->life == life) {
        context->ending--;
        if (gone)
            context_forget(context);
    }
    pthread_mutex_unlock(&context->slot->work.driver_lock);
}

/* With the lock held, so that no capture begins meanwhile: makes the context current, if it is not, and this thread's
 * calls permitted beside captures, if there may be any. */
bool own_enter(struct own_call *call, struct gpu_context *context)
{
    *call = (struct own_call){context->slot, CAPTURE_MODE_RELAXED, gate_mine.context != context->handle,
                              capture_possible()};
    if (!context->handle || (call->pushed && REAL(cuCtxPushCurrent_v2, void *)(context->handle) != CUDA_SUCCESS))
        return false;
    if (call->relaxed)
        REAL(cuThreadExchangeStreamCaptureMode, int *)(&call->mode);
    return true;
}

void own_leave(struct own_call *call)
{
    void *popped;
    if (call->relaxed)
        REAL(cuThreadExchangeStreamCaptureMode, int *)(&call->mode);
    if (call->pushed)
        REAL(cuCtxPopCurrent_v2, void **)(&popped);
}

/* Everything between begin (YES) and end finds the context alive. BUSY: the lock is taken, or the context is ending, or the
 * program exits. */
enum own_answer own_begin(struct own_call *call, struct gpu_context *context, uint64_t life, enum own_how how)
{
    pthread_mutex_t *lock = &context->slot->work.driver_lock;
    if (atomic_load(&own_leaving) || (how == OWN_LOOK ? pthread_mutex_trylock(lock) : pthread_mutex_lock(lock)) != 0)
        return OWN_BUSY;
    bool same = context->life == life;
    bool busy = atomic_load(&own_leaving) || (same && context->ending && how != OWN_LAUNCHED);
    if (!busy && same && own_enter(call, context))
        return OWN_YES;
    pthread_mutex_unlock(lock);
    return busy ? OWN_BUSY : OWN_GONE;
}

void own_end(struct own_call *call)
{
    own_leave(call);
    pthread_mutex_unlock(&call->slot->work.driver_lock);
}

/* The answer is for own_unlock_all: a slot may be added meanwhile. */
unsigned own_lock_all(void)
{
    unsigned count = 0;
    for (; slot_at(count); count++)
        pthread_mutex_lock(&slot_at(count)->work.driver_lock);
    return count;
}

void own_unlock_all(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        pthread_mutex_unlock(&slot_at(i)->work.driver_lock);
}

void *event_take(struct gpu_context *context)
{
    void *event = NULL;
    if (context->spare_count)
        return context->spare[--context->spare_count];
    return REAL(cuEventCreate, void **, unsigned)(&event, 0) == CUDA_SUCCESS ? event : NULL;
}

void event_give(struct gpu_context *context, void *event)
{
    if (!event)
        return;
    if (context->spare_count == context->spare_room && context->spare_room < MAX_SPARE) {
        void **more = realloc(context->spare, (context->spare_room + 16) * sizeof *more);
        context->spare_room += more ? 16 : 0;
        context->spare = more ? more : context->spare;
    }
    if (context->spare_count < context->spare_room)
        context->spare[context->spare_count++] = event;
    else
        REAL(cuEventDestroy_v2, void *)(event);
}

/* An event behind everything in the stream; NULL: none could be had. */
void *event_behind(struct gpu_context *context, void *stream)
{
    void *event = event_take(context);
    if (event && REAL(cuEventRecord, void *, void *)(event, stream) == CUDA_SUCCESS) {
        COUNT(events);
        return event;
    }
    event_give(context, event);
    return NULL;
}

bool event_done(void *event) { return REAL(cuEventQuery, void *)(event) != CUDA_ERROR_NOT_READY; }

/* The driver takes itself down after us: what runs inside it by then crashes, so we are out of it and stay out. */
static void leave(void)
{
    atomic_store(&own_leaving, 1);
    for (unsigned i = 0; slot_at(i); i++) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        if (pthread_mutex_timedlock(&slot_at(i)->work.driver_lock, &until) == 0)
            pthread_mutex_unlock(&slot_at(i)->work.driver_lock);
    }
}

/* Handlers run in the reverse order of their registration; the driver registers its own in cuInit and in its first
 * context, so this is called after both. */
void own_at_exit(void)
{
    static _Atomic int watching;
    if (atomic_load_explicit(&watching, memory_order_relaxed) || atomic_exchange(&watching, 1) || atexit(leave) == 0)
        return;
    atomic_store(&watching, 0);
    say_refused(REFUSED_EXIT, ENOMEM);
}

void own_after_fork(void)
{
    pthread_mutex_init(&making, NULL);
    atomic_store(&contexts, NULL); /* the parent's; their locks may be held by threads that are not here */
}

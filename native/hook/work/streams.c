/* streams.c: which streams hold work of this grant, and whether it has ended.
 *
 * Noted on the slow path only. A capturing stream is never queried or recorded into, nor a default stream while
 * anything captures: either would break the capture. Streams are found idle one after another and not asked again until
 * something is launched, so a look costs one query while the GPU is busy, however many streams there are.
 */
#include "work/gate.h"
#include "work/own.h"

#include <stdlib.h>
#include <string.h>

#define QUERIES_AT_ONCE 64

static unsigned place_of(const struct gpu_context *context, const void *stream)
{
    unsigned at = (unsigned)(((uintptr_t)stream * 0x9E3779B97F4A7C15u) >> 40) & (context->room - 1);
    while (context->streams[at].stream && context->streams[at].stream != stream)
        at = (at + 1) & (context->room - 1);
    return at;
}

static struct used_stream *find(struct gpu_context *context, const void *stream)
{
    struct used_stream *used = context->room ? &context->streams[place_of(context, stream)] : NULL;
    return used && used->stream ? used : NULL;
}

/* Every stream is found where it leads, once, and is counted; there is room. With the driver_lock held. */
static bool streams_are_valid(const struct gpu_context *context)
{
    unsigned count = 0;
    for (unsigned i = 0; i < context->room; i++)
        if (context->streams[i].stream) {
            count++;
            if (place_of(context, context->streams[i].stream) != i)
                return false;
        }
    return count == context->count && count * 2 <= context->room;
}

static bool grow(struct gpu_context *context)
{
    struct used_stream *old = context->streams;
    unsigned room = context->room;
    struct used_stream *more = calloc(room ? room * 2 : 16, sizeof *more);
    if (!more)
        return false;
    context->streams = more;
    context->room = room ? room * 2 : 16;
    for (unsigned i = 0; i < room; i++)
        if (old[i].stream)
            context->streams[place_of(context, old[i].stream)] = old[i];
    context->looked = 0;
    free(old);
    return true;
}

/* Takes the entry out and closes the gap, as linear probing needs. */
static void drop(struct gpu_context *context, struct used_stream *used)
{
    unsigned at = (unsigned)(used - context->streams);
    used->stream = NULL;
    context->count--;
    for (unsigned next = (at + 1) & (context->room - 1); context->streams[next].stream;
         next = (next + 1) & (context->room - 1)) {
        struct used_stream moved = context->streams[next];
        context->streams[next].stream = NULL;
        context->streams[place_of(context, moved.stream)] = moved;
    }
    CHECK(2, streams_are_valid(context));
    context->looked = 0;
    atomic_fetch_add(&context->slot->work.stream_epoch, 1);
}

void note_stream(struct gpu_context *context, uint64_t life, void *stream)
{
    pthread_mutex_lock(&context->slot->work.driver_lock);
    if (context->life == life && !find(context, stream) && (context->count * 2 < context->room || grow(context))) {
        context->streams[place_of(context, stream)] = (struct used_stream){stream, NULL};
        context->count++;
    }
    CHECK(2, streams_are_valid(context));
    pthread_mutex_unlock(&context->slot->work.driver_lock);
}

/* A bounded number of looks at each new tail keeps the list as short as the unfinished work. */
static void prune(struct gpu_context *context)
{
    for (unsigned i = 0; i < 4 && i < context->tail_count; i++)
        if (event_done(context->tails[i])) {
            event_give(context, context->tails[i]);
            context->tails[i--] = context->tails[--context->tail_count];
        }
}

static void add_tail(struct gpu_context *context, void *event)
{
    prune(context);
    if (event && context->tail_count == context->tail_room) {
        void **more = realloc(context->tails, (context->tail_room * 2 + 16) * sizeof *more);
        context->tail_room = more ? context->tail_room * 2 + 16 : context->tail_room;
        context->tails = more ? more : context->tails;
    }
    if (event && context->tail_count < context->tail_room)
        context->tails[context->tail_count++] = event;
    else
        event_give(context, event);
}

/* Own calls into this stream would break a capture. */
static bool untouchable(void *stream)
{
    return capture_running() && (stream == STREAM_LEGACY || stream_captures(stream, false));
}

/* An event takes the place of the stream; between own_enter and own_leave. */
static void turn(struct gpu_context *context, struct used_stream *used)
{
    void *event = used->event;
    if (!event && !is_own_stream_key(used->stream) && !untouchable(used->stream))
        event = event_behind(context, used->stream);
    drop(context, used);
    add_tail(context, event);
}

/* The stream ends or begins to capture; with all driver_locks held. */
void stream_turns_tail(struct gpu_context *context, void *stream)
{
    struct own_call call;
    struct used_stream *used = find(context, stream);
    if (used && context->ending) {
        drop(context, used);
    } else if (used && own_enter(&call, context)) {
        turn(context, used);
        own_leave(&call);
    }
}

/* Launched into the calling thread's default stream: its note gets an event behind that. */
void own_stream_record(struct gpu_context *context, uint64_t life, void *key)
{
    struct own_call call;
    if (own_begin(&call, context, life, OWN_LAUNCHED) != OWN_YES)
        return;
    struct used_stream *used = stream_captures(NULL, true) ? NULL : find(context, key);
    if (used && (used->event || (used->event = event_take(context)))) {
        REAL(cuEventRecord, void *, void *)(used->event, STREAM_PER_THREAD);
        COUNT(events);
    }
    own_end(&call);
}

/* The thread ends, and its default stream with it. */
void own_stream_ended(struct gpu_context *context, uint64_t life, void *key)
{
    struct own_call call;
    if (own_begin(&call, context, life, OWN_WAIT) != OWN_YES)
        return;
    struct used_stream *used = find(context, key);
    if (used)
        turn(context, used);
    own_end(&call);
}

static bool tails_idle(struct gpu_context *context)
{
    while (context->tail_count) {
        if (!event_done(context->tails[context->tail_count - 1]))
            return false;
        event_give(context, context->tails[--context->tail_count]);
    }
    return true;
}

static bool used_idle(const struct used_stream *used)
{
    if (used->event)
        return event_done(used->event);
    if (is_own_stream_key(used->stream))
        return true; /* launched, but nothing was recorded: its thread is still inside */
    return !untouchable(used->stream) && REAL(cuStreamQuery, void *)(used->stream) != CUDA_ERROR_NOT_READY;
}

/* Looks at a few streams at a time, so that launches do not wait for the lock; `more`: at others next. */
static bool context_idle(struct gpu_context *context, uint64_t launches, bool *more)
{
    if (context->looked_at != launches)
        context->looked = 0;
    context->looked_at = launches;
    for (unsigned queries = 0; context->looked < context->room; context->looked++) {
        if (!context->streams[context->looked].stream)
            continue;
        if ((*more = queries++ == QUERIES_AT_ONCE) || !used_idle(&context->streams[context->looked]))
            return false;
    }
    return tails_idle(context);
}

/* Has all noted work ended? `launches`: the count of launches at the question. Never waits; "no" when it cannot know. */
bool streams_idle(struct slot *slot, uint64_t launches)
{
    struct own_call call;
    for (struct gpu_context *context = context_at(NULL); context; context = context->next) {
        if (context->slot != slot || !__atomic_load_n(&context->handle, __ATOMIC_ACQUIRE))
            continue;
        for (bool more = true; more;) {
            enum own_answer answer = own_begin(&call, context, context->life, OWN_LOOK);
            if (answer == OWN_GONE)
                break;
            if (answer == OWN_BUSY)
                return false;
            more = false;
            bool idle = context_idle(context, launches, &more);
            own_end(&call);
            if (!idle && !more)
                return false;
        }
    }
    return true;
}

/* Puts an event behind all noted work, so that later work does not count; then streams_idle() is to be asked. What is in a
 * context that is ending ends with it. */
void streams_mark(struct slot *slot)
{
    for (struct gpu_context *context = context_at(NULL); context; context = context->next) {
        struct own_call call;
        if (context->slot != slot || !__atomic_load_n(&context->handle, __ATOMIC_ACQUIRE) ||
            own_begin(&call, context, context->life, OWN_WAIT) != OWN_YES)
            continue;
        while (context->count)
            for (unsigned i = 0; i < context->room; i++)
                if (context->streams[i].stream)
                    turn(context, &context->streams[i]);
        own_end(&call);
    }
}

/* Has the work that streams_mark() put events behind ended, whatever was launched since? Never waits. */
bool streams_marked_idle(struct slot *slot)
{
    for (struct gpu_context *context = context_at(NULL); context; context = context->next) {
        struct own_call call;
        if (context->slot != slot || !__atomic_load_n(&context->handle, __ATOMIC_ACQUIRE))
            continue;
        enum own_answer answer = own_begin(&call, context, context->life, OWN_LOOK);
        if (answer == OWN_BUSY)
            return false;
        if (answer == OWN_GONE)
            continue;
        bool idle = tails_idle(context);
        own_end(&call);
        if (!idle)
            return false;
    }
    return true;
}

/* All of it is idle: the next launches note their streams again. */
void streams_forget(struct slot *slot)
{
    for (struct gpu_context *context = context_at(NULL); context; context = context->next) {
        struct own_call call;
        if (context->slot != slot || own_begin(&call, context, context->life, OWN_LOOK) != OWN_YES)
            continue;
        for (unsigned i = 0; i < context->room; i++)
            if (context->streams[i].stream)
                event_give(context, context->streams[i].event);
        streams_clear(context);
        own_end(&call);
    }
}

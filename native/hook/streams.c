/* streams.c: which streams hold work of this grant, and whether it has ended.
 *
 * Noted on the slow path only. A capturing stream is never asked or recorded into, nor a default stream while anything
 * captures: either would break the capture. The per-thread default stream of another thread can not be named, but it
 * orders with the legacy stream, so that one stands for it.
 */
#include "gate.h"

#include <string.h>

static void note(struct slot *slot, void *stream)
{
    void *context = NULL;
    REAL(cuCtxGetCurrent, void **)(&context);
    for (unsigned i = 0; i < slot->stream_count; i++)
        if (slot->streams[i].stream == stream && slot->streams[i].context == context)
            return;
    if (slot->stream_count < MAX_STREAMS)
        slot->streams[slot->stream_count++] = (struct used_stream){context, stream, NULL};
    else
        slot->streams_overflow = true;
}

void note_stream(struct slot *slot, struct record *record, void *stream, bool own)
{
    void *named = stream && stream != STREAM_PER_THREAD ? stream : STREAM_LEGACY;
    unsigned epoch = atomic_load(&slot->stream_epoch);
    if (record->stream_epoch != epoch) {
        record->stream_epoch = epoch;
        memset(record->streams, 0, sizeof record->streams);
    }
    for (unsigned i = 0; i < 4; i++)
        if (record->streams[i] == named)
            return;
    record->streams[record->stream_at++ % 4] = named;
    pthread_mutex_lock(&slot->lock);
    note(slot, named);
    if (atomic_load(&slot->stream_epoch) != epoch)
        record->stream_epoch = ~0u; /* a drain came between: note it again next time */
    pthread_mutex_unlock(&slot->lock);
    helper_start(slot);
}

static bool skip(const struct used_stream *used)
{
    return used->stream && capture_running() && (used->stream == STREAM_LEGACY || stream_captures(used->stream, false));
}

/* An event behind everything in the stream; the caller holds slot->lock. NULL: none could be had. */
static void *mark(const struct used_stream *used)
{
    void *event = NULL, *popped;
    if (used->event)
        return used->event;
    if (skip(used) || REAL(cuCtxPushCurrent_v2, void *)(used->context) != CUDA_SUCCESS)
        return NULL;
    if (REAL(cuEventCreate, void **, unsigned)(&event, EVENT_BLOCKING_NO_TIMING) == CUDA_SUCCESS &&
        REAL(cuEventRecord, void *, void *)(event, used->stream) != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2, void *)(event);
        event = NULL;
    }
    REAL(cuCtxPopCurrent_v2, void **)(&popped);
    return event;
}

bool streams_idle(struct slot *slot)
{
    bool idle = !slot->streams_overflow;
    pthread_mutex_lock(&slot->lock);
    for (unsigned i = 0; idle && i < slot->stream_count; i++) {
        const struct used_stream *used = &slot->streams[i];
        void *popped;
        if (skip(used)) {
            idle = false;
        } else if (used->event) {
            idle = REAL(cuEventQuery, void *)(used->event) != CUDA_ERROR_NOT_READY;
        } else if (REAL(cuCtxPushCurrent_v2, void *)(used->context) == CUDA_SUCCESS) {
            idle = REAL(cuStreamQuery, void *)(used->stream) != CUDA_ERROR_NOT_READY;
            REAL(cuCtxPopCurrent_v2, void **)(&popped);
        }
    }
    pthread_mutex_unlock(&slot->lock);
    return idle;
}

/* Waits for all work noted so far and forgets its streams: the next grant notes its own. */
void streams_wait(struct slot *slot)
{
    void *events[MAX_STREAMS], *context = NULL, *popped;
    pthread_mutex_lock(&slot->drain_lock);
    pthread_mutex_lock(&slot->lock);
    unsigned count = slot->stream_count;
    bool all = slot->streams_overflow && !capture_running();
    for (unsigned i = 0; i < count; i++) {
        events[i] = mark(&slot->streams[i]);
        context = slot->streams[i].context;
    }
    slot->stream_count = 0;
    slot->streams_overflow = false;
    atomic_fetch_add(&slot->stream_epoch, 1);
    pthread_mutex_unlock(&slot->lock);
    for (unsigned i = 0; i < count; i++)
        if (events[i]) {
            REAL(cuEventSynchronize, void *)(events[i]);
            REAL(cuEventDestroy_v2, void *)(events[i]);
        }
    if (all && REAL(cuCtxPushCurrent_v2, void *)(context) == CUDA_SUCCESS) {
        REAL(cuCtxSynchronize, void)();
        REAL(cuCtxPopCurrent_v2, void **)(&popped);
    }
    pthread_mutex_unlock(&slot->drain_lock);
}

/* The application destroys a stream: its work goes on, an event stands for it. */
void forget_stream(void *stream)
{
    for (unsigned s = 0; slot_at(s); s++) {
        struct slot *slot = slot_at(s);
        pthread_mutex_lock(&slot->lock);
        for (unsigned i = 0; i < slot->stream_count; i++)
            if (slot->streams[i].stream == stream && stream) {
                atomic_fetch_add(&slot->stream_epoch, 1);
                slot->streams[i].event = mark(&slot->streams[i]);
                slot->streams[i].stream = NULL;
                if (!slot->streams[i].event)
                    slot->streams[i--] = slot->streams[--slot->stream_count];
            }
        pthread_mutex_unlock(&slot->lock);
    }
    if (gate_cache.stream == stream)
        thread_forget();
}

/* A context goes: its work ends with it. Between drain_locks(true) and drain_locks(false). */
void forget_context(void *context)
{
    for (unsigned s = 0; slot_at(s); s++) {
        struct slot *slot = slot_at(s);
        pthread_mutex_lock(&slot->lock);
        for (unsigned i = 0; i < slot->stream_count; i++)
            if (!context || slot->streams[i].context == context) {
                atomic_fetch_add(&slot->stream_epoch, 1);
                slot->streams[i--] = slot->streams[--slot->stream_count];
            }
        pthread_mutex_unlock(&slot->lock);
    }
    thread_forget();
}

void drain_locks(bool lock)
{
    for (unsigned s = 0; slot_at(s); s++)
        if (lock)
            pthread_mutex_lock(&slot_at(s)->drain_lock);
        else
            pthread_mutex_unlock(&slot_at(s)->drain_lock);
}

struct sync_mark sync_begin(void)
{
    struct sync_mark mark = {gate_cache.record ? gate_cache.record->slot : NULL, 0};
    bool inside;
    if (mark.slot)
        mark.launches = slot_launches(mark.slot, &inside);
    return mark;
}

void sync_end(struct sync_mark mark, CUresult result, enum sync_scope scope, void *subject)
{
    pools_refresh();
    if (!mark.slot || result != CUDA_SUCCESS || scope == SYNC_WEAK)
        return;
    struct slot *slot = mark.slot;
    void *stream = subject && subject != STREAM_PER_THREAD ? subject : STREAM_LEGACY;
    bool whole = slot->stream_count == 1 && (scope == SYNC_CONTEXT || slot->streams[0].stream == stream);
    if (whole || (scope == SYNC_CONTEXT && !subject && slot->contexts <= 1)) {
        atomic_store(&slot->synced_launches, mark.launches);
        slot->synced_at_ns = now_ns();
    }
}

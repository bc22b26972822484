/* own.h: the hook's own calls into the driver, and what they may touch.
 *
 * The hook records and queries events of its own, from a helper thread and from the application's threads. Whether what
 * they name still exists is settled by one lock and one number:
 *
 * - The driver_lock of a GPU's slot is held during every own call. The application's calls that end a stream of that
 *   GPU, or begin a capture, hold it too, so no stream starts to capture between the question and the event.
 * - A call that ends a context may wait in the driver for work, which may wait for other threads. So it holds no lock there,
 *   but the context is `ending` from before the call until after it, and has no own calls but those of a thread that has
 *   just launched into it, which shows that it lives.
 * - A gpu_context stands for one context and owns every own event created in it, wherever the event is used: in a note,
 *   in a thread's checkpoints, or spare. They end with the context. `life` is raised then; the holder of an event
 *   remembers the life it belongs to and drops it untouched when the number has moved on.
 * - A stream that ends or begins a capture leaves an event behind its work (`tails`), so no dead stream is asked.
 * - Attachment, helper and grant page belong to the slot and outlive every context.
 *
 * Nothing is waited for with the lock held, and nothing is called but the driver.
 */
#ifndef ALIQUOT_OWN_H
#define ALIQUOT_OWN_H

#include "slot.h"

/* Work was launched into `stream` since the last drain. The per-thread default stream of a thread has no name that
 * others could use: it is noted under own_stream_key() and `event` is recorded by that thread. */
struct used_stream { void *stream, *event; };

struct gpu_context {
    struct gpu_context *next; /* never unlinked; reused once the context has ended */
    struct slot *slot;
    void *handle; /* NULL: ended */
    _Atomic uint64_t life;
    bool created; /* by cuCtxCreate; else the primary context or a view of it */
    /* with the slot's driver_lock held: */
    unsigned ending;             /* calls of the application's that may end it and have not returned */
    bool view_ending;            /* one of them ends the primary context */
    struct used_stream *streams; /* open addressing, `room` is a power of two */
    unsigned count, room, looked;
    uint64_t looked_at; /* the launch count for which streams before `looked` were found idle */
    void **tails;       /* events behind the work of streams that have ended */
    unsigned tail_count, tail_room;
    void **spare;
    unsigned spare_count, spare_room;
    struct gate_entry *watched; /* whose checkpoints are in this context */
};

/* OWN_LOOK does not wait for the lock; OWN_LAUNCHED: the thread is inside a launch into that context. */
enum own_how { OWN_LOOK, OWN_WAIT, OWN_LAUNCHED };
enum own_answer { OWN_YES, OWN_BUSY, OWN_GONE };
struct own_call {
    struct slot *slot;
    int mode;
    bool pushed, relaxed;
};

/* own.c */
extern HIDDEN _Atomic int own_leaving; /* the program exits: no more own calls */
struct gpu_context *context_of(void *handle, bool created);
struct gpu_context *context_known(const void *handle);
struct gpu_context *context_at(struct gpu_context *after);
uint64_t context_ends(struct gpu_context *context);
void context_ended(struct gpu_context *context, uint64_t life, bool gone);
void context_forget(struct gpu_context *context);
void streams_clear(struct gpu_context *context); /* nothing of it is noted any more */
enum own_answer own_begin(struct own_call *call, struct gpu_context *context, uint64_t life, enum own_how how);
void own_end(struct own_call *call);
bool own_enter(struct own_call *call, struct gpu_context *context);
void own_leave(struct own_call *call);
unsigned own_lock_all(void);
void own_unlock_all(unsigned count);
void *event_take(struct gpu_context *context);
void event_give(struct gpu_context *context, void *event);
void *event_behind(struct gpu_context *context, void *stream);
bool event_done(void *event);
void own_at_exit(void);
void own_after_fork(void);

/* capture.c */
void captures_end_with(const void *context);

/* streams.c */
void note_stream(struct gpu_context *context, uint64_t life, void *stream);
void stream_turns_tail(struct gpu_context *context, void *stream);
void own_stream_record(struct gpu_context *context, uint64_t life, void *key);
void own_stream_ended(struct gpu_context *context, uint64_t life, void *key);

static inline void *own_stream_key(const struct record *record) { return (void *)((uintptr_t)record | 1); }
static inline bool is_own_stream_key(const void *stream) { return ((uintptr_t)stream & 1) && stream != STREAM_LEGACY; }

#endif

/* work.h: what this process has launched on one GPU, and whether it has ended.
 *
 * Holds a *record* for each thread's use of a slot, the driver's contexts and streams with work in them (own.h), the
 * events behind launches (gate.h), captures that run, and the helper thread of a slot, which gives the token back and says
 * when it is drained. gate.h has the path of every launch.
 *
 * It asks and waits for the token, and asks the driver about its own events under `driver_lock`. It never knows what memory
 * is charged; what the memory has to do in time it does from the helper's rounds, through `aliquot_above`. No call of the
 * driver that may wait for work is made with a lock held.
 */
#ifndef ALIQUOT_WORK_H
#define ALIQUOT_WORK_H

#include "token/token.h"

/* One thread's use of one slot. `seq` is odd while the thread is inside the driver's launch. */
struct record {
    _Atomic uint64_t seq;
    struct slot *slot;
    _Atomic int in_use;
    unsigned strikes; /* waits in a row for earlier work that ran out of patience */
    uint64_t lifted_until_ns, cost_ns[2];
    struct record *next;
};

/* The longest launch lately: longest.c */
struct longest {
    _Atomic uint64_t ns;
    uint64_t before_ns, since_ns, told_ns, told_at_ns, told_boot;
};

struct work {
    _Atomic(struct record *) records;
    _Atomic int helper_running;
    pthread_mutex_t driver_lock;   /* own calls, and calls that end what own calls name; see own.h */
    _Atomic unsigned stream_epoch; /* raised whenever a noted stream is forgotten */
    /* the helper's */
    uint32_t seen_word;
    uint64_t seen_launches, finished_launches;
    uint64_t idle_from_ns, looked_ns;
    uint32_t used_word; /* the last grant that something was launched under */
    struct longest longest;
    /* what of the time until then other tenants' work had: checkpoint.c, with the driver_lock held */
    uint64_t shared_ns, shared_at_ns, watched_ns; /* the last is the helper's */
    uint32_t others;
};

/* What every launch reads beside its page. `revision` is raised whenever threads must read it again before they launch
 * on; `epoch` as well whenever a context or stream ends, since a new one may get the same handle. `fence`: the kernel
 * refused membarrier, so each launch needs a fence of its own. `awaited`: helpers that want to hear of completions. */
struct gate_shared {
    _Atomic uint64_t revision, epoch;
    _Atomic int captures, fence, awaited;
} __attribute__((aligned(64)));
extern HIDDEN struct gate_shared gate_shared;
static inline void gate_look_anew(void) { atomic_fetch_add(&gate_shared.revision, 1); }
static inline void gate_object_ends(void)
{
    atomic_fetch_add(&gate_shared.epoch, 1);
    gate_look_anew();
}

/* gate.c, threads.c */
void thread_forget(void);
void thread_after_fork(void);
uint64_t slot_launches(struct slot *slot, bool *inside);
/* last.c: only helpers are left of the process's threads. */
bool program_has_ended(uint64_t *looked_ns);
/* longest.c, checkpoint.c */
void longest_tell(struct slot *slot);
void checkpoints_look(struct slot *slot, bool now_or_never);
/* helper.c */
void helper_start(struct slot *slot);
void helper_hint(void); /* a completion point: looked at where `gate_shared.awaited` says so */
bool has_drained(struct slot *slot, uint32_t word);
/* streams.c */
bool streams_idle(struct slot *slot, uint64_t launches);
void streams_mark(struct slot *slot);
bool streams_marked_idle(struct slot *slot);
void streams_forget(struct slot *slot);
/* capture.c */
bool capture_running(void);
bool capture_possible(void);
bool stream_captures(void *stream, bool own);
void *capture_graph(void *stream, bool own); /* the graph that it captures into; NULL: none, or the driver cannot say */
void capture_begins(void);
void capture_is_settled(void);
void capture_began(void *origin, void *graph);
bool capture_graph_taken(const void *origin, bool (*take)(void *graph, void *with), void *with);
void capture_ended(const void *origin);
void capture_ends_with_stream(const void *stream);
void captures_after_fork(void);

#endif

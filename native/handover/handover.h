/* handover.h: what the arbiter tells its native loop, and what the loop tells it. Loaded by arbiter/handover.py. */
#ifndef ALIQUOT_HANDOVER_H
#define ALIQUOT_HANDOVER_H

#include "aliquot_abi.h"

#define HANDOVER_MAX 64
#define HANDOVER_UNDISTURBED_NS 300000u /* so long after a hand-over neither the arbiter nor helpers are woken for it */
#define HANDOVER_MESSAGES 8             /* what hides its answer behind more is left to the arbiter */

/* Whose answer ends the turn of a GPU, and who has the GPU then. Times are CLOCK_MONOTONIC nanoseconds. */
struct handover_prepared {
    aliquot_page *holder_page; /* to be closed first, if it is not yet; NULL: it was closed before */
    aliquot_page *next_page;
    uint64_t quota_ns;
    uint64_t until_ns;         /* later than this it is void */
    uint64_t until_wanting_ns; /* and later than this where the holder asks for the GPU again before it answers */
    int32_t socket;            /* the one connection that is still to answer */
    uint32_t slot;
    uint32_t answer; /* ALIQUOT_MSG_DRAINED or ALIQUOT_MSG_RETURN */
    uint32_t first_epoch, last_epoch;
    uint32_t next_epoch;
};

/* A hand-over that was carried out, by its number. Its first `messages` are yet to be read. */
struct handover_done {
    uint64_t at_ns;
    uint32_t number;
    uint32_t messages;
};

enum handover_verdict { HANDOVER_WAIT, HANDOVER_LEAVE, HANDOVER_DONE };

/* What has come on its connection so far. */
struct handover_progress {
    uint32_t messages;
    int wanting;
};

/* Looks at the messages that have come since, without taking any, and hands the GPU over at the awaited answer. Neither
 * waits nor allocates; may be called at any time by one thread. */
enum handover_verdict handover_look(const struct handover_prepared *prepared, struct handover_progress *seen,
                                    uint64_t *at_ns);
/* A moment later: helpers that sleep on the next page and were not woken with the threads that launch. */
void handover_wake_rest(const struct handover_prepared *prepared);
uint64_t handover_now_ns(void);

struct handover;
#define HANDOVER_API __attribute__((visibility("default")))

/* A loop beside the arbiter's own, which sleeps on `arbiter_epoll`. NULL with errno where there can be none. */
HANDOVER_API struct handover *handover_start(int arbiter_epoll);
HANDOVER_API void handover_stop(struct handover *loop);

/* Puts a hand-over in force and returns its number, or -1: the arbiter hears nothing of the connection until it is
 * carried out, void or taken back. */
HANDOVER_API int handover_arm(struct handover *loop, const struct handover_prepared *prepared);

/* Takes all of them back; what was handed over since the last time goes to `done`, in order of time. Returns how many. */
HANDOVER_API int handover_take(struct handover *loop, struct handover_done done[HANDOVER_MAX]);

#endif

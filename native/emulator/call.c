/* call.c: the program's calls that are under way.
 *
 * Another thread may destroy what a call has just found to be valid. So what an object points at is kept until every call
 * that was under way when it ended is over (object.c). Calls are counted by phase: what ended in a phase is free for use
 * when two phases have passed, and a phase passes when the calls begun in the one before it are over. The counts are in
 * engine.shm, for another process that locks this one waits until there is no call under way (parking.c).
 *
 * A thread is not cancelled in the middle of a call: it would take a lock along.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include "call.h"

static _Atomic long early[2]; /* before this process has a place in engine.shm, or without one */
static _Atomic long *_Atomic under_way = early;
static _Atomic unsigned phase;
static __thread struct {
    int depth, cancel;
    _Atomic long *count; /* where its call is counted */
} mine;

void emu_call_count_in(_Atomic long *place)
{
    atomic_store_explicit(&under_way, place ? place : early, memory_order_release);
}

/* A call begins, or goes on `again`. Counted first: who locks this process closes it and then looks at the counts. */
static void enter(bool again)
{
    for (;;) {
        mine.count = atomic_load_explicit(&under_way, memory_order_acquire) + (atomic_load(&phase) & 1);
        atomic_fetch_add(mine.count, 1);
        if (again || !emu_parking_locked())
            return;
        atomic_fetch_sub(mine.count, 1);
        emu_parking_wait();
    }
}

static void leave(void) { atomic_fetch_sub(mine.count, 1); }

char emu_call_begin(void)
{
    if (!mine.depth++) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mine.cancel);
        enter(false);
    }
    return 0;
}

void emu_call_end(const char *unused)
{
    if (!--mine.depth) {
        leave();
        pthread_setcancelstate(mine.cancel, NULL);
    }
}

void emu_call_pause(void)
{
    if (mine.depth)
        leave();
}

void emu_call_resume(void)
{
    if (mine.depth)
        enter(true);
}

bool emu_call_phase(void)
{
    unsigned now = atomic_load(&phase);
    unsigned before = (now + 1) & 1;
    if (atomic_load(&early[before]) || atomic_load(atomic_load(&under_way) + before))
        return false;
    atomic_store(&phase, now + 1);
    return true;
}

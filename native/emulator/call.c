/* call.c: the program's calls that are under way.
 *
 * Another thread may destroy what a call has just found to be valid. So what an object points at is kept until every call
 * that was under way when it ended is over (object.c). Calls are counted by phase: what ended in a phase is free for use
 * when two phases have passed, and a phase passes when the calls begun in the one before it are over.
 *
 * A thread is not cancelled in the middle of a call: it would take a lock along.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include "call.h"

static _Atomic long under_way[2];
static _Atomic unsigned phase;
static __thread struct {
    int depth, cancel;
    unsigned phase;
} mine;

static void enter(bool again)
{
    emu_parking_enter(again);
    mine.phase = atomic_load(&phase) & 1;
    atomic_fetch_add(&under_way[mine.phase], 1);
}

static void leave(void)
{
    atomic_fetch_sub(&under_way[mine.phase], 1);
    emu_parking_leave();
}

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
    if (atomic_load(&under_way[(now + 1) & 1]))
        return false;
    atomic_store(&phase, now + 1);
    return true;
}

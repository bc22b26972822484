/* wake.c: the process's lock, and its threads that sleep.
 *
 * The thread of a GPU runs ahead of programs. Woken by one that holds the lock, it would take the CPU, find the lock
 * taken and sleep again, and on a busy machine others would run before the holder does. So it is woken when the lock has
 * been let go.
 */
#include "emu.h"
#include "shm.h"

pthread_mutex_t emu_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;
static int waiting;
static bool sleeping[EMU_GPUS];
static __thread uint32_t due; /* the GPUs whose threads this one is to wake */

static _Atomic uint32_t *word_of(int dev) { return &shm_open_engine()->slot[shm_my_slot()].gpu[shm_place(dev)].word; }

static void wake_due(void)
{
    uint32_t all = due;
    due = 0;
    for (; all; all &= all - 1)
        shm_wake(word_of(__builtin_ctz(all)));
}

void emu_unlock(void)
{
    pthread_mutex_unlock(&emu_lock);
    wake_due();
}

void emu_sched_wake(int dev)
{
    due |= (uint32_t)sleeping[dev] << dev;
    sleeping[dev] = false;
}

void emu_sched_nap(int dev, uint32_t seen, uint64_t until)
{
    sleeping[dev] = true;
    emu_unlock();
    shm_sleep(word_of(dev), seen, until);
    pthread_mutex_lock(&emu_lock);
    sleeping[dev] = false;
}

/* Returns early where it had a thread to wake: the caller looks again whether it has to wait. */
void emu_sched_wait(void)
{
    if (due) {
        emu_unlock();
        pthread_mutex_lock(&emu_lock);
        return;
    }
    waiting++;
    emu_call_pause();
    pthread_cond_wait(&done, &emu_lock);
    emu_call_resume();
    waiting--;
}

void emu_sched_done(void)
{
    if (waiting)
        pthread_cond_broadcast(&done);
}

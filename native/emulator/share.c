/* share.c: whose turn is it on a GPU? The alternation between processes.
 *
 * At most one process (slot) owns a GPU. A process with runnable work marks `wants` and sleeps; the owner hands over at
 * its slice's end, or at once when it has nothing left, to the next waiting slot in round-robin order. `clock_ns` is the
 * time up to which the GPU is used and is handed on with the GPU, so that a late wake-up loses no GPU time. An owner
 * that is stopped (SIGSTOP, a debugger) loses the GPU at its slice's end and goes on when it has it again, and so does one
 * that has not moved STUCK_NS after it.
 */
#include "shm.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define STUCK_NS 500000000ull
#define STOPPED_NS 5000000ull /* before that its state is not asked */

static emu_shm *shm(void) { return shm_open_engine(); }

bool shm_waiters(int device)
{
    int gpu = shm_place(device);
    emu_shm *s = shm();
    int me = shm_my_slot();
    for (int i = 0; i < s->slots; i++)
        if (i != me && s->slot[i].pid && atomic_load(&s->slot[i].gpu[gpu].wants))
            return true;
    return false;
}

static void take(emu_gpu *g, int slot, int gpu)
{
    g->owner = slot;
    g->slice_start_ns = g->clock_ns;
    g->slice_end_ns = g->clock_ns + (uint64_t)emu_conf()->slice_ns;
    g->want_ns = 0;
    atomic_store(&shm()->slot[slot].gpu[gpu].wants, 0);
}

static bool stopped(int slot)
{
    char path[32], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", shm_pid(slot));
    FILE *stat = fopen(path, "re");
    if (stat) {
        line[fread(line, 1, sizeof line - 1, stat)] = 0;
        fclose(stat);
    }
    const char *name_end = strrchr(line, ')');
    return name_end && (!strncmp(name_end, ") T", 3) || !strncmp(name_end, ") t", 3));
}

static bool late(const emu_gpu *g)
{
    uint64_t end = g->slice_end_ns > g->want_ns ? g->slice_end_ns : g->want_ns, now = shm_now();
    return g->want_ns && (now > end + STUCK_NS || (now > end + STOPPED_NS && stopped(g->owner)));
}

bool shm_acquire(int device)
{
    int gpu = shm_place(device);
    emu_shm *s = shm();
    int me = shm_my_slot(), holder = -1; /* to be woken without the lock, which its thread needs at once */
    emu_gpu *g = &s->gpu[gpu];
    shm_lock(gpu);
    if (g->owner >= 0 && g->owner != me && late(g))
        g->owner = -1;
    if (g->owner < 0) {
        uint64_t now = shm_now(), clock = g->clock_ns;
        take(g, me, gpu);
        if (clock + (uint64_t)emu_conf()->slice_ns < now)
            g->slice_end_ns = now + (uint64_t)emu_conf()->slice_ns;
    } else if (g->owner != me && !atomic_exchange(&s->slot[me].gpu[gpu].wants, 1)) {
        if (!g->want_ns)
            g->want_ns = shm_now();
        holder = g->owner;
    }
    bool mine = g->owner == me;
    shm_unlock(gpu);
    if (holder >= 0)
        shm_wake(&s->slot[holder].gpu[gpu].word);
    return mine;
}

void shm_hand_over(int device)
{
    int gpu = shm_place(device);
    emu_shm *s = shm();
    int me = shm_my_slot();
    emu_gpu *g = &s->gpu[gpu];
    int heir = -1;
    shm_lock(gpu);
    if (g->owner == me) {
        g->owner = -1;
        for (int i = 1; i <= EMU_SLOTS; i++) {
            int next = (me + i) % EMU_SLOTS;
            if (next == me || !s->slot[next].pid || !atomic_load(&s->slot[next].gpu[gpu].wants))
                continue;
            take(g, heir = next, gpu);
            break;
        }
    }
    shm_unlock(gpu);
    if (heir >= 0)
        shm_wake(&s->slot[heir].gpu[gpu].word);
}

void shm_busy(int device, uint64_t from_ns, uint64_t ns)
{
    int gpu = shm_place(device);
    emu_shm *s = shm();
    emu_gpu *g = &s->gpu[gpu];
    shm_lock(gpu);
    if (g->owner != shm_my_slot()) { /* it was taken away meanwhile */
        shm_unlock(gpu);
        return;
    }
    g->clock_ns = from_ns + ns;
    g->busy_ns += ns;
    emu_share *mine = &s->slot[shm_my_slot()].gpu[gpu];
    if (!mine->mark_ns)
        mine->mark_ns = from_ns;
    mine->busy_ns += ns;
    uint32_t last = (g->sample_at + EMU_SAMPLES - 1) % EMU_SAMPLES;
    if (g->clock_ns - g->sample_ns[last] >= EMU_SAMPLE_NS) {
        g->sample_ns[g->sample_at] = g->clock_ns;
        g->sample_busy[g->sample_at] = g->busy_ns;
        g->sample_at = (g->sample_at + 1) % EMU_SAMPLES;
    }
    shm_unlock(gpu);
}

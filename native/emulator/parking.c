/* parking.c: cuCheckpointProcess...: another process's device memory leaves the GPU and comes back.
 *
 * All of it is in engine.shm, so the target runs no thread for it: its calls count themselves there, and wait where they
 * find that it is locked. Device memory is host memory here already, so nothing is copied: what is moved is the charge,
 * and the caller spends the time that the link takes. A process whose caller was killed meanwhile is in the state that
 * the call leads to.
 *
 * A process that is restored onto another GPU has its GPUs there from then on (shm_where), also for what it does later.
 *
 * As the driver does it: a restore that finds no memory leaves the process lost (NVIDIA/cuda-checkpoint#44), unified memory
 * and memory that processes share are refused at the checkpoint, and the process is not in a good state then.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "emu.h"
#include "shm.h"

#define LANE_BYTES_S 246250000ull /* of the first generation, 8b/10b; each doubles it, from the third on nearly */
#define POLL_NS 200000
enum { RUNNING, LOCKED, CHECKPOINTED, FAILED, CHECKPOINTING, RESTORING };
enum { CU_OS_ERROR = 304, CU_ILLEGAL_STATE = 401 };
typedef struct {
    unsigned timeout_ms, reserved0;
    uint64_t reserved1[7];
} lock_args;
typedef struct {
    const struct { unsigned char before[16], after[16]; } *pairs;
    unsigned count;
} restore_args;
static emu_parking *mine;

void emu_parking_begin(void)
{
    mine = &shm_open_engine()->slot[shm_my_slot()].parking;
    mine->driver = true;
    emu_call_count_in(mine->calls);
}

void emu_parking_forget(void)
{
    mine = NULL;
    emu_call_count_in(NULL);
}

bool emu_parking_locked(void) { return mine && (atomic_load(&mine->gate) & 1); }

void emu_parking_wait(void)
{
    uint32_t seen = atomic_load(&mine->gate);
    if (seen & 1)
        shm_sleep(&mine->gate, seen, emu_now() + 1000000000ull);
}

/* With emu_lock, which alone keeps two threads apart: other processes only read it. */
void emu_parking_busy(int change)
{
    if (mine)
        atomic_store_explicit(&mine->busy, atomic_load_explicit(&mine->busy, memory_order_relaxed) + change,
                              memory_order_release);
}

void emu_parking_shared(int change)
{
    if (mine)
        atomic_fetch_add(&mine->shared, change);
}

static void nap(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    nanosleep(&t, NULL);
}

/* The process's slot, or what the call answers. */
static CUresult target(int pid, int *slot)
{
    if (!emu_ready())
        return emu_torn_down ? CU_DEINITIALIZED : CU_NOT_INITIALIZED;
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH))
        return CU_INVALID;
    if (kill(pid, 0) != 0)
        return CU_OS_ERROR; /* another user's */
    emu_shm *s = shm_open_engine();
    for (int i = 0; i < s->slots; i++)
        if (s->slot[i].parking.driver && s->slot[i].pid && shm_pid(i) == pid) {
            *slot = i;
            return CU_OK;
        }
    return CU_NOT_INITIALIZED;
}

static emu_parking *parking_of(int slot) { return &shm_open_engine()->slot[slot].parking; }

/* From one state into another, unless another caller was first. */
static bool turn(emu_parking *p, uint32_t from, uint32_t to)
{
    return atomic_compare_exchange_strong(&p->state, &from, to);
}

static void spend(emu_parking *p, uint64_t bytes)
{
    int gen = emu_conf()->pcie_gen;
    uint64_t rate = ((LANE_BYTES_S * (gen > 2 ? 4 : 1)) << (gen > 2 ? gen - 3 : gen - 1)) *
                    (unsigned)emu_conf()->pcie_width;
    uint64_t until = emu_now() + bytes * 1000 / (rate / 1000000ull);
    atomic_store(&p->until_ns, until);
    for (uint64_t now; (now = emu_now()) < until;)
        nap(until - now);
}

API CUresult cuCheckpointProcessGetState(int pid, int *state)
{
    int slot;
    CUresult r = target(pid, &slot);
    if (r || !state)
        return r ? r : CU_INVALID;
    emu_parking *p = parking_of(slot);
    uint32_t now = atomic_load(&p->state);
    bool moving = emu_now() < atomic_load(&p->until_ns);
    *state = moving && now == CHECKPOINTED ? CHECKPOINTING : moving && now == LOCKED ? RESTORING : (int)now;
    return CU_OK;
}

API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    int slot;
    CUresult r = target(pid, &slot);
    if (r || !tid)
        return r ? r : CU_INVALID;
    *tid = pid;
    return CU_OK;
}

static void unlock(emu_parking *p)
{
    atomic_fetch_and(&p->gate, ~1u);
    shm_wake_all(&p->gate);
}

API CUresult cuCheckpointProcessLock(int pid, const lock_args *args)
{
    int slot;
    CUresult r = target(pid, &slot);
    if (r)
        return r;
    emu_parking *p = parking_of(slot);
    if (!turn(p, RUNNING, LOCKED))
        return CU_ILLEGAL_STATE;
    uint64_t until = args && args->timeout_ms ? emu_now() + args->timeout_ms * 1000000ull : UINT64_MAX;
    atomic_fetch_or(&p->gate, 1u);
    while (atomic_load(&p->calls[0]) || atomic_load(&p->calls[1]) || atomic_load(&p->busy)) {
        bool gone = shm_pid(slot) != pid;
        if (gone || emu_now() >= until) {
            turn(p, LOCKED, RUNNING);
            unlock(p);
            return gone ? CU_INVALID : CU_NOT_READY;
        }
        nap(POLL_NS);
    }
    return CU_OK;
}

API CUresult cuCheckpointProcessCheckpoint(int pid, const void *args)
{
    int slot;
    uint64_t bytes = 0;
    CUresult r = target(pid, &slot);
    if (r)
        return r;
    emu_parking *p = parking_of(slot);
    if (atomic_load(&p->shared) > 0)
        return turn(p, LOCKED, FAILED) ? CU_NOT_SUPPORTED : CU_ILLEGAL_STATE;
    if (!turn(p, LOCKED, CHECKPOINTED))
        return CU_ILLEGAL_STATE;
    for (int i = 0; i < EMU_GPUS; i++) {
        int g = p->from[i] = shm_where(slot, i);
        emu_share *share = &shm_open_engine()->slot[slot].gpu[g];
        emu_gpu *gpu = &shm_open_engine()->gpu[g];
        shm_lock(g);
        p->saved[i] = share->used;
        p->contexts[i] = share->contexts;
        gpu->used -= share->used;
        share->used = 0;
        share->contexts = 0;
        atomic_store(&share->wants, 0);
        if (gpu->owner == slot)
            gpu->owner = -1;
        shm_unlock(g);
        bytes += p->saved[i];
    }
    spend(p, bytes);
    return CU_OK;
}

/* All of it, or none: is there room on a GPU? */
static bool charge_again(emu_parking *p, int slot, int i, uint64_t *bytes)
{
    int g = shm_where(slot, i);
    emu_share *share = &shm_open_engine()->slot[slot].gpu[g];
    emu_gpu *gpu = &shm_open_engine()->gpu[g];
    shm_lock(g);
    bool fits = gpu->used + p->saved[i] <= emu_conf()->memory;
    if (fits) {
        gpu->used += p->saved[i];
        share->used += p->saved[i];
        share->contexts += p->contexts[i];
        *bytes += p->saved[i];
        p->saved[i] = 0;
    }
    shm_unlock(g);
    return fits;
}

static int numbered(const unsigned char uuid[16])
{
    for (int g = 0; g < emu_conf()->machine; g++)
        if (memcmp(emu_conf()->all[g].uuid, uuid, 16) == 0)
            return g;
    return -1;
}

/* Where each GPU goes: all of the machine are named, each once as old and once as new, and go to one of the same chip. A
 * real driver, too, wants those that a process does not use, or has hidden from itself (NVIDIA/cuda-python#1983). */
static bool mapped(const restore_args *args, int to[EMU_GPUS])
{
    unsigned old = 0, new = 0;
    for (unsigned i = 0; i < args->count; i++) {
        int from = numbered(args->pairs[i].before), at = numbered(args->pairs[i].after);
        if (from < 0 || at < 0 || strcmp(emu_conf()->all[from].model, emu_conf()->all[at].model) != 0)
            return false;
        old |= 1u << from;
        new |= 1u << at;
        to[from] = at;
    }
    unsigned all = (1u << emu_conf()->machine) - 1;
    return old == all && new == all && args->count == (unsigned)emu_conf()->machine;
}

API CUresult cuCheckpointProcessRestore(int pid, const restore_args *args)
{
    int slot;
    uint64_t bytes = 0;
    CUresult r = target(pid, &slot);
    if (r)
        return r;
    emu_parking *p = parking_of(slot);
    int to[EMU_GPUS];
    for (int g = 0; g < EMU_GPUS; g++)
        to[g] = g;
    if (args && args->count && (emu_conf()->cuda_version < 13000 || !mapped(args, to)))
        return CU_INVALID;
    if (atomic_load(&p->state) == CHECKPOINTED && p->lost)
        return CU_OS_ERROR;
    if (atomic_load(&p->state) != CHECKPOINTED)
        return CU_ILLEGAL_STATE;
    shm_sweep();
    for (int i = 0; i < EMU_GPUS; i++) {
        atomic_store(&p->moved[i], to[p->from[i]] + 1);
        shm_wake(&shm_open_engine()->slot[slot].gpu[p->from[i]].word); /* its thread sleeps on another from now on */
        if (p->saved[i] && !charge_again(p, slot, i, &bytes)) {
            p->lost = true;
            return CU_OOM;
        }
    }
    if (!turn(p, CHECKPOINTED, LOCKED)) /* last: a caller that is killed before it leaves the rest to the next one */
        return CU_ILLEGAL_STATE;
    spend(p, bytes);
    return CU_OK;
}

API CUresult cuCheckpointProcessUnlock(int pid, const void *args)
{
    int slot;
    CUresult r = target(pid, &slot);
    if (r)
        return r;
    emu_parking *p = parking_of(slot);
    if (!turn(p, LOCKED, RUNNING))
        return CU_ILLEGAL_STATE;
    unlock(p);
    return CU_OK;
}

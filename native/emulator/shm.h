/* shm.h: engine.shm, the one state that all processes of an emulated machine share. */
#ifndef EMU_SHM_H
#define EMU_SHM_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "config.h"
#define EMU_SLOTS 256
#define EMU_SHARED 512
#define EMU_TOLD 16
#define EMU_SAMPLES 64
#define EMU_SAMPLE_NS 100000000ull

typedef struct {
    _Atomic uint32_t word;       /* the process's scheduler for this GPU sleeps here */
    _Atomic uint32_t wants;      /* it has runnable work and waits for the GPU */
    uint64_t used, busy_ns;      /* bytes and nanoseconds charged to this process on this GPU */
    uint64_t busy_mark, mark_ns; /* busy_ns at the last sample, for per-process utilisation */
    int contexts;
} emu_share;
/* What other processes do to this one by cuCheckpointProcess... (parking.c). */
typedef struct {
    bool driver, lost;            /* lost: a restore found no memory */
    _Atomic uint32_t state, gate; /* gate: odd while calls wait */
    _Atomic long calls[2];        /* under way, by phase (call.c) */
    _Atomic int busy, shared;     /* streams with work; what cannot be moved */
    _Atomic uint64_t until_ns;    /* what was begun takes until then */
    uint64_t saved[EMU_GPUS];     /* bytes, by the GPU that it was begun on, as what follows */
    int contexts[EMU_GPUS];
    int from[EMU_GPUS];          /* where it was when it was checkpointed */
    _Atomic int moved[EMU_GPUS]; /* where it is now, from 1; 0: where it was begun */
} emu_parking;
typedef struct {
    int32_t pid;
    uint64_t space; /* the PID namespace that pid is of; containers have the same pids */
    emu_share gpu[EMU_GPUS];
    emu_parking parking;
} emu_slot;
typedef struct {
    pthread_mutex_t lock; /* robust, process-shared */
    int32_t owner;        /* slot that runs, or -1 */
    uint64_t clock_ns;    /* GPU time is used up to here */
    uint64_t slice_start_ns, slice_end_ns, want_ns;
    uint64_t busy_ns;
    uint64_t sample_busy[EMU_SAMPLES], sample_ns[EMU_SAMPLES];
    uint32_t sample_at;
    uint64_t used;
} emu_gpu;
/* Physical memory that more than one process may hold: charged to one of them, the payer. */
typedef struct {
    uint64_t inode, bytes; /* inode: of its memfd; 0: a free place */
    int32_t gpu, payer;
    uint32_t holders[EMU_SLOTS / 32];
} emu_shared;
typedef struct {
    _Atomic uint32_t magic;
    uint32_t version;
    int32_t slots; /* one past the highest slot ever taken */
    emu_gpu gpu[EMU_GPUS];
    emu_slot slot[EMU_SLOTS];
    pthread_mutex_t shared_lock; /* robust; guards what follows; taken before a GPU's */
    struct {
        uint64_t space;
        int32_t group;
    } told[EMU_TOLD]; /* process groups, the last ones (announce.c) */
    uint32_t next_told;
    emu_shared shared[EMU_SHARED];
} emu_shm;

emu_shm *shm_open_engine(void);
int shm_my_slot(void);
int shm_pid(int slot);
uint64_t shm_pid_space(void);
void shm_forget(void); /* in a forked child */
void shm_sweep(void);
void shm_sweep_sometimes(void); /* at most every 10 ms */
int shm_charge(int device, uint64_t bytes);
void shm_release(int device, uint64_t bytes);
void shm_memory(int device, uint64_t *total, uint64_t *free_bytes);
bool shm_share(uint64_t inode, int device, uint64_t bytes); /* memory that this process has charged is exported */
int shm_hold(uint64_t inode); /* it is imported: its device, or -1 where no process holds it or it is out of sight */
void shm_let_go(uint64_t inode);
void shm_heirs(int slot); /* of a slot whose process is gone, after its charges are cleared */
bool shm_acquire(int device);
bool shm_waiters(int device);
void shm_hand_over(int device);
void shm_busy(int device, uint64_t from_ns, uint64_t ns);
void shm_lock_robust(pthread_mutex_t *lock);
void shm_lock(int gpu);           /* gpu: as engine.shm counts; device: as this library does */
int shm_place(int device);        /* which GPU that is, now */
int shm_where(int slot, int gpu); /* where a process is that was begun on this one */
void shm_unlock(int gpu);
uint64_t shm_now(void);
int anonymous_file(const char *name); /* close-on-exec descriptor, or -1 */
void shm_wake(_Atomic uint32_t *word);
void shm_wake_all(_Atomic uint32_t *word); /* and leave it */
void shm_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns);
#endif

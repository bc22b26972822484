/* shm.c: attaching to engine.shm, which processes are alive, and the memory accounts of every GPU.
 *
 * A process owns one slot and holds a POSIX record lock on that slot's byte of the file: the kernel drops it however the
 * process ends, in any pid namespace, and a forked child does not inherit it. Each reader of the accounts sweeps slots
 * whose lock is gone, so memory of a killed process is free again at the next reading.
 */
#define _GNU_SOURCE
#include "shm.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x51494c41u
#define LOCK_INIT 100000
static emu_shm *shm;
static int shm_fd = -1, my_slot = -1;
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

/* The system call itself: glibc 2.17, which releases are built against, has no memfd_create. */
int anonymous_file(const char *name) { return (int)syscall(SYS_memfd_create, name, 1u /* MFD_CLOEXEC */); }

uint64_t shm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void shm_wake_all(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

void shm_wake(_Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    shm_wake_all(word);
}

void shm_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    struct timespec t = {(time_t)(until_ns / 1000000000ull), (long)(until_ns % 1000000000ull)};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, &t, NULL, FUTEX_BITSET_MATCH_ANY);
}

static int record_lock(int command, int type, off_t byte)
{
    struct flock l = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(shm_fd, command, &l);
}

static void format(emu_shm *s)
{
    pthread_mutexattr_t a;
    memset(s, 0, sizeof *s);
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < EMU_GPUS; i++) {
        pthread_mutex_init(&s->gpu[i].lock, &a);
        s->gpu[i].owner = -1;
    }
    pthread_mutex_init(&s->shared_lock, &a);
    s->version = sizeof *s;
    atomic_store(&s->magic, MAGIC);
}

emu_shm *shm_open_engine(void)
{
    char path[512];
    emu_shm *open_already = __atomic_load_n(&shm, __ATOMIC_ACQUIRE);
    if (open_already)
        return open_already;
    pthread_mutex_lock(&attach_lock);
    if (!shm) {
        emu_shm *s = NULL;
        snprintf(path, sizeof path, "%s/engine.shm", emu_conf()->directory);
        shm_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (shm_fd >= 0 && record_lock(F_SETLKW, F_WRLCK, LOCK_INIT) == 0) {
            struct stat st;
            fchmod(shm_fd, 0666); /* whatever the umask: tenants may be other users; refused when not ours */
            bool sized = fstat(shm_fd, &st) == 0 && st.st_size >= (off_t)sizeof *shm;
            if (sized || ftruncate(shm_fd, sizeof *shm) == 0)
                s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, shm_fd, 0);
            if (s == MAP_FAILED)
                s = NULL;
            if (s && (atomic_load(&s->magic) != MAGIC || s->version != sizeof *s))
                format(s);
            record_lock(F_SETLK, F_UNLCK, LOCK_INIT);
            __atomic_store_n(&shm, s, __ATOMIC_RELEASE);
        }
        if (!shm && shm_fd >= 0)
            close(shm_fd); /* the next call tries again */
    }
    pthread_mutex_unlock(&attach_lock);
    return shm;
}

uint64_t shm_pid_space(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

int shm_my_slot(void)
{
    if (my_slot >= 0 || !shm_open_engine())
        return my_slot;
    pthread_mutex_lock(&attach_lock);
    for (int i = 0; i < EMU_SLOTS && my_slot < 0; i++) {
        if (record_lock(F_SETLK, F_WRLCK, i) != 0)
            continue;
        for (int g = 0; g < EMU_GPUS; g++) {
            shm_lock(g);
            shm->gpu[g].used -= shm->slot[i].gpu[g].used;
            memset(&shm->slot[i].gpu[g], 0, sizeof(emu_share));
            shm_unlock(g);
        }
        shm_heirs(i);
        memset(&shm->slot[i].parking, 0, sizeof shm->slot[i].parking);
        shm->slot[i].pid = getpid();
        shm->slot[i].space = shm_pid_space();
        if (shm->slots < i + 1)
            shm->slots = i + 1;
        my_slot = i;
    }
    pthread_mutex_unlock(&attach_lock);
    return my_slot;
}

void shm_forget(void) { my_slot = -1; }

/* The slot's process as the caller's PID namespace numbers it, which the kernel reports of a lock's holder. 0: it is gone;
 * -1: it lives where the caller does not see it. */
int shm_pid(int slot)
{
    /* A process's own lock is no conflict to itself, and both twins may live in one process. */
    if (slot == my_slot || (shm->slot[slot].pid == getpid() && shm->slot[slot].space == shm_pid_space()))
        return getpid();
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (fcntl(shm_fd, F_GETLK, &l) != 0 || l.l_type == F_UNLCK)
        return 0;
    return l.l_pid > 0 ? l.l_pid : -1;
}

static bool alive(int slot) { return shm_pid(slot) != 0; }

void shm_lock_robust(pthread_mutex_t *lock)
{
    if (pthread_mutex_lock(lock) == EOWNERDEAD)
        pthread_mutex_consistent(lock);
}

void shm_lock(int gpu) { shm_lock_robust(&shm->gpu[gpu].lock); }

void shm_unlock(int gpu) { pthread_mutex_unlock(&shm->gpu[gpu].lock); }

int shm_where(int slot, int gpu)
{
    int moved = atomic_load(&shm->slot[slot].parking.moved[gpu]);
    return moved ? moved - 1 : gpu;
}

int shm_place(int device)
{
    int gpu = emu_conf()->place[device];
    return my_slot < 0 ? gpu : shm_where(my_slot, gpu);
}

void shm_sweep(void)
{
    for (int i = 0; i < shm->slots; i++) {
        if (shm->slot[i].pid == 0 || alive(i))
            continue;
        for (int g = 0; g < EMU_GPUS; g++) {
            shm_lock(g);
            shm->gpu[g].used -= shm->slot[i].gpu[g].used;
            if (shm->gpu[g].owner == i)
                shm->gpu[g].owner = -1;
            memset(&shm->slot[i].gpu[g], 0, sizeof(emu_share));
            shm_unlock(g);
        }
        shm_heirs(i);
        shm->slot[i].pid = 0;
    }
}

void shm_sweep_sometimes(void)
{
    static _Atomic uint64_t last;
    uint64_t now = shm_now(), before = atomic_load(&last);
    if (now - before > 10000000ull && atomic_compare_exchange_strong(&last, &before, now))
        shm_sweep();
}

int shm_charge(int device, uint64_t bytes)
{
    int gpu = shm_place(device);
    int slot = shm_my_slot();
    if (slot < 0)
        return -1;
    for (int attempt = 0; attempt < 2; attempt++) {
        shm_lock(gpu);
        bool fits = shm->gpu[gpu].used + bytes <= emu_conf()->memory;
        if (fits) {
            shm->gpu[gpu].used += bytes;
            shm->slot[slot].gpu[gpu].used += bytes;
        }
        shm_unlock(gpu);
        if (fits)
            return 0;
        shm_sweep();
    }
    return -1;
}

void shm_release(int device, uint64_t bytes)
{
    int gpu = shm_place(device);
    int slot = shm_my_slot();
    if (slot < 0)
        return;
    shm_lock(gpu);
    if (bytes > shm->slot[slot].gpu[gpu].used)
        bytes = shm->slot[slot].gpu[gpu].used;
    shm->gpu[gpu].used -= bytes;
    shm->slot[slot].gpu[gpu].used -= bytes;
    shm_unlock(gpu);
}

void shm_memory(int device, uint64_t *total, uint64_t *free_bytes)
{
    int gpu = shm_place(device);
    *total = emu_conf()->memory;
    *free_bytes = *total;
    if (!shm_open_engine())
        return;
    shm_sweep();
    shm_lock(gpu);
    *free_bytes = *total - shm->gpu[gpu].used;
    shm_unlock(gpu);
}

/* share.c: memory that leaves the process as a file descriptor or a fabric handle and comes back by it.
 *
 * A descriptor keeps the memory too. The file behind it is known again by its inode, or, where all have one inode as
 * those of a device node do, by being the same open file: a property of it that is set through one descriptor shows
 * through the other. We keep a descriptor of our own to compare with, and close it when nothing else here needs the
 * memory; it is the program's to close too, so the file is compared before it is used. Descriptors that other processes
 * or sockets hold are not seen; what is imported there is charged there.
 */
#include "memory/vmm.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define FABRIC_BYTES 64
#define SHARES 1024
#define DESCRIPTORS_MOST (1u << 20) /* the kernel's own bound, unless it was raised */

struct share {
    uint64_t object; /* 0: free */
    int type, fd;
    int shown;  /* the descriptor that the program had of it first */
    bool alone; /* no handle and no mapping is left */
    bool seen;  /* when it was last looked at, the program had it open */
    dev_t device;
    ino_t inode;
    unsigned char fabric[FABRIC_BYTES];
};

static struct share *shares;
static unsigned highest;
_Atomic bool shares_are_kept; /* written with the lock held */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The signal that a file would be announced by is a property of the open file, and of no effect without O_ASYNC. */
static bool same_open_file(int a, int b)
{
    int before = fcntl(a, F_GETSIG), same = 1;
    for (int probe = 40; same && probe < 42; probe++)
        same = fcntl(a, F_SETSIG, probe) == 0 && fcntl(b, F_GETSIG) == probe;
    if (before >= 0)
        fcntl(a, F_SETSIG, before);
    return same;
}

static bool same_memory(const struct share *share, int fd, const struct stat *facts)
{
    if (facts->st_dev != share->device || facts->st_ino != share->inode)
        return false;
    return S_ISREG(facts->st_mode) || same_open_file(share->fd, fd);
}

/* The descriptor of ours; -1: the program has closed it, and its number may be another file's. */
static int own_descriptor(const struct share *share)
{
    struct stat facts;
    bool ours = share->fd >= 0 && fstat(share->fd, &facts) == 0 && facts.st_dev == share->device &&
                facts.st_ino == share->inode;
    return ours ? share->fd : -1;
}

static bool matches(const struct share *share, const void *shared, int type, const struct stat *facts)
{
    if (!share->object || share->type != type)
        return false;
    return type == SHARE_FD ? same_memory(share, (int)(intptr_t)shared, facts)
                            : memcmp(share->fabric, shared, FABRIC_BYTES) == 0;
}

static struct share *find(const void *shared, int type)
{
    struct stat facts;
    if (type == SHARE_FD && fstat((int)(intptr_t)shared, &facts) != 0)
        return NULL;
    for (unsigned i = 0; i < highest; i++)
        if (matches(&shares[i], shared, type, &facts))
            return &shares[i];
    return NULL;
}

uint64_t object_of(uint64_t handle)
{
    struct ledger_entry entry;
    return ledger_get(LEDGER_VMM, handle, &entry) ? entry.other : 0;
}

bool object_hold(uint64_t object)
{
    struct ledger_entry entry;
    return object && ledger_change(LEDGER_OBJECT, object, 1, 0, &entry) != LEDGER_NONE;
}

void handle_enter(uint64_t handle, uint64_t object)
{
    ledger_join((struct ledger_entry){.kind = LEDGER_VMM, .key = handle, .other = object, .refs = 1});
}

static bool known_type(int type) { return type == SHARE_FD || type == SHARE_FABRIC; }

/* With the lock held: nothing else holds the object from now on, or something does again. True: it was otherwise. */
static bool leave_alone(uint64_t object, bool alone)
{
    bool changed = false;
    for (unsigned i = 0; i < highest; i++)
        if (shares[i].object == object && shares[i].type == SHARE_FD && shares[i].alone != alone) {
            shares[i].alone = alone;
            changed = true;
        }
    return changed;
}

uint64_t shared_object(const void *shared, int type)
{
    if (!known_type(type))
        return 0;
    pthread_mutex_lock(&lock);
    struct share *share = find(shared, type);
    uint64_t object = share && object_hold(share->object) ? share->object : 0;
    bool alone = object && leave_alone(object, false);
    pthread_mutex_unlock(&lock);
    if (alone)
        object_drop(object); /* the reference that the descriptor had */
    return object;
}

static struct share *place(void)
{
    void *pages = shares
                      ? NULL
                      : mmap(NULL, SHARES * sizeof *shares, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    if (pages)
        shares = pages;
    for (unsigned i = 0; i < highest; i++)
        if (!shares[i].object)
            return &shares[i];
    return highest < SHARES ? &shares[highest++] : NULL;
}

int shared_note(uint64_t object, const void *shared, int type)
{
    struct stat facts;
    int fd = -1;
    if (!known_type(type) || (type == SHARE_FD && fstat((int)(intptr_t)shared, &facts) != 0))
        return -1;
    pthread_mutex_lock(&lock);
    struct share *share = find(shared, type) ? NULL : place();
    if (share) {
        *share = (struct share){.object = object, .type = type, .fd = -1, .shown = -1};
        if (type == SHARE_FABRIC) {
            memcpy(share->fabric, shared, FABRIC_BYTES);
        } else {
            share->shown = (int)(intptr_t)shared;
            fd = share->fd = fcntl((int)(intptr_t)shared, F_DUPFD_CLOEXEC, 3);
            share->device = facts.st_dev;
            share->inode = facts.st_ino;
        }
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

int shared_descriptor(uint64_t object)
{
    int fd = -1;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < highest && fd < 0; i++)
        if (shares[i].object == object && shares[i].type == SHARE_FD)
            fd = own_descriptor(&shares[i]);
    pthread_mutex_unlock(&lock);
    return fd;
}

static void see(int fd, const struct stat *facts)
{
    for (unsigned i = 0; i < highest; i++)
        if (shares[i].object && shares[i].fd == fd && own_descriptor(&shares[i]) == fd)
            return;
    for (unsigned i = 0; i < highest; i++)
        if (!shares[i].seen)
            shares[i].seen = matches(&shares[i], (void *)(intptr_t)fd, SHARE_FD, facts);
}

/* Without /proc, or without a descriptor for it, the kernel says which numbers are open. */
static void see_every_number(void)
{
    struct stat facts;
    struct pollfd some[64];
    struct rlimit limit = {.rlim_max = DESCRIPTORS_MOST};
    getrlimit(RLIMIT_NOFILE, &limit);
    for (unsigned first = 0; first < limit.rlim_max && first < DESCRIPTORS_MOST; first += 64) {
        for (unsigned i = 0; i < 64; i++)
            some[i] = (struct pollfd){.fd = (int)(first + i)};
        bool told = poll(some, 64, 0) >= 0;
        for (unsigned i = 0; i < 64; i++)
            if ((!told || !(some[i].revents & POLLNVAL)) && fstat(some[i].fd, &facts) == 0)
                see(some[i].fd, &facts);
    }
}

/* Which of what was shown does this process have open, by any descriptor but our own? Those that it had first are looked
 * at first, and rarely are there others. Other threads open and close descriptors meanwhile, so the files are asked for by
 * their names in /proc. */
static void look(void)
{
    bool all = true;
    struct stat facts;
    for (unsigned i = 0; i < highest; i++) {
        char name[32];
        snprintf(name, sizeof name, "/proc/self/fd/%d", shares[i].shown);
        shares[i].seen = shares[i].type == SHARE_FD && stat(name, &facts) == 0 &&
                         matches(&shares[i], (void *)(intptr_t)shares[i].shown, SHARE_FD, &facts);
        all &= shares[i].seen || !shares[i].object || !shares[i].alone;
    }
    DIR *names = all ? NULL : opendir("/proc/self/fd");
    for (struct dirent *one; names && (one = readdir(names));)
        if (one->d_name[0] != '.' && atoi(one->d_name) != dirfd(names) &&
            fstatat(dirfd(names), one->d_name, &facts, 0) == 0)
            see(atoi(one->d_name), &facts);
    if (names)
        closedir(names);
    else if (!all)
        see_every_number();
}

static void forget(uint64_t object)
{
    for (unsigned i = 0; i < highest; i++)
        if (shares[i].object == object) {
            int fd = own_descriptor(&shares[i]);
            if (fd >= 0)
                close(fd);
            shares[i].object = 0;
        }
}

static bool seen(uint64_t object)
{
    for (unsigned i = 0; i < highest; i++)
        if (shares[i].object == object && shares[i].seen)
            return true;
    return false;
}

bool shared_keeps(struct ledger_entry object)
{
    pthread_mutex_lock(&lock);
    if (leave_alone(object.key, true))
        look();
    bool keeps = seen(object.key);
    object.refs = 1;
    if (keeps) {
        ledger_put(object, NULL); /* before another thread may find the descriptors closed */
        shares_are_kept = true;
    } else {
        forget(object.key);
    }
    pthread_mutex_unlock(&lock);
    if (keeps)
        reclaim_later(); /* to be looked at again */
    return keeps;
}

void object_drop(uint64_t object)
{
    struct ledger_entry entry;
    if (!object || ledger_change(LEDGER_OBJECT, object, -1, 0, &entry) != LEDGER_GONE)
        return;
    if (shared_keeps(entry))
        return;
    if (entry.page)
        memory_unshare(entry.slot, entry.page);
    else
        memory_release(entry.slot, entry.bytes);
}

/* One that is kept by descriptors and has none left; 0: none. With the lock held, after look(). */
static uint64_t ended(bool *some)
{
    *some = false;
    for (unsigned i = 0; i < highest; i++)
        if (shares[i].object && shares[i].alone) {
            if (!seen(shares[i].object))
                return shares[i].object;
            *some = true;
        }
    return 0;
}

void shared_reclaim(void)
{
    uint64_t object;
    bool some, first = true;
    do {
        pthread_mutex_lock(&lock);
        object = ended(&some);
        if (first && (object || some)) {
            look();
            object = ended(&some);
        }
        first = false;
        if (object)
            forget(object);
        else
            shares_are_kept = some;
        pthread_mutex_unlock(&lock);
        object_drop(object);
    } while (object);
}

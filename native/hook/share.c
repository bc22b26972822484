/* share.c: memory that leaves the process as a file descriptor or a fabric handle and comes back by it.
 *
 * A descriptor keeps the memory too. The file behind it is known again by its inode, or, where all have one inode as
 * those of a device node do, by being the same open file: a property of it that is set through one descriptor shows
 * through the other. We keep a descriptor of our own to compare with, and close it when nothing else here needs the
 * memory. Descriptors that other processes or sockets hold are not seen; what is imported there is charged there.
 */
#include "vmm.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define FABRIC_BYTES 64
#define SHARES 1024

struct share {
    uint64_t object; /* 0: free */
    int type, fd;
    bool alone; /* no handle and no mapping is left */
    dev_t device;
    ino_t inode;
    unsigned char fabric[FABRIC_BYTES];
};

static struct share *shares;
static unsigned highest;
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

static bool known_type(int type)
{
    return type == SHARE_FD || type == SHARE_FABRIC;
}

uint64_t shared_object(const void *shared, int type)
{
    if (!known_type(type))
        return 0;
    pthread_mutex_lock(&lock);
    struct share *share = find(shared, type);
    uint64_t object = share && object_hold(share->object) ? share->object : 0;
    for (unsigned i = 0; object && i < highest; i++)
        if (shares[i].object == object && shares[i].alone) {
            shares[i].alone = false;
            object_drop(object); /* the reference that the descriptor had */
        }
    pthread_mutex_unlock(&lock);
    return object;
}

static struct share *place(void)
{
    void *pages = shares ? NULL : mmap(NULL, SHARES * sizeof *shares, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
        *share = (struct share){.object = object, .type = type, .fd = -1};
        if (type == SHARE_FABRIC) {
            memcpy(share->fabric, shared, FABRIC_BYTES);
        } else {
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
            fd = shares[i].fd;
    pthread_mutex_unlock(&lock);
    return fd;
}

/* Is another descriptor of this process open on the same file? Each is looked at by its name: other threads open and close
 * theirs meanwhile, and what a number names may change. */
static bool open_elsewhere(const struct share *share)
{
    DIR *all = opendir("/proc/self/fd");
    bool found = !all; /* what cannot be looked at counts as open: nothing is given back that is in use */
    for (struct dirent *one; all && !found && (one = readdir(all));) {
        int fd = atoi(one->d_name);
        struct stat facts;
        bool ours = one->d_name[0] == '.' || fd == share->fd || fd == dirfd(all);
        for (unsigned i = 0; !ours && i < highest; i++)
            ours = shares[i].object && shares[i].type == SHARE_FD && shares[i].fd == fd;
        found = !ours && fstatat(dirfd(all), one->d_name, &facts, 0) == 0 && same_memory(share, fd, &facts);
    }
    if (all)
        closedir(all);
    return found;
}

static void forget(uint64_t object)
{
    for (unsigned i = 0; i < highest; i++)
        if (shares[i].object == object) {
            if (shares[i].fd >= 0)
                close(shares[i].fd);
            shares[i].object = 0;
        }
}

bool shared_keeps(uint64_t object)
{
    bool keeps = false;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < highest && !keeps; i++)
        if (shares[i].object == object && shares[i].type == SHARE_FD && open_elsewhere(&shares[i]))
            keeps = shares[i].alone = true;
    if (!keeps)
        forget(object);
    pthread_mutex_unlock(&lock);
    if (keeps)
        pools_freed(); /* to be looked at again */
    return keeps;
}

bool shared_reclaim(void)
{
    uint64_t ended[64];
    unsigned count = 0;
    bool some = false;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < highest && count < 64; i++)
        if (shares[i].object && shares[i].alone) {
            shares[i].alone = open_elsewhere(&shares[i]);
            some |= shares[i].alone;
            if (!shares[i].alone)
                ended[count++] = shares[i].object;
        }
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < count; i++)
        object_drop(ended[i]);
    return some;
}

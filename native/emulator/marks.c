/* marks.c: the records of an event that processes share, in a page that they all map.
 *
 * A wait is for the record that was the last when it was asked for, in whichever process that was. So the page says of
 * each of the last records when it was complete; one that so many came after counts as complete.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>
#include "emu.h"
#include "shm.h"

#define PAGE 4096
#define KEPT 128
typedef struct emu_marks {
    _Atomic uint64_t last;
    struct { _Atomic uint64_t seq, time_ns; } at[KEPT];
} marks;
_Static_assert(sizeof(marks) <= PAGE, "a page");

CUresult emu_marks_map(CUevent e, int fd)
{
    void *page = fd >= 0 ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (page == MAP_FAILED)
        return CU_OOM;
    e->shared = page;
    e->fd = fd;
    return CU_OK;
}

/* With emu_lock. The last record of before is the first of the page. */
CUresult emu_marks_new(CUevent e)
{
    int fd = anonymous_file("emulated-gpu-event");
    CUresult r = fd >= 0 && ftruncate(fd, PAGE) == 0 ? emu_marks_map(e, fd) : CU_OOM;
    if (r) {
        if (fd >= 0)
            close(fd);
        return r;
    }
    if (e->last)
        e->last->seq = emu_marks_record(e->shared);
    if (e->last && e->last->done)
        emu_marks_complete(e->shared, e->last->seq, e->last->time_ns);
    return CU_OK;
}

void emu_marks_release(CUevent e)
{
    if (!e->shared)
        return;
    munmap(e->shared, PAGE);
    close(e->fd);
}

uint64_t emu_marks_record(marks *m)
{
    uint64_t seq = atomic_fetch_add(&m->last, 1) + 1; /* taken for pending until its place says otherwise */
    atomic_store(&m->at[seq % KEPT].time_ns, 0);
    atomic_store(&m->at[seq % KEPT].seq, seq);
    return seq;
}

uint64_t emu_marks_last(const marks *m) { return atomic_load(&m->last); }

void emu_marks_complete(marks *m, uint64_t seq, uint64_t at_ns)
{
    if (atomic_load(&m->at[seq % KEPT].seq) == seq)
        atomic_store(&m->at[seq % KEPT].time_ns, at_ns);
}

uint64_t emu_marks_time(const marks *m, uint64_t seq)
{
    uint64_t now = atomic_load(&m->at[seq % KEPT].seq);
    return now < seq ? 0 : now > seq ? 1 : atomic_load(&m->at[seq % KEPT].time_ns);
}

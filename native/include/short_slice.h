/* short_slice.h: lets a thread that works for microseconds at a time run soon after it wakes, without any right.
 *
 * From Linux 6.12 on a thread may ask for the length of its time slices (sched_setattr, `sched_runtime`; a tenth of a
 * millisecond at least). It gets no more of a processor for it, only sooner: of the threads that are owed time the one
 * whose slice would end first runs, and one that wakes with a shorter slice does not wait for the end of a longer one.
 * Earlier kernels ignore the wish, and where it is refused all stays as it was. Source: Linux,
 * Documentation/scheduler/sched-eevdf.rst.
 */
#ifndef ALIQUOT_SHORT_SLICE_H
#define ALIQUOT_SHORT_SLICE_H

#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHORT_SLICE_NS 100000u

/* Only the length of the slices changes: a thread that is not scheduled in the ordinary way keeps what it has. */
static inline void take_short_slices(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } wish = {0}; /* struct sched_attr in its first form, which some C libraries lack */
    if (syscall(SYS_sched_getattr, 0, &wish, sizeof wish, 0) != 0 || wish.policy != SCHED_OTHER)
        return;
    wish.size = sizeof wish;
    wish.runtime = SHORT_SLICE_NS;
    syscall(SYS_sched_setattr, 0, &wish, 0);
}

#endif

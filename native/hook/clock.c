/* clock.c: CLOCK_MONOTONIC, and the same moment on the time stamp counter.
 *
 * The counter is used only where the processor says it is invariant, and after it has been compared with the clock over
 * 10 ms; before that tsc_at() answers 0, which sends every launch over the slow path's vDSO clock.
 */
#include "hook.h"

#include <cpuid.h>
#include <x86intrin.h>

static _Atomic uint64_t tsc0, ns0;
static _Atomic int invariant; /* 0 unknown, 1 yes, 2 no */

uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool is_invariant(void)
{
    int known = atomic_load_explicit(&invariant, memory_order_relaxed);
    if (known == 0) {
        unsigned a = 0, b = 0, c = 0, d = 0;
        known = __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8)) ? 1 : 2;
        atomic_store(&invariant, known);
    }
    return known == 1;
}

uint64_t tsc_at(uint64_t deadline_ns)
{
    if (!is_invariant())
        return 0;
    uint64_t tsc = __rdtsc(), now = now_ns(), from = atomic_load(&ns0);
    if (from == 0) {
        atomic_store(&tsc0, tsc);
        atomic_store(&ns0, now);
        return 0;
    }
    if (now - from < 10000000u || deadline_ns <= now)
        return 0;
    double per_ns = (double)(tsc - atomic_load(&tsc0)) / (double)(now - from);
    uint64_t ahead = deadline_ns - now;
    if (ahead > 3600000000000u)
        ahead = 3600000000000u;
    return tsc + (uint64_t)((double)ahead * per_ns);
}

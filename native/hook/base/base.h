/* base.h: what every layer stands on: the process, its configuration, the driver's own functions, the clock.
 *
 * Holds the tenant's record (conf.c), the table of the driver's true entry points (real.c), counters, and what the hook
 * says on stderr (say.c). Knows no GPU, no arbiter, no thread but the caller's, and calls nothing above it.
 *
 * The layers, each a folder with one header and its part of `struct slot`; none calls one that stands further right:
 *
 *   base < link < token < work < memory < nvml < entry
 *
 * Where a lower layer has something to tell a higher one it calls through `aliquot_above` (link.h), a constant table that
 * entry/layers.c fills. `tools/native_layers.py` checks all of it in `make lint`.
 */
#ifndef ALIQUOT_BASE_H
#define ALIQUOT_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "aliquot_abi.h"
#include "base/cuda_api.h"
#include "gen/symbols.h"
#include "page_wake.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define MAX_SLOTS 32
#define PATH_BYTES 512

/* trampoline.h compares with 2. */
enum aliquot_mode { MODE_UNKNOWN = 0, MODE_PASS = 1, MODE_HELD = 2, MODE_BROKEN = 3 };

struct symbol_row {
    const char *name;
    void *hook; /* NULL: not intercepted */
};

struct version_row {
    const char *name; /* as asked of cuGetProcAddress */
    int version;
    int own_stream; /* 1: the per-thread default stream twin */
    int only_waits; /* 1: not intercepted, but for a tenant that is parked */
    int symbol;
};

struct conf {
    char tenant[128], socket[PATH_BYTES], libcuda[PATH_BYTES], libnvml[PATH_BYTES], cpus[256];
    uint64_t patience_ms; /* how long an allocation waits for an arbiter that is away; 0: the default */
};

struct counters {
    _Atomic uint64_t waits, passes, unknown, mapped, wants, returns, drains, reconnects, denied, bounded, disagreed,
        events, unbalanced, ungated_ns, stays; /* stays: bits of REPORT */
};
extern HIDDEN struct counters aliquot_counters;
extern HIDDEN _Atomic int aliquot_mode;
extern HIDDEN _Atomic(void (*)(void)) aliquot_parked; /* what calls wait by, NULL: they need not; token/park.c */
extern HIDDEN struct conf aliquot_conf;
extern HIDDEN void *aliquot_real[ALIQUOT_SYMBOL_COUNT];
extern HIDDEN const struct symbol_row aliquot_symbols[ALIQUOT_SYMBOL_COUNT];
extern HIDDEN const struct version_row aliquot_versions[];
extern HIDDEN void *(*aliquot_true_dlsym)(void *, const char *);
extern HIDDEN void *(*aliquot_true_dlvsym)(void *, const char *, const char *);

/* Entries change once, from the lazy stub to the function, and both may be called. */
#define REAL_AT(symbol, ...) ((CUresult (*)(__VA_ARGS__))__atomic_load_n(&aliquot_real[symbol], __ATOMIC_RELAXED))
#define REAL(symbol, ...) REAL_AT(SYM_##symbol, __VA_ARGS__)
#define COUNT(what) atomic_fetch_add_explicit(&aliquot_counters.what, 1, memory_order_relaxed)

/* Invariants, in builds for tests (-DALIQUOT_CHECKS=2). Level 1 costs a few loads at each change, level 2 walks a whole table.
 * A breach is one line on stderr and the end of the program; 0, a release, has none of it. */
#ifndef ALIQUOT_CHECKS
#define ALIQUOT_CHECKS 0
#endif
#define CHECK(level, valid)                                                                                            \
    do {                                                                                                               \
        if (ALIQUOT_CHECKS >= (level) && !(valid))                                                                     \
            say_broken(#valid, __func__);                                                                              \
    } while (0)

/* conf.c: reads the tenant's record once; returns the mode. */
int conf_load(void);
/* conf_path.c: where that record is. */
void conf_path(char path[PATH_BYTES]);
/* real.c */
void *real_library(bool nvml);
void *real_symbol(int symbol);
void *aliquot_resolve(long symbol);
bool real_is_nvml(const char *name);
void true_dl_find(void);
/* cpu.c */
void cpu_bind(void);
/* clock.c */
uint64_t now_ns(void);
/* say.c: one line on stderr, once: there is no arbiter. */
void say_unreached(void);
/* Likewise: the tenant has as many processes as it may. */
void say_crowded(unsigned most);
/* Likewise: the system refuses the hook a thread, or a handler of its own. */
enum refused { REFUSED_THREAD, REFUSED_FORK, REFUSED_EXIT, REFUSED_KEY };
void say_refused(enum refused what, int fault);
/* Ends the program: an invariant does not hold. */
void say_broken(const char *valid, const char *where);

/* From here to the end of the block this thread is not cancelled: it would take a lock along, or what it has charged. */
#define UNCANCELLED() __attribute__((cleanup(cancel_as_before), unused)) const int cancel_before = cancel_not_now()
static inline int cancel_not_now(void)
{
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cancel_as_before(const int *before) { pthread_setcancelstate(*before, NULL); }

/* Own driver calls on a thread of the program: invisible to captures. Takes and returns the mode to be restored. */
static inline int quietly(int mode)
{
    REAL(cuThreadExchangeStreamCaptureMode, int *)(&mode);
    return mode;
}

#endif

/* say.c: what the hook writes to the program's stderr: each line once, and nothing else.
 *
 * Nothing else explains why the program fails, or its neighbours wait. When each is said stands in fail.c.
 */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

void say_unreached(void)
{
    static _Atomic int said;
    if (!atomic_exchange(&said, 1))
        dprintf(STDERR_FILENO,
                "aliquot: no arbiter answers at %s; tenant %s has no share and no memory until one does\n",
                aliquot_conf.socket, aliquot_conf.tenant);
}

void say_crowded(unsigned most)
{
    static _Atomic int said;
    if (!atomic_exchange(&said, 1))
        dprintf(
            STDERR_FILENO,
            "aliquot: %u processes of tenant %s use its GPU, and no more may; process %d has no share and no memory until "
            "one of them ends\n",
            most, aliquot_conf.tenant, getpid());
}

void say_refused(enum refused what, int fault)
{
    static const struct {
        const char *tried, *without;
    } words[] = {
        [REFUSED_THREAD] = {"start a thread",
                            "its tenant gives the GPU back only when the program itself waits for its work, and "
                            "its neighbours wait until then; allow it more threads (ulimit -u, pids.max)"},
        [REFUSED_FORK] = {"watch for forks",
                          "a child that it forks disturbs it, unless it executes another program at once"},
        [REFUSED_EXIT] = {"watch for the end of the program",
                          "that may crash in the driver; its results are not concerned"},
        [REFUSED_KEY] = {"watch for the ends of threads", "memory of the hook's is lost with each thread that ends"},
    };
    static _Atomic int said[sizeof words / sizeof *words];
    char reason[128];
    if (!atomic_exchange(&said[what], 1))
        dprintf(STDERR_FILENO, "aliquot: cannot %s in process %d (%s): %s\n", words[what].tried, getpid(),
                strerror_r(fault, reason, sizeof reason), words[what].without);
}

#if ALIQUOT_CHECKS
void say_broken(const char *valid, const char *where)
{
    dprintf(STDERR_FILENO, "aliquot: %s does not hold at the end of %s\n", valid, where);
    __builtin_trap();
}
#endif

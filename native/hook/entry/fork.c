/* fork.c: the child of a fork has our memory but none of our threads.
 *
 * CUDA itself does not survive a fork; what must be right is that the child neither speaks on the parent's connection
 * nor waits for a lock that a lost thread held. Programs it executes start afresh.
 */
#include "entry/entry.h"
#include "work/own.h"

static void in_child(void)
{
    link_after_fork();
    ledger_clear();
    pools_after_fork();
    own_after_fork();
    thread_after_fork();
    captures_after_fork();
    abandoned_after_fork();
}

void fork_watch(void)
{
    static bool watching;
    int fault = watching ? 0 : pthread_atfork(NULL, NULL, in_child);
    watching = !fault;
    if (fault)
        say_refused(REFUSED_FORK, fault);
}

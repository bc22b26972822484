/* loop.c: the thread that hands a GPU over, so that no interpreter is in the way between an answer and the next grant.
 *
 * Two threads: the arbiter, which decides, and this loop, which carries out. A plan belongs to one of them at a time: to
 * the loop from `handover_arm` until it is carried out, void or taken back. The arbiter takes all plans back before it
 * acts on anything, so a plan never outlives the state that it was made for; one mutex, held for microseconds, is the
 * whole of the synchronisation. An event that was queued for an earlier plan is harmless: it makes the loop look at the
 * connection of the present plan once more.
 *
 * While a plan is in force the arbiter's epoll is deaf to the plan's connection. When the loop is done with it, the
 * messages that still lie there wake the arbiter: they are how it hears of the hand-over, after the next tenant has.
 */
#define _GNU_SOURCE
#include "handover.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEEK_OFF
#define SO_PEEK_OFF 42
#endif
#define STOP UINT32_MAX
#define EVENTS 16

struct armed {
    struct handover_plan plan;
    struct handover_progress seen;
    int in_force;
};

struct handover {
    pthread_mutex_t lock;
    pthread_t thread;
    int arbiter_epoll, epoll, stop;
    unsigned count, done_count;
    struct armed armed[HANDOVER_PLANS];
    struct handover_done done[HANDOVER_PLANS];
};

/* The arbiter hears of this connection, or does not. Its selector knows a connection by its descriptor. */
static int hear(int epoll, int socket, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = socket};
    return epoll_ctl(epoll, EPOLL_CTL_MOD, socket, &event);
}

static void give_back(struct handover *loop, struct armed *armed)
{
    armed->in_force = 0;
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, armed->plan.socket, NULL);
    hear(loop->arbiter_epoll, armed->plan.socket, EPOLLIN);
}

/* Under the lock. */
static void look(struct handover *loop, unsigned number)
{
    struct armed *armed = &loop->armed[number];
    uint64_t at_ns;
    if (number >= loop->count || !armed->in_force)
        return;
    enum handover_verdict verdict = handover_look(&armed->plan, &armed->seen, &at_ns);
    if (verdict == HANDOVER_WAIT)
        return;
    if (verdict == HANDOVER_DONE)
        loop->done[loop->done_count++] = (struct handover_done){at_ns, number, armed->seen.messages};
    give_back(loop, armed);
}

/* Before the arbiter itself, as soon as it wakes, where the arbiter has the rights to go before the tenants. */
static void go_first(void)
{
    int policy = sched_getscheduler(getpid());
    struct sched_param second = {.sched_priority = 2};
    if (policy < 0 || (policy & ~SCHED_RESET_ON_FORK) != SCHED_RR ||
        sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &second) != 0)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -20);
}

static void *run(void *argument)
{
    struct handover *loop = argument;
    struct epoll_event events[EVENTS];
    go_first();
    for (;;) {
        int count = epoll_wait(loop->epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++)
            if (events[i].data.u32 == STOP)
                return NULL;
        pthread_mutex_lock(&loop->lock);
        for (int i = 0; i < count; i++)
            look(loop, events[i].data.u32);
        pthread_mutex_unlock(&loop->lock);
    }
}

static int start_thread(struct handover *loop)
{
    sigset_t all, before;
    sigfillset(&all); /* the arbiter's signals are for its own thread, which they wake */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int fault = pthread_create(&loop->thread, NULL, run, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return fault;
}

struct handover *handover_start(int arbiter_epoll)
{
    struct handover *loop = calloc(1, sizeof *loop);
    if (!loop)
        return NULL;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = STOP};
    pthread_mutex_init(&loop->lock, NULL);
    loop->arbiter_epoll = arbiter_epoll;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->stop = eventfd(0, EFD_CLOEXEC);
    if (loop->epoll >= 0 && loop->stop >= 0 && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->stop, &event) == 0 &&
        (errno = start_thread(loop)) == 0)
        return loop;
    int fault = errno;
    close(loop->epoll);
    close(loop->stop);
    free(loop);
    errno = fault;
    return NULL;
}

void handover_stop(struct handover *loop)
{
    eventfd_write(loop->stop, 1);
    pthread_join(loop->thread, NULL);
    close(loop->epoll);
    close(loop->stop);
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

/* Messages that have come before are found at once: to add a descriptor that is ready is an event. */
static int put_in_force(struct handover *loop, const struct handover_plan *plan, unsigned number)
{
    int start = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = number};
    if (setsockopt(plan->socket, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start) != 0 ||
        hear(loop->arbiter_epoll, plan->socket, 0) != 0)
        return -1;
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, plan->socket, &event) == 0)
        return 0;
    hear(loop->arbiter_epoll, plan->socket, EPOLLIN);
    return -1;
}

int handover_arm(struct handover *loop, const struct handover_plan *plan)
{
    pthread_mutex_lock(&loop->lock);
    int number = -1;
    if (loop->count < HANDOVER_PLANS && put_in_force(loop, plan, loop->count) == 0) {
        number = (int)loop->count++;
        loop->armed[number] = (struct armed){.plan = *plan, .in_force = 1};
    }
    pthread_mutex_unlock(&loop->lock);
    return number;
}

/* An answer that is there already is carried out on the way: the arbiter would take longer. */
int handover_take(struct handover *loop, struct handover_done done[HANDOVER_PLANS])
{
    pthread_mutex_lock(&loop->lock);
    for (unsigned number = 0; number < loop->count; number++) {
        look(loop, number);
        if (loop->armed[number].in_force)
            give_back(loop, &loop->armed[number]);
    }
    unsigned count = loop->done_count;
    for (unsigned i = 0; i < count; i++)
        done[i] = loop->done[i];
    loop->count = loop->done_count = 0;
    pthread_mutex_unlock(&loop->lock);
    return (int)count;
}

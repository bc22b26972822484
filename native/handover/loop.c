/* loop.c: the thread that hands a GPU over, so that no interpreter is in the way between an answer and the next grant.
 *
 * Two threads: the arbiter, which decides, and this loop, which carries out. A prepared hand-over belongs to one of them
 * at a time: to the loop from `handover_arm` until it is carried out, void or taken back. The arbiter takes all of them
 * back before it acts on anything, so none outlives the state that it was made for; one mutex, held for microseconds, is
 * the whole of the synchronisation. An event that was queued for an earlier one is harmless: it makes the loop look at
 * the connection of the present one once more.
 *
 * While a hand-over is in force the arbiter's epoll is deaf to its connection. When the loop is done with it, the
 * messages that still lie there wake the arbiter: they are how it hears of the hand-over, after the next tenant has.
 * Not at once: the arbiter runs ahead of programs, and woken at the same moment as the next tenant it often got the
 * processor that the tenant was to run on, which then waited for the arbiter's accounts (0.2 to 0.35 ms).
 */
#define _GNU_SOURCE
#include "handover.h"
#include "short_slice.h"

#include <errno.h>
#include <poll.h>
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
    struct handover_prepared prepared;
    struct handover_progress seen;
    int in_force;
    int untold; /* carried out, and the arbiter does not know yet */
};

struct handover {
    pthread_mutex_t lock;
    pthread_t thread;
    int arbiter_epoll, epoll, stop;
    unsigned count, done_count;
    uint64_t tell_at_ns; /* 0: everything has been told */
    struct armed armed[HANDOVER_MAX];
    struct handover_done done[HANDOVER_MAX];
};

/* The arbiter hears of this connection, or does not. Its selector knows a connection by its descriptor. */
static int hear(int epoll, int socket, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = socket};
    return epoll_ctl(epoll, EPOLL_CTL_MOD, socket, &event);
}

static void leave(struct handover *loop, struct armed *armed)
{
    armed->in_force = 0;
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, armed->prepared.socket, NULL);
}

static void give_back(struct handover *loop, struct armed *armed)
{
    leave(loop, armed);
    hear(loop->arbiter_epoll, armed->prepared.socket, EPOLLIN);
}

/* Under the lock. */
static void tell(struct handover *loop)
{
    loop->tell_at_ns = 0;
    for (unsigned number = 0; number < loop->count; number++) {
        if (loop->armed[number].untold) {
            handover_wake_rest(&loop->armed[number].prepared);
            hear(loop->arbiter_epoll, loop->armed[number].prepared.socket, EPOLLIN);
        }
        loop->armed[number].untold = 0;
    }
}

/* Under the lock. */
static void look(struct handover *loop, unsigned number)
{
    struct armed *armed = &loop->armed[number];
    uint64_t at_ns;
    if (number >= loop->count || !armed->in_force)
        return;
    enum handover_verdict verdict = handover_look(&armed->prepared, &armed->seen, &at_ns);
    if (verdict == HANDOVER_WAIT)
        return;
    if (verdict == HANDOVER_LEAVE) {
        give_back(loop, armed);
        return;
    }
    loop->done[loop->done_count++] = (struct handover_done){at_ns, number, armed->seen.messages};
    leave(loop, armed);
    armed->untold = 1;
    if (!loop->tell_at_ns)
        loop->tell_at_ns = at_ns + HANDOVER_UNDISTURBED_NS;
}

/* Before the arbiter itself, as soon as it wakes, where the arbiter has the rights to go before the tenants. */
static void go_first(void)
{
    int policy = sched_getscheduler(getpid());
    struct sched_param second = {.sched_priority = 2};
    if (policy < 0 || (policy & ~SCHED_RESET_ON_FORK) != SCHED_RR ||
        sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &second) != 0)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -20);
    take_short_slices();
}

/* Until something has come, or until the time if there is one. */
static int wait_for(int epoll, struct epoll_event events[EVENTS], uint64_t until_ns)
{
    uint64_t now_ns = until_ns ? handover_now_ns() : 0, left_ns = now_ns < until_ns ? until_ns - now_ns : 0;
    struct timespec left = {(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)};
    struct pollfd ready = {.fd = epoll, .events = POLLIN};
    if (until_ns)
        ppoll(&ready, 1, &left, NULL);
    return epoll_wait(epoll, events, EVENTS, until_ns ? 0 : -1);
}

static void *run(void *argument)
{
    struct handover *loop = argument;
    struct epoll_event events[EVENTS];
    uint64_t tell_at_ns = 0;
    go_first();
    for (;;) {
        int count = wait_for(loop->epoll, events, tell_at_ns);
        for (int i = 0; i < count; i++)
            if (events[i].data.u32 == STOP)
                return NULL;
        pthread_mutex_lock(&loop->lock);
        for (int i = 0; i < count; i++)
            look(loop, events[i].data.u32);
        if (loop->tell_at_ns && handover_now_ns() >= loop->tell_at_ns)
            tell(loop);
        tell_at_ns = loop->tell_at_ns;
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
static int put_in_force(struct handover *loop, const struct handover_prepared *prepared, unsigned number)
{
    int start = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = number};
    if (setsockopt(prepared->socket, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start) != 0 ||
        hear(loop->arbiter_epoll, prepared->socket, 0) != 0)
        return -1;
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, prepared->socket, &event) == 0)
        return 0;
    hear(loop->arbiter_epoll, prepared->socket, EPOLLIN);
    return -1;
}

int handover_arm(struct handover *loop, const struct handover_prepared *prepared)
{
    pthread_mutex_lock(&loop->lock);
    int number = -1;
    if (loop->count < HANDOVER_MAX && put_in_force(loop, prepared, loop->count) == 0) {
        number = (int)loop->count++;
        loop->armed[number] = (struct armed){.prepared = *prepared, .in_force = 1};
    }
    pthread_mutex_unlock(&loop->lock);
    return number;
}

/* An answer that is there already is carried out on the way: the arbiter would take longer. */
int handover_take(struct handover *loop, struct handover_done done[HANDOVER_MAX])
{
    pthread_mutex_lock(&loop->lock);
    for (unsigned number = 0; number < loop->count; number++) {
        look(loop, number);
        if (loop->armed[number].in_force)
            give_back(loop, &loop->armed[number]);
    }
    tell(loop);
    unsigned count = loop->done_count;
    for (unsigned i = 0; i < count; i++)
        done[i] = loop->done[i];
    loop->count = loop->done_count = 0;
    pthread_mutex_unlock(&loop->lock);
    return (int)count;
}

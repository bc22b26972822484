/* token.c: how quickly a token can change hands at all, through the wake-ups that a hand-over has and nothing else.
 *
 *   aliquot-bench-token TENANTS QUOTA_MS SECONDS
 *
 * TENANTS processes take turns of QUOTA_MS. The holder of the token sleeps for a millisecond at a time, as a program does
 * that waits for kernels of that length; then it sends a message over a socket to the one in the middle, which sleeps in
 * epoll_wait, stores the next tenant's word in shared memory and wakes it by futex. Prints, in nanoseconds and one a line,
 * the time from the end of each turn to the moment at which the next tenant runs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_TENANTS 256
#define MOST_GAPS 1000000
#define MESSAGE_BYTES 64
#define KERNEL_NS 1000000u

static struct shared {
    struct {
        _Alignas(4096) _Atomic uint32_t word; /* raised at each turn of this tenant; a page each, as a grant has */
    } tenants[MOST_TENANTS];
    uint64_t ended_ns; /* the holder of the token writes and reads these */
    unsigned gaps;
    uint64_t gap_ns[MOST_GAPS];
} *shared;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t at_ns)
{
    struct timespec at = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

static void take_turns(unsigned number, int middle, uint64_t quota_ns)
{
    char message[MESSAGE_BYTES] = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    for (uint32_t turn = 0;; turn++) {
        while (shared->tenants[number].word == turn)
            syscall(SYS_futex, &shared->tenants[number].word, FUTEX_WAIT, turn, NULL, NULL, 0);
        uint64_t began_ns = now_ns(), kernel_ns = began_ns;
        if (shared->ended_ns && shared->gaps < MOST_GAPS)
            shared->gap_ns[shared->gaps++] = began_ns - shared->ended_ns;
        while (kernel_ns < began_ns + quota_ns)
            sleep_until(kernel_ns += KERNEL_NS);
        shared->ended_ns = now_ns();
        if (send(middle, message, sizeof message, MSG_NOSIGNAL) != sizeof message)
            _exit(1);
    }
}

static void grant(unsigned number)
{
    shared->tenants[number].word++;
    syscall(SYS_futex, &shared->tenants[number].word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int fault(const char *what)
{
    perror(what);
    return 1;
}

int main(int argc, char **argv)
{
    unsigned tenants = argc == 4 ? (unsigned)atoi(argv[1]) : 0;
    uint64_t quota_ns = argc == 4 ? (uint64_t)atoi(argv[2]) * 1000000u : 0;
    int sockets[MOST_TENANTS], epoll = epoll_create1(EPOLL_CLOEXEC);
    pid_t children[MOST_TENANTS];
    struct epoll_event event = {.events = EPOLLIN};
    struct sched_param second = {.sched_priority = 2};
    if (tenants < 2 || tenants > MOST_TENANTS || !quota_ns || atoi(argv[3]) < 1)
        return fprintf(stderr, "usage: aliquot-bench-token TENANTS QUOTA_MS SECONDS\n"), 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return fault("mmap");
    for (unsigned i = 0; i < tenants; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0 || (children[i] = fork()) < 0)
            return fault("a tenant");
        if (children[i] == 0)
            take_turns(i, pair[1], quota_ns);
        close(pair[1]);
        sockets[i] = pair[0];
        epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event);
    }
    sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &second); /* as the arbiter, where it has the right */
    uint64_t until_ns = now_ns() + (uint64_t)atoi(argv[3]) * 1000000000u;
    for (unsigned holder = 0; now_ns() < until_ns; holder = (holder + 1) % tenants) {
        char message[MESSAGE_BYTES];
        grant(holder);
        if (epoll_wait(epoll, &event, 1, -1) < 0 || recv(sockets[holder], message, sizeof message, 0) <= 0)
            return fault("a hand-over");
    }
    for (unsigned i = 0; i < tenants; i++)
        kill(children[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    for (unsigned i = 0; i < shared->gaps; i++)
        printf("%llu\n", (unsigned long long)shared->gap_ns[i]);
    return 0;
}

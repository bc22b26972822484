/* handover_check.c: the loop under load, for the sanitizers and for the promise that each hand-over is carried out once
 * or not at all.
 *
 *   aliquot-handover-check ROUNDS
 *
 * The arbiter's thread prepares hand-overs of several GPUs and takes them back at random moments; a thread for each GPU
 * plays the tenants and answers at random moments, mixed with messages that are no answers. Fails when a grant appears
 * that was not prepared, or is not reported, or a message is lost, or the arbiter is not woken, or is woken before the
 * first tenant that was handed a GPU has had time to run. Exit status: 0, or 1 with one line on stderr.
 */
#define _GNU_SOURCE
#include "handover.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GPUS 4
#define QUOTA_NS 30000000u
#define FAR_NS 1000000000000u
#define SLOT 3
#define PATIENCE_MS 5000

static struct gpu {
    aliquot_page pages[2]; /* of the holder and of the next, in turn */
    int arbiter, tenant;
    unsigned holder, epoch, seed;
    _Atomic unsigned asked;   /* rounds that the tenants may answer */
    _Atomic uint32_t answers; /* the epoch to answer for */
    unsigned sent, expected;
} gpus[GPUS];

static _Atomic int over;

static void fail(const char *what, unsigned gpu)
{
    fprintf(stderr, "aliquot-handover-check: GPU %u: %s\n", gpu, what);
    _exit(1);
}

static void say(struct gpu *gpu, uint16_t type, uint64_t epoch)
{
    aliquot_message message = {.type = type, .gpu = SLOT, .a = epoch};
    if (send(gpu->tenant, &message, sizeof message, 0) != sizeof message)
        fail("a message cannot be sent", (unsigned)(gpu - gpus));
}

/* Every round ends with the right answer; before it there may be a WANT, an old answer, or another message. */
static void *play(void *argument)
{
    struct gpu *gpu = argument;
    for (unsigned round = 0; !over;) {
        if (gpu->asked == round) {
            usleep(1);
            continue;
        }
        round++;
        uint32_t epoch = gpu->answers;
        usleep(rand_r(&gpu->seed) % 60);
        switch (rand_r(&gpu->seed) % 6) {
        case 0: say(gpu, ALIQUOT_MSG_WANT, 0); break;
        case 1: say(gpu, ALIQUOT_MSG_DRAINED, epoch - 1); break;
        case 2: say(gpu, ALIQUOT_MSG_RESERVE, epoch); break;
        default: say(gpu, ALIQUOT_MSG_WANT, 0); usleep(rand_r(&gpu->seed) % 40);
        }
        say(gpu, ALIQUOT_MSG_DRAINED, epoch);
    }
    return NULL;
}

static struct handover_prepared prepared_for(struct gpu *gpu)
{
    aliquot_page *next = &gpu->pages[1 - gpu->holder];
    return (struct handover_prepared){.next_page = next,
                                      .quota_ns = QUOTA_NS,
                                      .until_ns = handover_now_ns() + FAR_NS,
                                      .until_wanting_ns = handover_now_ns() + FAR_NS,
                                      .socket = gpu->arbiter,
                                      .slot = SLOT,
                                      .answer = ALIQUOT_MSG_DRAINED,
                                      .first_epoch = gpu->epoch,
                                      .last_epoch = gpu->epoch,
                                      .next_epoch = gpu->epoch + 1};
}

static int granted(struct gpu *gpu)
{
    uint32_t word = __atomic_load_n(&gpu->pages[1 - gpu->holder].word, __ATOMIC_SEQ_CST);
    return word == ((gpu->epoch + 1) << 2 | ALIQUOT_WORD_VALID);
}

/* Reads until the answer; returns whether it was there. */
static int read_answer(struct gpu *gpu, unsigned *messages)
{
    aliquot_message message;
    while (recv(gpu->arbiter, &message, sizeof message, MSG_DONTWAIT) == sizeof message) {
        ++*messages;
        if (message.type == ALIQUOT_MSG_DRAINED && message.a == gpu->epoch)
            return 1;
    }
    return 0;
}

static void next_turn(struct gpu *gpu)
{
    __atomic_store_n(&gpu->pages[1 - gpu->holder].word, (gpu->epoch + 1) << 2, __ATOMIC_SEQ_CST);
    gpu->holder = 1 - gpu->holder;
    gpu->epoch++;
    gpu->answers = gpu->epoch;
    gpu->asked++;
}

static unsigned rounds_done, handed_over;

static void account(const struct handover_done *done, const unsigned *armed)
{
    struct gpu *gpu = &gpus[armed[done->number]];
    unsigned messages = 0;
    if (!granted(gpu) || gpu->pages[1 - gpu->holder].deadline_ns != done->at_ns + QUOTA_NS)
        fail("what is reported was not stored", armed[done->number]);
    if (!read_answer(gpu, &messages) || messages != done->messages)
        fail("the messages of a hand-over are not those that lie there", armed[done->number]);
    handed_over++;
    rounds_done++;
    next_turn(gpu);
}

static void serve_late(unsigned number)
{
    struct gpu *gpu = &gpus[number];
    unsigned messages = 0;
    if (granted(gpu))
        fail("a grant was stored and not reported", number);
    if (read_answer(gpu, &messages)) { /* the arbiter's own way */
        rounds_done++;
        next_turn(gpu);
    }
}

static int is_among(int socket, const struct epoll_event *events, int count)
{
    for (int i = 0; i < count; i++)
        if (events[i].data.fd == socket)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    unsigned rounds = argc == 2 ? (unsigned)atoi(argv[1]) : 0, seed = 1;
    int epoll = epoll_create1(0);
    struct handover *loop = handover_start(epoll);
    pthread_t threads[GPUS];
    if (!rounds || !loop)
        return fprintf(stderr, "usage: aliquot-handover-check ROUNDS\n"), 1;
    for (unsigned i = 0; i < GPUS; i++) {
        int pair[2];
        socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
        gpus[i].arbiter = pair[0], gpus[i].tenant = pair[1], gpus[i].seed = i + 1;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = pair[0]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event);
        next_turn(&gpus[i]);
        pthread_create(&threads[i], NULL, play, &gpus[i]);
    }
    while (rounds_done < rounds) {
        struct epoll_event events[GPUS];
        struct handover_done done[HANDOVER_MAX];
        unsigned armed[GPUS], count = 0;
        for (unsigned i = 0; i < GPUS; i++) {
            struct handover_prepared prepared = prepared_for(&gpus[i]);
            if (rand_r(&seed) % 4 && handover_arm(loop, &prepared) == (int)count)
                armed[count++] = i;
        }
        int patience_ms = rand_r(&seed) % 2 ? PATIENCE_MS : 0;
        int woken = epoll_wait(epoll, events, GPUS, patience_ms);
        uint64_t woken_ns = handover_now_ns();
        if (woken == 0 && patience_ms)
            fail("the arbiter was not woken by any", GPUS);
        if (rand_r(&seed) % 2)
            usleep(rand_r(&seed) % 50);
        int handed = handover_take(loop, done);
        for (int i = 0; i < handed; i++) {
            unsigned number = armed[done[i].number];
            if (woken_ns < done[0].at_ns + HANDOVER_UNDISTURBED_NS && is_among(gpus[number].arbiter, events, woken))
                fail("the arbiter was woken for a hand-over at once", number);
            account(&done[i], armed);
        }
        for (unsigned i = 0; i < GPUS; i++)
            serve_late(i);
    }
    over = 1;
    for (unsigned i = 0; i < GPUS; i++)
        pthread_join(threads[i], NULL);
    handover_stop(loop);
    printf("%u %u\n", rounds_done, handed_over);
    return 0;
}

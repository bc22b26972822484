/* client.c: a tenant's program whose kernels are too short, or whose arrivals must be too exact, for Python.
 *
 *   aliquot-bench-client steady PTX PROGRESS KERNEL_NS
 *       kernels ahead of the GPU, as a training step's: an event about every millisecond, at most four of them waiting
 *   aliquot-bench-client inference PTX PROGRESS KERNEL_NS RATE KERNELS BATCH SEED
 *       a server: requests arrive by a Poisson process of RATE per second, whether or not earlier ones are done; up to
 *       BATCH of those that wait are answered at once by KERNELS kernels
 *
 * Both run until SIGTERM. Counts and, for each request, arrival, first launch and completion go to the file PROGRESS
 * in the format of aliquot/bench/progress.py, which the reader maps while the program runs. Arrivals are drawn from
 * SEED, so two runs with one seed see the same requests at the same distances.
 */
#define _GNU_SOURCE
#include "program.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RING 8192
#define RING_AT 4096
#define DEPTH 4
#define EVENT_EVERY_NS 1000000u
#define MAX_BATCH 256

const char *program_name = "aliquot-bench-client";

typedef struct { uint64_t asked_ns, launched_ns, ended_ns; } interval;

static struct { uint64_t at_ns, ready_ns, launched, completed, kernel_ns, intervals; } *totals;
static interval *ring;
static struct {
    launch_fn launch;
    int (*record)(void *, void *);
    int (*wait)(void *);
    int (*synchronize)(void *);
} cuda;
static void *library, *kernel, *stream;
static uint64_t kernel_ns;
static volatile sig_atomic_t stopped;

static void stop(int number) { stopped = 1; }

static void open_progress(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    size_t size = RING_AT + RING * sizeof(interval);
    if (fd < 0 || ftruncate(fd, (off_t)size))
        fail(path, fd);
    char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        fail(path, 1);
    totals = (void *)map;
    ring = (interval *)(map + RING_AT);
    close(fd);
}

static void open_stream(const char *ptx_path)
{
    void *module;
    library = open_cuda(ptx_path, &module);
    CALL(library, (void **, void *, const char *), cuModuleGetFunction, &kernel, module, "spin_ns");
    CALL(library, (void **, unsigned), cuStreamCreate, &stream, 1 /* non-blocking */);
    cuda.launch = (launch_fn)need(library, "cuLaunchKernel");
    cuda.record = (int (*)(void *, void *))need(library, "cuEventRecord");
    cuda.wait = (int (*)(void *))need(library, "cuEventSynchronize");
    cuda.synchronize = (int (*)(void *))need(library, "cuStreamSynchronize");
}

static void launch(unsigned count)
{
    void *parameters[] = {&kernel_ns};
    for (unsigned i = 0; i < count; i++) {
        int code = cuda.launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
        if (code)
            fail("cuLaunchKernel", code);
    }
}

static void check(const char *what, int code)
{
    if (code)
        fail(what, code);
}

/* `count` more kernels have completed. */
static void completed(unsigned count)
{
    totals->launched += count;
    totals->completed += count;
    totals->kernel_ns += count * kernel_ns;
    totals->at_ns = monotonic_ns();
}

static void run_steady(void)
{
    unsigned stride = kernel_ns < EVENT_EVERY_NS ? (unsigned)(EVENT_EVERY_NS / kernel_ns) : 1;
    void *events[DEPTH];
    for (unsigned i = 0; i < DEPTH; i++)
        CALL(library, (void **, unsigned), cuEventCreate, &events[i], 2 /* no timing */);
    for (uint64_t turn = 0; !stopped; turn++) {
        void *event = events[turn % DEPTH];
        if (turn >= DEPTH) {
            check("cuEventSynchronize", cuda.wait(event));
            completed(stride);
        }
        launch(stride);
        check("cuEventRecord", cuda.record(event, stream));
    }
    check("cuStreamSynchronize", cuda.synchronize(stream));
}

/* The distance to the next arrival of a Poisson process. */
static uint64_t next_gap_ns(double rate, struct drand48_data *random)
{
    double uniform;
    drand48_r(random, &uniform);
    return (uint64_t)(-log1p(-uniform) / rate * 1e9);
}

static void sleep_until(uint64_t at_ns)
{
    struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL); /* cut short by SIGTERM, which ends the loop */
}

/* Answer the requests that arrived at `arrivals`, together. */
static void answer(const uint64_t *arrivals, unsigned count, unsigned kernels)
{
    launch(1);
    uint64_t launched_ns = monotonic_ns();
    launch(kernels - 1);
    check("cuStreamSynchronize", cuda.synchronize(stream));
    uint64_t ended_ns = monotonic_ns();
    for (unsigned i = 0; i < count; i++)
        ring[totals->intervals++ % RING] = (interval){arrivals[i], launched_ns, ended_ns};
    completed(kernels);
}

static void run_inference(double rate, unsigned kernels, unsigned batch, long seed)
{
    struct drand48_data random;
    uint64_t arrivals[MAX_BATCH];
    srand48_r(seed, &random);
    uint64_t next_ns = monotonic_ns() + next_gap_ns(rate, &random);
    while (!stopped) {
        if (monotonic_ns() < next_ns) {
            sleep_until(next_ns);
            continue;
        }
        unsigned count = 0;
        for (uint64_t now_ns = monotonic_ns(); count < batch && next_ns <= now_ns; count++) {
            arrivals[count] = next_ns;
            next_ns += next_gap_ns(rate, &random);
        }
        answer(arrivals, count, kernels);
    }
}

int main(int argc, char **argv)
{
    int inference = argc == 9 && !strcmp(argv[1], "inference");
    if (!inference && !(argc == 5 && !strcmp(argv[1], "steady"))) {
        fprintf(stderr, "usage: aliquot-bench-client steady PTX PROGRESS KERNEL_NS\n"
                        "       aliquot-bench-client inference PTX PROGRESS KERNEL_NS RATE KERNELS BATCH SEED\n");
        return 1;
    }
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    kernel_ns = strtoull(argv[4], NULL, 10);
    open_progress(argv[3]);
    open_stream(argv[2]);
    launch(1);
    check("cuStreamSynchronize", cuda.synchronize(stream));
    completed(1);
    totals->ready_ns = monotonic_ns();
    if (!inference) {
        run_steady();
        return 0;
    }
    double rate = atof(argv[5]);
    int kernels = atoi(argv[6]), batch = atoi(argv[7]);
    if (!(rate > 0) || kernels < 1 || batch < 1 || batch > MAX_BATCH)
        fail("RATE, KERNELS or BATCH", 0);
    run_inference(rate, (unsigned)kernels, (unsigned)batch, atol(argv[8]));
    return 0;
}

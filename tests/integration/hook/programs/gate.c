/* gate.c: programs of the kind that the gate must not break. One argument names the program, numbers follow; the last
 * line of the output is a line of JSON. */
#include "driver.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

static _Atomic int over;

static void primary(int device)
{
    use_device(device);
    function = kernel_here();
}
static void synchronize(void *stream)
{
    OK(F(cuStreamSynchronize, void *)(stream));
}

/* A stream captures while it still works: 40 times. */
static void pending(const long *with)
{
    long good = 0;
    void *stream = stream_new(1);
    for (int i = 0; i < 40; i++) {
        void *graph;
        launch(1000000, stream);
        OK(F(cuStreamBeginCapture_v2, void *, int)(stream, (int)with[0]));
        for (int k = 0; k < 4; k++) {
            launch(1000, stream);
            usleep(1500);
        }
        good += F(cuStreamEndCapture, void *, void **)(stream, &graph) == 0;
    }
    printf("{\"good\": %ld}\n", good);
}

static void *launches(void *stream)
{
    OK(F(cuCtxSetCurrent, void *)(context));
    while (!over)
        OK(launch(20000, stream));
    return NULL;
}

/* with: captures, mode, flags of the capturing stream. One thread captures, two others launch. */
static void captures(const long *with)
{
    long good = 0, last = 0;
    pthread_t threads[2];
    void *stream = stream_new((unsigned)with[2]);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, launches, stream_new(1));
    for (long i = 0; i < with[0]; i++) {
        void *graph;
        OK(F(cuStreamBeginCapture_v2, void *, int)(stream, (int)with[1]));
        for (int k = 0; k < 3; k++)
            last = launch(1000, stream) ?: last;
        if (i % 4 == 0)
            usleep(100);
        int result = F(cuStreamEndCapture, void *, void **)(stream, &graph);
        good += result == 0;
        last = result ?: last;
        if (!result)
            OK(F(cuGraphDestroy, void *)(graph));
    }
    over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("{\"good\": %ld, \"last\": %ld}\n", good, last);
}

/* Launches beside what is created and destroyed: own contexts, the primary one, green ones are reset in turn. */
static void *contexts_come_and_go(void *seed)
{
    unsigned state = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 60; i++) {
        void *own;
        OK(F(cuCtxCreate_v2, void **, unsigned, int)(&own, 0, 0));
        void *kernel = kernel_here();
        for (int k = 0; k < 3; k++) {
            void *stream = stream_new(k & 1);
            for (int n = 0; n < 40; n++)
                OK(launch_of(kernel, 5000, stream));
            if (k == 1)
                OK(F(cuStreamDestroy_v2, void *)(stream));
        }
        if (rand_r(&state) % 2)
            usleep(rand_r(&state) % 3000);
        OK(F(cuCtxDestroy_v2, void *)(own));
    }
    return NULL;
}
static void contexts(const long *with)
{
    pthread_t threads[2];
    (void)with;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, contexts_come_and_go, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 30; i++) {
        OK(launch(5000, NULL));
        OK(launch(5000, stream_new(1)));
        usleep(1000);
        if (i % 2) {
            OK(F(cuDevicePrimaryCtxReset_v2, int)(0));
            primary(0);
        } else {
            OK(F(cuDevicePrimaryCtxRelease_v2, int)(0));
            primary(0);
        }
    }
    puts("{\"alive\": true}");
}

/* with: streams that are created, used and destroyed, how many live at a time. */
static void streams(const long *with)
{
    void **live = calloc((size_t)with[1], sizeof *live);
    for (long i = 0; i < with[0]; i++) {
        void **place = &live[i % with[1]];
        if (*place)
            OK(F(cuStreamDestroy_v2, void *)(*place));
        *place = stream_new(1);
        OK(launch(1000, *place));
    }
    usleep(300000); /* nothing tells the hook that the work has ended */
    printf("{\"at\": %lu}\n", (unsigned long)now());
    wait_line();
}

/* A signal handler that takes its time is to the thread what another program on its processor is. */
static void dawdle(int signal)
{
    u64 began = now();
    (void)signal;
    while (now() - began < 4000000)
        ;
}

/* with: kernel ns, launches, every how many microseconds something holds the thread up. Says how far it ran ahead at most. */
static void ahead(const long *with)
{
    struct itimerval often = {{0, with[2]}, {0, with[2]}};
    signal(SIGALRM, dawdle);
    setitimer(ITIMER_REAL, &often, NULL);
    u64 most = 0;
    void *stream = stream_new(1), **events = calloc((size_t)with[1], sizeof *events);
    long reached = 0;
    for (long i = 0; i < with[1]; i++) {
        OK(launch((u64)with[0], stream));
        OK(F(cuEventCreate, void **, unsigned)(&events[i], 2));
        OK(F(cuEventRecord, void *, void *)(events[i], stream));
        while (reached < i && !F(cuEventQuery, void *)(events[reached]))
            reached++;
        u64 queued = (u64)(i + 1 - reached) * (u64)with[0];
        most = i > 40 && queued > most ? queued : most;
    }
    printf("{\"most_ms\": %.3f}\n", (double)most / 1e6);
    wait_line();
}

/* The stream waits for a word that this very thread writes after more launches than the bound allows. */
static void itself(const long *with)
{
    static volatile uint32_t word;
    u64 at;
    void *waiting = stream_new(1), *other = stream_new(1);
    OK(F(cuMemHostRegister_v2, void *, size_t, unsigned)((void *)&word, sizeof word, 0));
    OK(F(cuMemHostGetDevicePointer_v2, u64 *, void *, unsigned)(&at, (void *)&word, 0));
    u64 began = now();
    for (long round = 0; round < with[0]; round++) {
        OK(F(cuStreamWaitValue32_v2, void *, u64, uint32_t, unsigned)(waiting, at, (uint32_t)round + 1, 0));
        for (int i = 0; i < 400; i++)
            OK(launch(2000, waiting));
        OK(launch(2000, other));
        OK(F(cuStreamWriteValue32_v2, void *, u64, uint32_t, unsigned)(other, at, (uint32_t)round + 1, 0));
        synchronize(waiting);
    }
    printf("{\"took_s\": %.3f}\n", (double)(now() - began) / 1e9);
}

/* Two threads, each with its default stream; the consumer's waits for a word that the producer's writes later. */
static u64 shared_word;
static void *consumer(void *unused)
{
    (void)unused;
    OK(F(cuCtxSetCurrent, void *)(context));
    OK(F(cuStreamWaitValue32_v2_ptsz, void *, u64, uint32_t, unsigned)(NULL, shared_word, 1, 0));
    launch_fn *own = need("cuLaunchKernel_ptsz");
    u64 ns = 2000000;
    void *parameters[] = {&ns};
    for (int i = 0; i < 5; i++)
        OK(own(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(F(cuStreamSynchronize_ptsz, void *)(NULL));
    return NULL;
}
static void defaults(const long *with)
{
    static volatile uint32_t word;
    pthread_t thread;
    launch_fn *own = need("cuLaunchKernel_ptsz");
    u64 ns = 1000000;
    void *parameters[] = {&ns};
    OK(F(cuMemHostRegister_v2, void *, size_t, unsigned)((void *)&word, sizeof word, 0));
    OK(F(cuMemHostGetDevicePointer_v2, u64 *, void *, unsigned)(&shared_word, (void *)&word, 0));
    pthread_create(&thread, NULL, consumer, NULL);
    u64 began = now();
    while (now() - began < (u64)with[0] * 1000000u) {
        OK(own(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
        usleep(5000);
    }
    OK(F(cuStreamWriteValue32_v2_ptsz, void *, u64, uint32_t, unsigned)(NULL, shared_word, 1, 0));
    pthread_join(thread, NULL);
    printf("{\"at\": %lu}\n", (unsigned long)now());
    wait_line();
}

/* Leaves with work queued, in the middle of what a helper looks at. with: how it leaves its work. */
static void leaves(const long *with)
{
    for (int i = 0; i < 30; i++)
        OK(launch(200000, stream_new(1)));
    usleep((useconds_t)with[0]);
    exit(0);
}

/* Launches for with[0] ms without a pause, then says how often the other threads were scheduled meanwhile. */
static void steady(const long *with)
{
    u64 began = now();
    void *stream = stream_new(1);
    printf("{\"pid\": %d}\n", (int)getpid());
    fflush(stdout);
    while (now() - began < (u64)with[0] * 1000000u)
        OK(launch(100000, stream));
    synchronize(stream);
    printf("{\"at\": %lu}\n", (unsigned long)now());
    wait_line();
}

/* A thread ends inside the driver's launch, which reads parameters that are not there. */
static void end_thread(int signal)
{
    (void)signal;
    pthread_exit(NULL);
}
static void *vanish(void *unused)
{
    (void)unused;
    OK(F(cuCtxSetCurrent, void *)(context));
    OK(launch(1000, NULL));
    F(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, NULL, (void **)8, NULL);
    exit(93);
}
static void *launch_once(void *unused)
{
    (void)unused;
    OK(F(cuCtxSetCurrent, void *)(context));
    OK(launch(1000, NULL));
    return NULL;
}
static void vanishes(const long *with)
{
    pthread_t thread;
    (void)with;
    signal(SIGSEGV, end_thread);
    for (int i = 0; i < 2; i++) {
        pthread_create(&thread, NULL, i ? launch_once : vanish, NULL);
        pthread_join(thread, NULL);
        puts("{\"ended\": true}");
        wait_line();
    }
}

/* Another GPU's stream is launched into while the first one's context is current. */
static void elsewhere(const long *with)
{
    (void)with;
    void *first = context;
    primary(1);
    void *stream = stream_new(1);
    OK(F(cuCtxSetCurrent, void *)(first));
    OK(launch(100000000, stream));
    puts("{\"launched\": true}");
    wait_line();
}

static void refuse_membarrier(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        exit(94);
}
static void fenced(const long *with)
{
    (void)with;
    OK(launch(1000, NULL));
    printf("{\"fenced\": %lu}\n", (unsigned long)counted(21));
    wait_line();
}

static const struct {
    const char *name;
    void (*run)(const long *);
} programs[] = {{"pending", pending}, {"captures", captures}, {"contexts", contexts}, {"streams", streams},
                {"ahead", ahead},     {"itself", itself},     {"defaults", defaults}, {"leaves", leaves},
                {"steady", steady},   {"vanishes", vanishes}, {"elsewhere", elsewhere}, {"fenced", fenced}};

int main(int argc, char **argv)
{
    long with[4] = {0};
    for (int i = 2; i < argc && i < 6; i++)
        with[i - 2] = atol(argv[i]);
    if (argc > 1 && !strcmp(argv[1], "fenced"))
        refuse_membarrier();
    open_driver();
    primary(0);
    for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++)
        if (!strcmp(programs[i].name, argv[1]))
            programs[i].run(with);
    return 0;
}

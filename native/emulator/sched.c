/* sched.c: moves the process's streams along the GPUs' shared clocks, one thread per GPU and process.
 *
 * Work that takes no GPU time (copies, fills, events, callbacks) is done as soon as its stream gets there; kernels need
 * the GPU (share.c). A kernel is charged with exactly its time once its end has passed, the next one begins where it
 * ended: who looks late (the thread here, or a call that asks whether work is done) charges all that is past in one go and
 * loses nothing. So the thread does not wake up for every kernel, only for what a program can notice: see `nap_end`.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include "emu.h"
#include "shm.h"

#define QUEUE 1024
#define PATIENCE_NS 10000000ull /* how often a waiting process looks whether the owner still lives */
#define BATCH_NS 100000ull      /* kernels that no thread waits for are charged this late */
#define SPIN_NS 20000ull        /* how often a spinning kernel looks at its word */
#define IDLE_NS 10000000000ull
static __thread bool in_a_hurry;
/* precise: how many queued operations have an end that must be noticed at once; busy: how many streams have work. */
static struct {
    bool started, polls, spinning;
    int precise, busy;
    CUstream current;
} sched[EMU_GPUS];

static bool names_event(const emu_op *op) { return op->kind == OP_EVENT || op->kind == OP_WAIT; }

/* With emu_lock. */
emu_op *emu_op_new(const emu_op *like)
{
    emu_op *op = malloc(sizeof *op);
    if (op)
        *op = *like;
    if (op && (!names_event(op) || emu_event_name(op)))
        return op;
    free(like->stage);
    free(op);
    return NULL;
}

/* A record that never gets into a stream is as complete as one that has passed. */
void emu_op_drop(emu_op *op)
{
    if (op->kind == OP_EVENT)
        emu_event_complete(op, emu_now());
    if (names_event(op))
        emu_event_unname(op);
    free(op->stage);
    free(op);
}

void emu_op_spin(emu_op *op, const emu_until *until)
{
    op->until = true;
    op->left_ns = 0;
    op->u.word.at = until->at;
    op->u.word.value = until->value;
    op->u.word.how = 1; /* equal */
}

/* A thread or another GPU waits for the end of `op`. */
void emu_sched_notice(emu_op *op)
{
    if (!op || op->precise)
        return;
    op->precise = true;
    sched[op->dev].precise++;
    emu_sched_wake(op->dev);
}

void emu_sched_notice_stream(CUstream s) { emu_sched_notice(s->tail); }

void emu_sched_forget(CUstream s)
{
    for (int dev = 0; dev < EMU_GPUS; dev++)
        if (sched[dev].current == s)
            sched[dev].current = NULL;
}

static bool ready(CUstream s, const emu_op *op)
{
    if (s->legacy) {
        for (CUstream o = s->ctx->streams; o; o = o->next)
            if (o != s && !(o->flags & 1) && o->head && o->head->seq < op->seq)
                return false;
    } else if (!(s->flags & 1) && s->ctx->legacy->head && s->ctx->legacy->head->seq < op->seq) {
        return false;
    }
    if (op->kind == OP_VALUE)
        return emu_value_met(op);
    return op->kind != OP_WAIT || emu_event_reached(op);
}

static void finish(CUstream s, emu_op *op, uint64_t at_ns)
{
    s->head = op->next;
    if (!s->head) {
        s->tail = NULL;
        sched[op->dev].busy--;
        emu_parking_busy(-1);
    }
    s->depth--;
    s->completed++;
    s->end_ns = at_ns;
    sched[op->dev].precise -= op->precise;
    if (names_event(op))
        emu_event_unname(op);
    free(op->stage);
    free(op);
    emu_stream_ended(s);
    emu_sched_done();
}

static void run_instant(CUstream s, emu_op *op)
{
    uint64_t at = s->end_ns > op->ready_ns ? s->end_ns : op->ready_ns;
    if (op->kind == OP_WAIT && op->u.ev.record && op->u.ev.record->time_ns > at)
        at = op->u.ev.record->time_ns;
    bool event = op->kind == OP_EVENT;
    int dev = s->ctx->dev;
    op->started = true;
    emu_run_op(s, op, at);
    finish(s, op, at + (event ? (uint64_t)emu_conf()->event_gpu_ns : 0));
    for (int d = 0; event && d < emu_conf()->count; d++)
        if (d != dev)
            emu_sched_wake(d);
}

/* Does the head of a stream wait for what may happen without a wake-up here? */
static bool by_others(const emu_op *op)
{
    return op->kind == OP_VALUE || (op->kind == OP_WAIT && op->u.ev.event->shared);
}

static bool calls_host(const emu_op *op) { return op->kind == OP_HOST || op->kind == OP_CALLBACK; }
static bool spins(const emu_op *op) { return op->kind == OP_KERNEL && op->until; }

static bool can_run(CUstream s, bool host)
{
    const emu_op *op = s->head;
    return op && op->kind != OP_KERNEL && !op->started && (host || !calls_host(op)) && ready(s, op);
}

/* Do everything that needs no GPU time; true when something was done. Host functions run in the thread here only. */
static bool advance(int dev, bool host)
{
    bool any = false;
    uint64_t lists = emu_lists;
    sched[dev].polls = false;
    for (CUcontext c = emu_all_contexts; c; c = c->next) {
        if (c->dev != dev)
            continue;
        for (CUstream s = c->streams; s; s = s->next) {
            while (can_run(s, host)) {
                bool unlocked = calls_host(s->head);
                run_instant(s, s->head);
                any = true;
                if (unlocked || emu_lists != lists) /* the lists may have changed meanwhile */
                    return true;
            }
            sched[dev].polls |= s->head && by_others(s->head);
        }
    }
    return any;
}

/* The stream whose kernel runs next: the one begun, else by priority and in turn. Kernels that spin run beside all others
 * of their process, so one of them is picked only where there is nothing else. */
static CUstream pick(int dev)
{
    CUstream now = sched[dev].current, best = NULL, spinner = NULL;
    const emu_op *op = now ? now->head : NULL; /* a host function that runs now has begun, too */
    bool begun = op && op->kind == OP_KERNEL && op->started && !op->until, passed = false;
    sched[dev].spinning = false;
    for (CUcontext c = emu_all_contexts; c; c = c->next) {
        if (c->dev != dev)
            continue;
        for (CUstream s = c->streams; s; s = s->next) {
            bool can = s->head && s->head->kind == OP_KERNEL && ready(s, s->head);
            if (can && spins(s->head)) {
                spinner = s;
                sched[dev].spinning = true;
            } else if (can && (!best || s->priority < best->priority || (passed && s->priority == best->priority))) {
                best = s;
                passed = false;
            }
            passed |= s == now;
        }
    }
    return begun ? now : best ? best : spinner;
}

/* How long to sleep when the kernel of `s` ends at `end`: up to the first end that must be noticed. Another process that
 * waits for the GPU notices that nothing is left. */
static uint64_t nap_end(int dev, CUstream s, uint64_t end, uint64_t now, bool others)
{
    if ((sched[dev].precise || others) && sched[dev].busy > 1)
        return end;
    uint64_t last = now + BATCH_NS;
    for (const emu_op *op = s->head; (sched[dev].precise || others) && op; op = op->next) {
        end += op == s->head || op->kind != OP_KERNEL ? 0 : (uint64_t)op->left_ns;
        if (op->precise || op->until || end > last || (others && !op->next))
            return end < last || op == s->head ? end : last;
    }
    return end > last ? end : last;
}

/* Kernels that spin run beside each other and beside the one that is picked. */
static bool end_spinner(int dev, uint64_t now)
{
    for (CUcontext c = emu_all_contexts; c; c = c->next)
        for (CUstream s = c->dev == dev ? c->streams : NULL; s; s = s->next)
            if (s->head && spins(s->head) && ready(s, s->head) && emu_value_met(s->head)) {
                finish(s, s->head, now);
                return true;
            }
    return false;
}

/* Bring the head of `s` forward on the clock. 0: part or all of it is charged; else when to look again. */
static uint64_t step(int dev, CUstream s)
{
    emu_gpu *g = &shm_open_engine()->gpu[shm_place(dev)];
    emu_op *op = s->head;
    uint64_t from = g->clock_ns, now = emu_now();
    if (!op->started) {
        from = op->ready_ns > from ? op->ready_ns : from;
        from = s->end_ns > from ? s->end_ns : from;
        op->started = true;
        sched[dev].current = s;
    }
    from = op->begun_ns > from ? op->begun_ns : from;
    op->begun_ns = from;
    bool others = shm_waiters(dev), spin = spins(op);
    uint64_t end = spin ? (now > from ? now : from) : from + (uint64_t)op->left_ns;
    uint64_t cut = g->slice_end_ns > g->want_ns ? g->slice_end_ns : g->want_ns;
    uint64_t limit = others && cut < end ? (cut > from ? cut : from) : end;
    if (now < limit) {
        uint64_t until = nap_end(dev, s, limit, now, others);
        return others && until > cut && cut > now ? cut : until;
    }
    if (!spin)
        op->left_ns -= (int64_t)(limit - from);
    op->begun_ns = limit;
    shm_busy(dev, from, limit - from);
    if (limit == end && !spin)
        finish(s, op, end);
    if (others && limit >= cut)
        shm_hand_over(dev);
    return spin ? now + SPIN_NS : 0;
}

/* All that is past by now. Returns when to look again. */
static uint64_t progress(int dev, bool host)
{
    for (;;) {
        while (advance(dev, host))
            ;
        CUstream s = pick(dev);
        uint64_t now = emu_now();
        if (!s) {
            shm_hand_over(dev);
            return now + IDLE_NS;
        }
        bool spinning = sched[dev].spinning;
        if (!shm_acquire(dev))
            return now + PATIENCE_NS;
        uint64_t next = step(dev, s);
        if (spinning && end_spinner(dev, now))
            continue;
        if (next)
            return spinning && next > now + SPIN_NS ? now + SPIN_NS : next;
    }
}

void emu_sched_look(int dev)
{
    if (sched[dev].started)
        progress(dev, false);
}

/* Ahead of programs, as a GPU is: where the rights are there, else as it is. */
static void hurry(void)
{
    struct sched_param p = {.sched_priority = 1};
    in_a_hurry = sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &p) == 0;
    if (!in_a_hurry)
        setpriority(PRIO_PROCESS, 0, -20);
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    prctl(PR_SET_NAME, "emulated-gpu", 0, 0, 0);
}

/* A host function is the program's: it has no right to run ahead of others. */
void emu_sched_host(bool begins)
{
    struct sched_param p = {.sched_priority = begins ? 0 : 1};
    if (in_a_hurry)
        sched_setscheduler(0, (begins ? SCHED_OTHER : SCHED_RR) | SCHED_RESET_ON_FORK, &p);
}

static void *run(void *arg)
{
    int dev = (int)(intptr_t)arg;
    hurry();
    pthread_mutex_lock(&emu_lock);
    for (;;) {
        _Atomic uint32_t *word = &shm_open_engine()->slot[shm_my_slot()].gpu[shm_place(dev)].word;
        uint32_t seen = atomic_load(word);
        uint64_t until = progress(dev, true);
        if (until == 0 || atomic_load(word) != seen)
            continue;
        uint64_t soon = emu_now() + EMU_POLL_NS;
        emu_sched_nap(dev, seen, sched[dev].polls && soon < until ? soon : until);
        shm_sweep_sometimes();
    }
    return NULL;
}

/* The GPU's thread has the signal mask of the thread that starts it, as a real driver's have (linux-rdma/perftest#68): it
 * may be all that is left of a program whose main thread has ended, and if it blocked every signal, only SIGKILL
 * would end the process. A handler of the program may run here, on a stack of full size. */
bool emu_sched_start(int dev)
{
    pthread_t t;
    if (sched[dev].started)
        return true;
    if (pthread_create(&t, NULL, run, (void *)(intptr_t)dev) != 0)
        return false;
    pthread_detach(t);
    return sched[dev].started = true;
}

static CUresult refuse(emu_op *op, CUresult why)
{
    emu_op_drop(op);
    emu_sched_done();
    return why;
}

static void append(CUstream s, emu_op *op)
{
    s->submitted++;
    s->depth++;
    sched[op->dev].precise += op->precise;
    sched[op->dev].busy += !s->head;
    emu_parking_busy(!s->head);
    if (s->head)
        s->tail->next = op;
    else
        s->head = op;
    s->tail = op;
}

CUresult emu_submit(CUstream s, emu_op *op)
{
    if (!op)
        return CU_OOM;
    if (!emu_object_alive(s, KIND_STREAM))
        return refuse(op, CU_CONTEXT_DESTROYED);
    s->waiters++;
    while (s->depth >= QUEUE && !emu_torn_down)
        emu_sched_wait();
    s->waiters--;
    if (s->dead) { /* it ended while the call was on its way */
        emu_stream_ended(s);
        return refuse(op, CU_CONTEXT_DESTROYED);
    }
    op->ready_ns = emu_now();
    op->seq = ++s->ctx->op_seq;
    int dev = op->dev = s->ctx->dev;
    op->precise = calls_host(op) || op->kind == OP_STORE || (op->kind == OP_EVENT && op->u.ev.event->shared);
    bool first = !s->head, instant = first && op->kind != OP_KERNEL && !calls_host(op) && ready(s, op);
    if (!instant && !emu_sched_start(dev))
        return refuse(op, CU_OOM);
    append(s, op);
    emu_op *awaited = op->kind == OP_WAIT && op->u.ev.record ? op->u.ev.record->op : NULL;
    if (awaited && awaited->dev != dev)
        emu_sched_notice(awaited);
    if (instant) {
        bool wake = s->ctx->legacy->head || s->legacy;
        run_instant(s, op);
        if (wake)
            emu_sched_wake(dev);
    } else if (first || op->precise) {
        emu_sched_wake(dev);
    }
    return CU_OK;
}

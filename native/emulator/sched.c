/* sched.c: one thread per GPU and process that moves the process's streams along the GPU's shared clock.
 *
 * Work that takes no GPU time (copies, fills, events, callbacks) is done as soon as its stream gets there; kernels need
 * the GPU (share.c). The thread sleeps until a kernel's end on the clock and books exactly the kernel's time, so a late
 * wake-up delays one completion but loses nothing: the next kernel begins where the last one ended.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <signal.h>
#include <sys/prctl.h>
#include "emu.h"
#include "shm.h"

#define QUEUE 1024
#define PATIENCE_NS 10000000ull /* how often a waiting process looks whether the owner still lives */
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;
static int waiting;
static struct { bool started, sleeping, polls; CUstream current; } sched[EMU_GPUS];

emu_op *emu_op_new(enum op_kind kind)
{
    emu_op *op = calloc(1, sizeof *op);
    op->kind = kind;
    return op;
}

void emu_sched_wait(void)
{
    waiting++;
    pthread_cond_wait(&done, &emu_lock);
    waiting--;
}

void emu_sched_wake(int dev)
{
    if (sched[dev].sleeping)
        shm_wake(&shm_open_engine()->slot[shm_my_slot()].gpu[emu_conf()->place[dev]].word);
}

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
    return op->kind != OP_WAIT || op->u.ev.event->at->completed >= op->u.ev.seq;
}

static void finish(CUstream s, emu_op *op, uint64_t at_ns)
{
    s->head = op->next;
    if (!s->head)
        s->tail = NULL;
    s->depth--;
    s->completed++;
    s->end_ns = at_ns;
    if (op->kind == OP_EVENT || op->kind == OP_WAIT)
        emu_event_unref(op->u.ev.event);
    free(op->stage);
    free(op);
    emu_stream_ended(s);
    if (waiting)
        pthread_cond_broadcast(&done);
}

static void run_instant(CUstream s, emu_op *op)
{
    uint64_t at = s->end_ns > op->ready_ns ? s->end_ns : op->ready_ns;
    if (op->kind == OP_WAIT && op->u.ev.event->at->time_ns > at)
        at = op->u.ev.event->at->time_ns;
    bool event = op->kind == OP_EVENT;
    int dev = s->ctx->dev;
    emu_run_op(s, op, at);
    finish(s, op, at);
    for (int d = 0; event && d < emu_conf()->count; d++)
        if (d != dev)
            emu_sched_wake(d);
}

/* Does the head of a stream wait for what may happen without anybody waking us? */
static bool by_others(const emu_op *op)
{
    return op->kind == OP_VALUE || (op->kind == OP_WAIT && emu_event_shared(op->u.ev.event));
}

/* Do everything that needs no GPU time; true when something was done. */
static bool advance(int dev)
{
    bool any = false;
    uint64_t lists = emu_lists;
    sched[dev].polls = false;
    for (CUcontext c = emu_all_contexts; c; c = c->next) {
        if (c->dev != dev)
            continue;
        for (CUstream s = c->streams; s; s = s->next) {
            while (s->head && s->head->kind != OP_KERNEL && ready(s, s->head)) {
                run_instant(s, s->head);
                any = true;
                if (emu_lists != lists) /* a host function, or the stream's last work */
                    return true;
            }
            sched[dev].polls |= s->head && by_others(s->head);
        }
    }
    return any;
}

static CUstream pick(int dev)
{
    CUstream now = sched[dev].current, best = NULL;
    if (now && now->head && now->head->started)
        return now;
    bool passed = false;
    for (CUcontext c = emu_all_contexts; c; c = c->next) {
        if (c->dev != dev)
            continue;
        for (CUstream s = c->streams; s; s = s->next) {
            bool can = s->head && s->head->kind == OP_KERNEL && ready(s, s->head);
            if (can && (!best || s->priority < best->priority || (passed && s->priority == best->priority))) {
                best = s;
                passed = false;
            }
            passed |= s == now;
        }
    }
    return best;
}

static void nap(int dev, _Atomic uint32_t *word, uint32_t seen, uint64_t until)
{
    uint64_t soon = emu_now() + EMU_POLL_NS;
    until = sched[dev].polls && soon < until ? soon : until;
    sched[dev].sleeping = true;
    pthread_mutex_unlock(&emu_lock);
    shm_sleep(word, seen, until);
    pthread_mutex_lock(&emu_lock);
    sched[dev].sleeping = false;
}

/* Bring the head of `s` forward on the clock. Returns with part or all of it booked, or after a nap. */
static void step(int dev, CUstream s, _Atomic uint32_t *word, uint32_t seen)
{
    emu_gpu *g = &shm_open_engine()->gpu[emu_conf()->place[dev]];
    emu_op *op = s->head;
    uint64_t from = g->clock_ns;
    if (!op->started) {
        from = op->ready_ns > from ? op->ready_ns : from;
        from = s->end_ns > from ? s->end_ns : from;
        op->started = true;
        sched[dev].current = s;
        shm_busy(dev, from, 0);
    }
    bool others = shm_waiters(dev);
    uint64_t end = from + (uint64_t)op->left_ns, cut = g->slice_end_ns > g->want_ns ? g->slice_end_ns : g->want_ns;
    uint64_t limit = others && cut < end ? (cut > from ? cut : from) : end;
    uint64_t now = emu_now();
    if (now < limit) {
        nap(dev, word, seen, limit);
        return;
    }
    op->left_ns -= (int64_t)(limit - from);
    shm_busy(dev, from, limit - from);
    if (limit == end)
        finish(s, op, end);
    if (others && limit >= cut)
        shm_hand_over(dev);
}

static void *run(void *arg)
{
    int dev = (int)(intptr_t)arg;
    _Atomic uint32_t *word = &shm_open_engine()->slot[shm_my_slot()].gpu[emu_conf()->place[dev]].word;
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    prctl(PR_SET_NAME, "emulated-gpu", 0, 0, 0);
    pthread_mutex_lock(&emu_lock);
    for (;;) {
        uint32_t seen = atomic_load(word);
        while (advance(dev))
            ;
        CUstream s = pick(dev);
        if (!s) {
            shm_hand_over(dev);
            nap(dev, word, seen, emu_now() + 10000000000ull);
        } else if (shm_acquire(dev)) {
            step(dev, s, word, seen);
        } else {
            nap(dev, word, seen, emu_now() + PATIENCE_NS);
            shm_sweep();
        }
    }
    return NULL;
}

static void start(int dev)
{
    sigset_t all, old;
    pthread_t t;
    if (sched[dev].started)
        return;
    sched[dev].started = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&t, NULL, run, (void *)(intptr_t)dev) == 0)
        pthread_detach(t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* The stream ended while the call was on its way. */
static CUresult drop(emu_op *op)
{
    if (op->kind == OP_EVENT)
        op->u.ev.event->at->submitted--;
    if (op->kind == OP_EVENT || op->kind == OP_WAIT)
        emu_event_unref(op->u.ev.event);
    free(op->stage);
    free(op);
    return CU_CONTEXT_DESTROYED;
}

CUresult emu_submit(CUstream s, emu_op *op)
{
    if (!emu_object_alive(s, KIND_STREAM))
        return drop(op);
    s->waiters++;
    while (s->depth >= QUEUE)
        emu_sched_wait();
    s->waiters--;
    if (s->dead) {
        emu_stream_ended(s);
        return drop(op);
    }
    op->ready_ns = emu_now();
    op->seq = ++s->ctx->op_seq;
    s->submitted++;
    s->depth++;
    bool first = !s->head;
    if (first)
        s->head = op;
    else
        s->tail->next = op;
    s->tail = op;
    bool instant = op->kind != OP_KERNEL && op->kind != OP_HOST && op->kind != OP_CALLBACK;
    if (first && instant && ready(s, op)) {
        bool wake = s->ctx->legacy->head || s->legacy;
        int dev = s->ctx->dev;
        run_instant(s, op);
        if (wake)
            emu_sched_wake(dev);
        return CU_OK;
    }
    start(s->ctx->dev);
    if (first)
        emu_sched_wake(s->ctx->dev);
    return CU_OK;
}

bool emu_event_shared(CUevent e)
{
    return e->at != &e->own;
}

bool emu_event_done(CUevent e)
{
    return e->at->completed >= e->at->submitted;
}

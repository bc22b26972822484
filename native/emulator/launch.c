/* launch.c: kernel launches. A kernel computes nothing here; it takes its time on the GPU's clock. */
#include <stdlib.h>
#include "emu.h"

static long launches, given;

void emu_count_launch(void) { __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED); }

/* Launches that reached the GPU in this process, a graph's launch as one, for tests. */
API long emuLaunches(void) { return __atomic_load_n(&given, __ATOMIC_RELAXED); }

static CUresult fault(int64_t *ns)
{
    const emu_config *c = emu_conf();
    if (c->fault.sticky_after < 0 && c->fault.hang_after < 0)
        return CU_OK;
    long n = __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    if (c->fault.sticky_after >= 0 && n >= c->fault.sticky_after)
        return emu_sticky = CU_ILLEGAL_ADDRESS;
    if (c->fault.hang_after >= 0 && n >= c->fault.hang_after)
        *ns = 1000000000000000ll;
    return CU_OK;
}

static CUresult submit(CUstream st, CUfunction f, int64_t ns, const emu_until *until)
{
    if (!emu_object_alive(st, KIND_STREAM) || !emu_object_alive(f, KIND_FUNCTION))
        return CU_CONTEXT_DESTROYED; /* by another thread, just now */
    CUresult r = emu_code_use(f, st->ctx);
    if (r)
        return r;
    emu_op op = {.kind = OP_KERNEL, .left_ns = ns};
    if (until)
        emu_op_spin(&op, until);
    return emu_submit(st, emu_op_new(&op));
}

static CUresult launch(const CUkernelNode *k, CUstream s)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    CUfunction f = k->func ? k->func : k->kern;
    if (!st)
        return CU_INVALID_HANDLE;
    NEED_LIVE(f, KIND_FUNCTION);
    if (emu_conf()->strict && f->module->ctx && emu_root(f->module->ctx) != emu_root(st->ctx))
        return CU_INVALID_HANDLE;
    if (!k->gx || !k->gy || !k->gz || !k->bx || !k->by || !k->bz || (uint64_t)k->bx * k->by * k->bz > 1024)
        return CU_INVALID;
    if ((f->takes_parameters && !k->params && !k->extra) || (k->params && k->extra))
        return CU_INVALID;
    if (k->shared > (unsigned)emu_conf()->shared_sm)
        return CU_LAUNCH_RESOURCES;
    if (st->capture)
        return emu_capture_add(st, 0, k, sizeof *k, NULL);
    CUresult r = emu_legacy_use(st);
    if (r)
        return r;
    emu_count_launch();
    int64_t ns = emu_kernel_ns(f->name, k->params, k->extra, 0);
    r = fault(&ns);
    if (r)
        return r;
    emu_until until;
    bool spins = emu_kernel_until(f->name, k->params, &until);
    if (spins && !emu_mem_find(until.at))
        return emu_sticky = CU_ILLEGAL_ADDRESS;
    emu_spend(emu_conf()->launch_ns);
    pthread_mutex_lock(&emu_lock);
    r = submit(st, f, ns, spins ? &until : NULL);
    emu_unlock();
    return r;
}

API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream s, void **params, void **extra)
{
    CUkernelNode k = {f, gx, gy, gz, bx, by, bz, shared, params, extra, NULL, NULL};
    return launch(&k, s);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
    if (!c)
        return CU_INVALID;
    CUkernelNode k = {f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, params, extra, NULL, NULL};
    return launch(&k, c->stream);
}

API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                       unsigned bz, unsigned shared, CUstream s, void **params)
{
    CUkernelNode k = {f, gx, gy, gz, bx, by, bz, shared, params, NULL, NULL, NULL};
    return launch(&k, s);
}

typedef struct {
    CUfunction f;
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream s;
    void **params;
} multi_launch;

API CUresult cuLaunchCooperativeKernelMultiDevice(const multi_launch *list, unsigned count, unsigned flags)
{
    NEED_OUT(list && count);
    CUresult r = CU_OK;
    for (unsigned i = 0; i < count && !r; i++) {
        CUkernelNode k = {list[i].f,  list[i].gx,     list[i].gy,     list[i].gz, list[i].bx, list[i].by,
                          list[i].bz, list[i].shared, list[i].params, NULL,       NULL,       NULL};
        r = launch(&k, list[i].s);
    }
    return r;
}

/* scan.c: which nodes can hold a shape, and how much is idle. */
#include "device.h"

int aliquot_kernels_abi(void) { return ALIQUOT_KERNELS_ABI; }

/* Idle devices that may be taken whole, and whether the rest has a place beside them. */
static int holds(const aliquot_view *view, const aliquot_shape *shape, int64_t node)
{
    int32_t idle = 0, idle_for_rest = 0, shared = 0;
    int64_t whole_mib = shape->whole == 1 && shape->rest_milli == 0 ? shape->gpu_mib : 0;
    for (int64_t at = node * view->gpus, end = at + view->gpus; at < end; at++) {
        if (view->free_milli[at] <= 0 || !(shape->models & model_bit(view->model[at])))
            continue;
        int untouched = is_idle(view, at), for_rest = shape->rest_milli > 0 && rest_fits(view, shape, at);
        if (!untouched)
            shared |= for_rest;
        if (untouched && whole_mib <= view->size_mib[at]) {
            idle++;
            idle_for_rest |= for_rest;
        }
    }
    if (idle < shape->whole)
        return 0;
    return shape->rest_milli == 0 || shared || (idle_for_rest && idle > shape->whole);
}

int node_holds(const aliquot_view *view, const aliquot_shape *shape, int64_t node)
{
    if (view->cpu_free[node] < shape->cpu_milli || view->memory_free[node] < shape->memory_mib)
        return 0;
    return (shape->whole == 0 && shape->rest_milli == 0) || holds(view, shape, node);
}

int64_t aliquot_idle(const aliquot_view *view, int64_t *idle)
{
    int64_t total = 0;
    for (int i = 0; i < ALIQUOT_MODELS; i++)
        idle[i] = 0;
    for (int64_t at = 0; at < view->nodes * view->gpus; at++) {
        int32_t left = room_at(view, at);
        if (left <= 0 || view->model[at] < 0)
            continue;
        idle[view->model[at] < ALIQUOT_MODELS - 1 ? view->model[at] : ALIQUOT_MODELS - 1] += left;
        total += left;
    }
    return total;
}

/* device.h: what one device still offers, and what a shape takes of it; shared by scan.c, fgd.c and future.c. */
#pragma once
#include "kernels.h"

static inline uint32_t model_bit(int32_t model)
{
    return model < 0 ? 0u : 1u << (model < ALIQUOT_MODELS - 1 ? model : ALIQUOT_MODELS - 1);
}

/* MiB that the shape's shared part takes of a device of this size. */
static inline int64_t need_mib(const aliquot_shape *shape, int64_t size_mib)
{
    if (shape->gpu_mib > 0)
        return shape->gpu_mib;
    if (shape->gpu_mem_ppm > 0)
        return shape->gpu_mem_ppm * size_mib / 1000000;
    return (int64_t)shape->rest_milli * size_mib / 1000;
}

static inline int is_idle(const aliquot_view *view, int64_t at)
{
    return view->free_milli[at] == ALIQUOT_IDLE && view->free_mib[at] == view->size_mib[at];
}

/* Milli that both compute and memory leave; 0 where there is no device. */
static inline int32_t room(int32_t free_milli, int64_t free_mib, int64_t size_mib)
{
    if (free_milli <= 0)
        return 0;
    if (size_mib <= 0 || free_mib >= size_mib)
        return free_milli;
    int64_t by_memory = free_mib > 0 ? free_mib * 1000 / size_mib : 0;
    return by_memory < free_milli ? (int32_t)by_memory : free_milli;
}

static inline int32_t room_at(const aliquot_view *view, int64_t at)
{
    return room(view->free_milli[at], view->free_mib[at], view->size_mib[at]);
}

/* Whether the shape's shared part fits the device. */
static inline int rest_fits(const aliquot_view *view, const aliquot_shape *shape, int64_t at)
{
    return view->free_milli[at] >= shape->rest_milli && (shape->models & model_bit(view->model[at])) &&
           view->free_mib[at] >= need_mib(shape, view->size_mib[at]);
}

/* Whether the node has CPU, host memory and devices for the shape (scan.c). */
int node_holds(const aliquot_view *view, const aliquot_shape *shape, int64_t node);

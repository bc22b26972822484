/* nvmluse.c: NVML shows the tenant its own processes and what they use of the GPU.
 *
 * Which processes are the tenant's is written in the grant page by the arbiter, which knows them by their sockets. Lists
 * follow NVML's protocol: too small a buffer is answered with the size that would do - of the own list, for the length
 * of all processes would reveal neighbours too. Utilisation is the sum of the own processes' samples.
 */
#include "nvml/nvmlview.h"

#include <string.h>

#define ROOM 1024 /* processes on one GPU; more are not read */

/* Moves the own rows to the front; `at` is where a row has its pid. Returns how many. */
static unsigned keep_own(const struct slot *slot, void *rows, unsigned count, size_t size, size_t at)
{
    unsigned kept = 0, pid;
    for (unsigned i = 0; i < count; i++) {
        char *row = (char *)rows + i * size;
        memcpy(&pid, row + at, sizeof pid);
        if (link_is_own(slot, pid))
            memmove((char *)rows + kept++ * size, row, size);
    }
    return kept;
}

static CUresult hand_out(unsigned *count, void *to, const void *rows, unsigned kept, size_t size)
{
    unsigned room = to ? *count : 0;
    *count = kept;
    if (kept > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (kept)
        memcpy(to, rows, kept * size);
    return NVML_SUCCESS;
}

static CUresult own_processes(enum aliquot_symbol symbol, void *device, unsigned *count, void *infos, size_t size)
{
    struct slot *slot = count ? nvml_slot(device) : NULL;
    if (!slot)
        return REAL_AT(symbol, void *, unsigned *, void *)(device, count, infos);
    struct nvml_process_v2 rows[ROOM]; /* the largest of the layouts */
    unsigned all = ROOM;
    CUresult result = REAL_AT(symbol, void *, unsigned *, void *)(device, &all, rows);
    return result == NVML_SUCCESS ? hand_out(count, infos, rows, keep_own(slot, rows, all, size, 0), size) : result;
}

CUresult on_nvml_processes_v1(enum aliquot_symbol symbol, void *device, unsigned *count, void *infos)
{
    return own_processes(symbol, device, count, infos, sizeof(struct nvml_process_v1));
}

CUresult on_nvml_processes(enum aliquot_symbol symbol, void *device, unsigned *count, void *infos)
{
    return own_processes(symbol, device, count, infos, sizeof(struct nvml_process_v2));
}

CUresult on_nvml_process_details(enum aliquot_symbol symbol, void *device, struct nvml_process_details *list)
{
    struct slot *slot = list ? nvml_slot(device) : NULL;
    if (!slot)
        return REAL_AT(symbol, void *, struct nvml_process_details *)(device, list);
    struct nvml_process_detail rows[ROOM];
    struct nvml_process_details all = {list->version, list->mode, ROOM, rows};
    CUresult result = REAL_AT(symbol, void *, struct nvml_process_details *)(device, &all);
    if (result != NVML_SUCCESS)
        return result;
    return hand_out(&list->count, list->rows, rows, keep_own(slot, rows, all.count, sizeof *rows, 0), sizeof *rows);
}

CUresult on_nvml_process_samples(enum aliquot_symbol symbol, void *device, struct nvml_process_sample *samples,
                                 unsigned *count, unsigned long long since_us)
{
    struct slot *slot = count ? nvml_slot(device) : NULL;
    if (!slot)
        return REAL_AT(symbol, void *, struct nvml_process_sample *, unsigned *, unsigned long long)(device, samples,
                                                                                                     count, since_us);
    struct nvml_process_sample rows[ROOM];
    unsigned all = ROOM;
    CUresult result = REAL_AT(symbol, void *, struct nvml_process_sample *, unsigned *,
                              unsigned long long)(device, rows, &all, since_us);
    if (result != NVML_SUCCESS)
        return result;
    unsigned kept = keep_own(slot, rows, all, sizeof *rows, 0);
    if (kept)
        return hand_out(count, samples, rows, kept, sizeof *rows);
    *count = 0;
    return NVML_ERROR_NOT_FOUND;
}

CUresult on_nvml_processes_usage(enum aliquot_symbol symbol, void *device, struct nvml_processes_usage *usage)
{
    struct slot *slot = usage ? nvml_slot(device) : NULL;
    if (!slot)
        return REAL_AT(symbol, void *, struct nvml_processes_usage *)(device, usage);
    struct nvml_process_usage rows[ROOM];
    struct nvml_processes_usage all = {usage->version, ROOM, usage->last_seen_us, rows};
    CUresult result = REAL_AT(symbol, void *, struct nvml_processes_usage *)(device, &all);
    if (result != NVML_SUCCESS)
        return result;
    unsigned kept = keep_own(slot, rows, all.count, sizeof *rows, offsetof(struct nvml_process_usage, pid));
    usage->last_seen_us = all.last_seen_us;
    return hand_out(&usage->count, usage->rows, rows, kept, sizeof *rows);
}

/* Percent of the GPU that the tenant's processes use. False: the driver does not distinguish processes. */
static bool own_use(struct slot *slot, void *device, struct nvml_utilization *use)
{
    struct nvml_process_sample rows[ROOM];
    unsigned count = ROOM;
    CUresult result = REAL(nvmlDeviceGetProcessUtilization, void *, struct nvml_process_sample *, unsigned *,
                           unsigned long long)(device, rows, &count, 0);
    *use = (struct nvml_utilization){0, 0};
    if (result == NVML_ERROR_NOT_FOUND)
        return true; /* no process has run anything */
    if (result != NVML_SUCCESS)
        return false;
    for (unsigned i = keep_own(slot, rows, count, sizeof *rows, 0); i-- > 0;) {
        use->gpu += rows[i].sm;
        use->memory += rows[i].memory;
    }
    use->gpu = use->gpu < 100 ? use->gpu : 100;
    use->memory = use->memory < 100 ? use->memory : 100;
    return true;
}

CUresult on_nvml_utilization(enum aliquot_symbol symbol, void *device, struct nvml_utilization *use)
{
    CUresult result = REAL_AT(symbol, void *, struct nvml_utilization *)(device, use);
    struct slot *slot = result == NVML_SUCCESS ? nvml_slot(device) : NULL;
    if (slot && !own_use(slot, device, use))
        return NVML_ERROR_NOT_SUPPORTED;
    return result;
}

/* The history of the device's utilisation is replaced by the tenant's own current value, at the same times. */
CUresult on_nvml_samples(enum aliquot_symbol symbol, void *device, int type, unsigned long long since_us,
                         int *value_type, unsigned *count, struct nvml_sample *samples)
{
    enum { GPU_UTILIZATION = 1, MEMORY_UTILIZATION = 2, ENCODER_UTILIZATION = 3, DECODER_UTILIZATION = 4 };
    struct nvml_utilization use;
    struct slot *slot = type >= GPU_UTILIZATION && type <= DECODER_UTILIZATION ? nvml_slot(device) : NULL;
    if (slot && (type >= ENCODER_UTILIZATION || !own_use(slot, device, &use)))
        return NVML_ERROR_NOT_SUPPORTED;
    CUresult result = REAL_AT(symbol, void *, int, unsigned long long, int *, unsigned *,
                              struct nvml_sample *)(device, type, since_us, value_type, count, samples);
    for (unsigned i = 0; slot && result == NVML_SUCCESS && samples && i < *count; i++)
        samples[i].value.number = type == GPU_UTILIZATION ? use.gpu : use.memory;
    return result;
}

CUresult on_nvml_accounting_pids(enum aliquot_symbol symbol, void *device, unsigned *count, unsigned *pids)
{
    struct slot *slot = count ? nvml_slot(device) : NULL;
    if (!slot)
        return REAL_AT(symbol, void *, unsigned *, unsigned *)(device, count, pids);
    unsigned rows[4 * ROOM], all = 4 * ROOM; /* the driver remembers ended processes too */
    CUresult result = REAL_AT(symbol, void *, unsigned *, unsigned *)(device, &all, rows);
    if (result != NVML_SUCCESS)
        return result;
    return hand_out(count, pids, rows, keep_own(slot, rows, all, sizeof *rows, 0), sizeof *rows);
}

CUresult on_nvml_accounting(enum aliquot_symbol symbol, void *device, unsigned pid, void *stats)
{
    struct slot *slot = nvml_slot(device);
    if (slot && !link_is_own(slot, pid))
        return NVML_ERROR_NOT_FOUND;
    return REAL_AT(symbol, void *, unsigned, void *)(device, pid, stats);
}

/* The second version carries the pid in the structure's first word. */
CUresult on_nvml_accounting_v2(enum aliquot_symbol symbol, void *device, unsigned *stats)
{
    struct slot *slot = stats ? nvml_slot(device) : NULL;
    if (slot && !link_is_own(slot, *stats))
        return NVML_ERROR_NOT_FOUND;
    return REAL_AT(symbol, void *, unsigned *)(device, stats);
}

CUresult on_nvml_process_name(enum aliquot_symbol symbol, unsigned pid, char *name, unsigned size)
{
    bool mine = conf_load() != MODE_HELD || pid == (unsigned)getpid();
    for (unsigned i = 0; !mine && slot_at(i); i++)
        mine = link_is_own(slot_at(i), pid);
    return mine ? REAL_AT(symbol, unsigned, char *, unsigned)(pid, name, size) : NVML_ERROR_NOT_FOUND;
}

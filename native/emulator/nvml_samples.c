/* nvml_samples.c: the longer tales of the same ledger: samples of the last seconds, details and accounts of processes. */
#include <string.h>
#include "nvml.h"

typedef struct {
    unsigned pid;
    uint64_t used;
    unsigned gpu_instance, compute_instance;
} process_2;
typedef struct {
    unsigned pid;
    uint64_t used;
    unsigned gpu_instance, compute_instance;
    uint64_t protected_;
} detail;
typedef struct {
    unsigned version, mode, count;
    detail *rows;
} details;
typedef struct {
    unsigned pid;
    uint64_t time;
    unsigned sm, mem, enc, dec;
} process_sample;
typedef struct {
    uint64_t time;
    unsigned pid, sm, mem, enc, dec, jpg, ofa;
} usage;
typedef struct {
    unsigned version, count;
    uint64_t last_seen;
    usage *rows;
} usages;
typedef struct {
    uint64_t time;
    union {
        unsigned number;
        uint64_t large;
    } value;
} sample;
typedef struct {
    unsigned gpu_percent, memory_percent;
    uint64_t most_bytes, time_ms, start_us;
    unsigned running, reserved[5];
} account;
enum { VERSION_MISMATCH = 25, GPU_SAMPLES = 1, MEMORY_SAMPLES = 2, ROOM = EMU_SLOTS };

int nvmlDeviceGetComputeRunningProcesses_v3(nv_device d, unsigned *n, process_2 *list);
int nvmlDeviceGetProcessUtilization(nv_device d, process_sample *list, unsigned *count, uint64_t last_seen);

static int whole(unsigned found, unsigned *count, const void *rows, void *to, size_t size)
{
    unsigned room = to ? *count : 0;
    *count = found;
    if (found > room)
        return NV_SIZE;
    memcpy(to ? to : (void *)rows, rows, found * size);
    return NV_OK;
}

API int nvmlDeviceGetRunningProcessDetailList(nv_device d, details *out)
{
    NEED_PLACE(out);
    process_2 list[ROOM];
    detail rows[ROOM];
    unsigned found = ROOM;
    if (!out || out->version != (sizeof *out | 1u << 24))
        return out ? VERSION_MISMATCH : NV_INVALID;
    int r = nvmlDeviceGetComputeRunningProcesses_v3(d, &found, list);
    if (r)
        return r;
    for (unsigned i = 0; i < found; i++)
        rows[i] = (detail){list[i].pid, list[i].used, ~0u, ~0u, 0};
    return whole(found, &out->count, rows, out->rows, sizeof *rows);
}

API int nvmlDeviceGetProcessesUtilizationInfo(nv_device d, usages *out)
{
    NEED_PLACE(out);
    process_sample list[ROOM];
    usage rows[ROOM];
    unsigned found = ROOM;
    if (!out || out->version != (sizeof *out | 1u << 24))
        return out ? VERSION_MISMATCH : NV_INVALID;
    int r = nvmlDeviceGetProcessUtilization(d, list, &found, out->last_seen);
    if (r)
        return r;
    for (unsigned i = 0; i < found; i++)
        rows[i] = (usage){list[i].time, list[i].pid, list[i].sm, list[i].mem, 0, 0, 0, 0};
    return whole(found, &out->count, rows, out->rows, sizeof *rows);
}

/* One sample per sampled tenth of a second: how busy the GPU was since the one before. */
API int nvmlDeviceGetSamples(nv_device d, int type, uint64_t since_us, int *value_type, unsigned *count, sample *out)
{
    NEED_DEVICE(d);
    NEED_PLACE(value_type && count);
    if (emu_conf()->fault.nvml_utilization_unsupported || (type != GPU_SAMPLES && type != MEMORY_SAMPLES))
        return NV_NOT_SUPPORTED;
    sample rows[EMU_SAMPLES];
    unsigned found = 0;
    emu_gpu *g = &shm_open_engine()->gpu[at];
    shm_lock(at);
    for (unsigned i = 1; i < EMU_SAMPLES; i++) {
        unsigned now = (g->sample_at + i) % EMU_SAMPLES, before = (now + EMU_SAMPLES - 1) % EMU_SAMPLES;
        if (!g->sample_ns[before] || g->sample_ns[now] <= g->sample_ns[before] || g->sample_ns[now] / 1000 <= since_us)
            continue;
        uint64_t busy = g->sample_busy[now] - g->sample_busy[before], span = g->sample_ns[now] - g->sample_ns[before];
        rows[found++] = (sample){g->sample_ns[now] / 1000, {(unsigned)(busy * 100 / span)}};
    }
    shm_unlock(at);
    *value_type = 1; /* unsigned int */
    if (!out && found) {
        *count = found;
        return NV_OK;
    }
    return found ? whole(found, count, rows, out, sizeof *rows) : NV_NOT_FOUND;
}

API int nvmlDeviceGetAccountingMode(nv_device d, int *mode)
{
    NEED_DEVICE(d);
    NEED_PLACE(mode);
    *mode = 1;
    return NV_OK;
}

API int nvmlDeviceGetAccountingBufferSize(nv_device d, unsigned *size)
{
    NEED_DEVICE(d);
    NEED_PLACE(size);
    *size = ROOM;
    return NV_OK;
}

/* Only processes that run are remembered. */
API int nvmlDeviceGetAccountingPids(nv_device d, unsigned *count, unsigned *pids)
{
    NEED_PLACE(count);
    process_2 list[ROOM];
    unsigned rows[ROOM], found = ROOM;
    int r = nvmlDeviceGetComputeRunningProcesses_v3(d, &found, list);
    if (r)
        return r;
    for (unsigned i = 0; i < found; i++)
        rows[i] = list[i].pid;
    return whole(found, count, rows, pids, sizeof *rows);
}

API int nvmlDeviceGetAccountingStats(nv_device d, unsigned pid, account *out)
{
    NEED_DEVICE(d);
    NEED_PLACE(out);
    emu_shm *s = shm_open_engine();
    shm_sweep();
    for (int i = 0; i < s->slots; i++)
        if (s->slot[i].pid && nv_pid(i) == pid) {
            const emu_share *share = &s->slot[i].gpu[at];
            *out = (account){.most_bytes = share->used, .time_ms = share->busy_ns / 1000000, .running = 1};
            return NV_OK;
        }
    return NV_NOT_FOUND;
}

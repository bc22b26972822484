/* nvml_usage.c: memory, processes and utilisation, read from engine.shm. */
#include <string.h>
#include "nvml.h"

typedef struct { uint64_t total, free, used; } memory_1;
typedef struct {
    unsigned version;
    uint64_t total, reserved, free, used;
} memory_2;
typedef struct {
    unsigned pid;
    uint64_t used;
} process_1;
typedef struct {
    unsigned pid;
    uint64_t used;
    unsigned gpu_instance, compute_instance;
} process_2;
typedef struct {
    unsigned pid;
    uint64_t time;
    unsigned sm, mem, enc, dec;
} process_sample;

API int nvmlDeviceGetMemoryInfo(nv_device d, memory_1 *out)
{
    NEED_DEVICE(d);
    NEED_PLACE(out);
    shm_memory(at, &out->total, &out->free);
    out->used = out->total - out->free;
    return NV_OK;
}

API int nvmlDeviceGetMemoryInfo_v2(nv_device d, memory_2 *out)
{
    NEED_DEVICE(d);
    NEED_PLACE(out);
    if (out->version != (sizeof *out | 2u << 24))
        return 25; /* argument version mismatch */
    shm_memory(at, &out->total, &out->free);
    out->reserved = 0;
    out->used = out->total - out->free;
    return NV_OK;
}

API int nvmlDeviceGetBAR1MemoryInfo(nv_device d, memory_1 *out)
{
    NEED_DEVICE(d);
    NEED_PLACE(out);
    *out = (memory_1){256ull << 20, 250ull << 20, 6ull << 20};
    return NV_OK;
}

/* The process of a slot by the caller's PID namespace; 0 where the caller does not see it. */
unsigned nv_pid(int slot)
{
    int pid = shm_pid(slot);
    return pid > 0 ? (unsigned)(pid + emu_conf()->fault.nvml_pid_shift) : 0;
}

static int processes(nv_device d, unsigned *count, void *list, size_t size)
{
    NEED_DEVICE(d);
    if (emu_conf()->fault.nvml_processes_unsupported)
        return NV_NOT_SUPPORTED;
    emu_shm *s = shm_open_engine();
    unsigned room = list ? *count : 0, found = 0;
    shm_sweep();
    for (int i = 0; i < s->slots; i++) {
        const emu_slot *slot = &s->slot[i];
        if (!slot->pid || (!slot->gpu[at].used && !slot->gpu[at].contexts))
            continue;
        process_2 p = {nv_pid(i), slot->gpu[at].used, ~0u, ~0u};
        if (!p.pid)
            continue;
        if (found < room)
            memcpy((char *)list + found * size, &p, size);
        found++;
    }
    *count = found;
    return found > room ? NV_SIZE : NV_OK;
}

API int nvmlDeviceGetComputeRunningProcesses(nv_device d, unsigned *n, process_1 *list)
{
    NEED_PLACE(n);
    return processes(d, n, list, sizeof *list);
}

API int nvmlDeviceGetComputeRunningProcesses_v2(nv_device d, unsigned *n, process_2 *list)
{
    NEED_PLACE(n);
    return processes(d, n, list, sizeof *list);
}

API int nvmlDeviceGetComputeRunningProcesses_v3(nv_device d, unsigned *n, process_2 *list)
{
    NEED_PLACE(n);
    return processes(d, n, list, sizeof *list);
}

static int no_processes(nv_device d, unsigned *n)
{
    NEED_DEVICE(d);
    NEED_PLACE(n);
    *n = 0;
    return NV_OK;
}

API int nvmlDeviceGetGraphicsRunningProcesses(nv_device d, unsigned *n, void *list) { return no_processes(d, n); }
API int nvmlDeviceGetGraphicsRunningProcesses_v2(nv_device d, unsigned *n, void *list) { return no_processes(d, n); }
API int nvmlDeviceGetGraphicsRunningProcesses_v3(nv_device d, unsigned *n, void *list) { return no_processes(d, n); }
API int nvmlDeviceGetMPSComputeRunningProcesses(nv_device d, unsigned *n, void *list) { return no_processes(d, n); }
API int nvmlDeviceGetMPSComputeRunningProcesses_v2(nv_device d, unsigned *n, void *list) { return no_processes(d, n); }
API int nvmlDeviceGetMPSComputeRunningProcesses_v3(nv_device d, unsigned *n, void *list) { return no_processes(d, n); }

/* Busy share of the last sampled half second, 0 to 100. The clock stands still on an idle GPU; real time does not. */
static unsigned busy_percent(int gpu)
{
    emu_gpu *g = &shm_open_engine()->gpu[gpu];
    uint64_t now = shm_now(), window = 5 * EMU_SAMPLE_NS, since = now - window, before = 0, before_ns = 0;
    shm_lock(gpu);
    for (int i = 0; i < EMU_SAMPLES; i++)
        if (g->sample_ns[i] && g->sample_ns[i] <= since && g->sample_ns[i] >= before_ns) {
            before_ns = g->sample_ns[i];
            before = g->sample_busy[i];
        }
    uint64_t busy = g->clock_ns > since ? g->busy_ns - before : 0;
    shm_unlock(gpu);
    busy = busy > window ? window : busy;
    return (unsigned)(busy * 100 / window);
}

API int nvmlDeviceGetUtilizationRates(nv_device d, unsigned *out)
{
    NEED_DEVICE(d);
    NEED_PLACE(out);
    if (emu_conf()->fault.nvml_utilization_unsupported)
        return NV_NOT_SUPPORTED;
    uint64_t total, free_bytes;
    shm_memory(at, &total, &free_bytes);
    out[0] = busy_percent(at);
    out[1] = out[0] ? (unsigned)((total - free_bytes) * 100 / total) : 0;
    return NV_OK;
}

API int nvmlDeviceGetProcessUtilization(nv_device d, process_sample *list, unsigned *count, uint64_t last_seen)
{
    NEED_DEVICE(d);
    NEED_PLACE(count);
    if (emu_conf()->fault.nvml_utilization_unsupported)
        return NV_NOT_SUPPORTED;
    emu_shm *s = shm_open_engine();
    unsigned found = 0, room = list ? *count : 0;
    uint64_t now = shm_now();
    shm_sweep();
    for (int i = 0; i < s->slots; i++) {
        emu_share *g = &s->slot[i].gpu[at];
        unsigned pid = s->slot[i].pid && g->contexts ? nv_pid(i) : 0;
        if (!pid)
            continue;
        if (found++ >= room)
            continue;
        uint64_t span = now - g->mark_ns, busy = g->busy_ns - g->busy_mark;
        unsigned share = g->mark_ns && span ? (unsigned)((busy > span ? span : busy) * 100 / span) : 0;
        if (span > EMU_SAMPLE_NS) {
            g->mark_ns = now;
            g->busy_mark = g->busy_ns;
        }
        list[found - 1] = (process_sample){pid, now / 1000, share, 0, 0, 0};
    }
    *count = found;
    return found > room ? NV_SIZE : found ? NV_OK : NV_NOT_FOUND;
}

/* in_use.c: what the driver takes for something whose size it alone knows, such as code: the difference of two readings.
 *
 * NVML counts memory by process, so between two readings of the tenant's own processes no neighbour's allocations count,
 * and engines that start together are charged as if alone. Where NVML does not tell, as in a pid namespace that its
 * numbers are not of, a reading is of the whole device, and what a neighbour allocates in the same moment counts too.
 */
#include "memory/charge.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define ROOM 256 /* processes on one GPU; of more, NVML's answer is not read */

static CUresult nvml_ready = NVML_ERROR_FUNCTION_NOT_FOUND;

/* The tenant's own file comes first: a program that opens NVML by its name later gets what is there already. */
static void nvml_open(void)
{
    static const char file[] = "lib/libnvidia-ml.so.1";
    char path[PATH_BYTES + sizeof file];
    conf_path(path);
    char *slash = strrchr(path, '/');
    if (!slash)
        return;
    memcpy(slash + 1, file, sizeof file);
    if (dlopen(path, RTLD_NOW | RTLD_LOCAL))
        nvml_ready = REAL(nvmlInit_v2, void)();
}

static bool nvml_in_use(const struct slot *slot, uint64_t *bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct nvml_process_v2 rows[ROOM];
    char uuid[41] = "GPU-";
    void *device;
    unsigned count = ROOM, length = 4;
    bool found = false;
    for (unsigned i = 0; i < 16; i++)
        length += (unsigned)snprintf(uuid + length, sizeof uuid - length,
                                     i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", slot->link.uuid[i]);
    pthread_once(&once, nvml_open);
    if (nvml_ready != NVML_SUCCESS ||
        REAL(nvmlDeviceGetHandleByUUID, const char *, void **)(uuid, &device) != NVML_SUCCESS ||
        REAL(nvmlDeviceGetComputeRunningProcesses_v3, void *, unsigned *, void *)(device, &count, rows) != NVML_SUCCESS)
        return false;
    *bytes = 0;
    for (unsigned i = 0; i < count; i++)
        if (link_is_own(slot, rows[i].pid)) {
            if (rows[i].bytes == UINT64_MAX) /* not available */
                return false;
            *bytes += rows[i].bytes;
            found = true;
        }
    return found;
}

uint64_t memory_in_use(const struct slot *slot, bool *own)
{
    uint64_t bytes = 0;
    *own = *own && nvml_in_use(slot, &bytes);
    if (*own)
        return bytes;
    size_t free_bytes = 0, total = 0;
    int mode = quietly(CAPTURE_MODE_RELAXED);
    CUresult result = REAL(cuMemGetInfo_v2, size_t *, size_t *)(&free_bytes, &total);
    quietly(mode);
    return result == CUDA_SUCCESS ? total - free_bytes : 0;
}

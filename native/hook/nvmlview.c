/* nvmlview.c: NVML shows the tenant its own memory and its own processes. Identity, topology, clocks and sensors are the
 * device's; settings of the device are refused in trampolines (the `deny` list of hooks.toml).
 */
#include "charge.h"

#include <stdlib.h>
#include <string.h>

void view_of_slot(struct slot *slot, uint64_t *free_bytes, uint64_t *total_bytes);

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The slot of an NVML handle, by "GPU-01234567-89ab-...". */
static struct slot *slot_of_handle(void *device)
{
    char text[96] = "";
    uint8_t uuid[16];
    unsigned digits = 0;
    if (conf_load() != MODE_HELD || REAL(nvmlDeviceGetUUID, void *, char *, unsigned)(device, text, sizeof text) != 0)
        return NULL;
    const char *at = strchr(text, '-');
    for (; at && *at && digits < 32; at++) {
        int value = hex(*at);
        if (value < 0)
            continue;
        uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] | value : value << 4);
        digits++;
    }
    struct slot *slot = digits == 32 ? slot_of_uuid(uuid) : NULL;
    return slot && slot_attach(slot) ? slot : NULL;
}

CUresult on_nvml_memory(enum aliquot_symbol symbol, void *device, struct nvml_memory *memory)
{
    CUresult result = REAL_AT(symbol, void *, struct nvml_memory *)(device, memory);
    struct slot *slot = result == NVML_SUCCESS ? slot_of_handle(device) : NULL;
    if (slot) {
        uint64_t free_bytes = memory->free, total = memory->total;
        view_of_slot(slot, &free_bytes, &total);
        *memory = (struct nvml_memory){total, free_bytes, total > free_bytes ? total - free_bytes : 0};
    }
    return result;
}

CUresult on_nvml_memory_v2(enum aliquot_symbol symbol, void *device, struct nvml_memory_v2 *memory)
{
    CUresult result = REAL_AT(symbol, void *, struct nvml_memory_v2 *)(device, memory);
    struct slot *slot = result == NVML_SUCCESS ? slot_of_handle(device) : NULL;
    if (slot) {
        uint64_t free_bytes = memory->free, total = memory->total;
        view_of_slot(slot, &free_bytes, &total);
        memory->total = total;
        memory->reserved = 0;
        memory->free = free_bytes;
        memory->used = total > free_bytes ? total - free_bytes : 0;
    }
    return result;
}

/* NVML's own protocol: too small a buffer is answered with the size that would do. Others' processes are left out: a
 * tenant's are those whose pid lives in this process's view and may be signalled by it. */
static CUresult own_processes(enum aliquot_symbol symbol, void *device, unsigned *count, void *infos, size_t size)
{
    CUresult result = REAL_AT(symbol, void *, unsigned *, void *)(device, count, infos);
    if (result != NVML_SUCCESS || !infos || !count || !slot_of_handle(device))
        return result;
    unsigned kept = 0, self = (unsigned)getpid();
    char *rows = infos;
    for (unsigned i = 0; i < *count; i++) {
        unsigned pid;
        memcpy(&pid, rows + i * size, sizeof pid);
        if (pid == self || getpgid((pid_t)pid) == getpgrp()) {
            memmove(rows + kept * size, rows + i * size, size);
            kept++;
        }
    }
    *count = kept;
    return result;
}

CUresult on_nvml_processes_v1(enum aliquot_symbol symbol, void *device, unsigned *count, void *infos)
{
    return own_processes(symbol, device, count, infos, sizeof(struct nvml_process_v1));
}

CUresult on_nvml_processes(enum aliquot_symbol symbol, void *device, unsigned *count, void *infos)
{
    return own_processes(symbol, device, count, infos, sizeof(struct nvml_process_v2));
}

/* nvmlview.c: NVML shows the tenant its own memory; its processes and its share of the work are in nvmluse.c. Identity,
 * topology, clocks and sensors are the device's. Settings of the device, and queries whose only answer covers all
 * processes, are refused in trampolines (the `deny` and `hide` lists of hooks.toml).
 */
#include "nvml/nvmlview.h"

#include <string.h>

void view_of_slot(struct slot *slot, uint64_t *free_bytes, uint64_t *total_bytes);

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The slot of an NVML handle, by "GPU-01234567-89ab-...". */
struct slot *nvml_slot(void *device)
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
    return slot && slot_view(slot) ? slot : NULL;
}

CUresult on_nvml_memory(enum aliquot_symbol symbol, void *device, struct nvml_memory *memory)
{
    CUresult result = REAL_AT(symbol, void *, struct nvml_memory *)(device, memory);
    struct slot *slot = result == NVML_SUCCESS ? nvml_slot(device) : NULL;
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
    struct slot *slot = result == NVML_SUCCESS ? nvml_slot(device) : NULL;
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

/* What others map of the GPU's window is theirs to know. */
CUresult on_nvml_bar1(enum aliquot_symbol symbol, void *device, struct nvml_memory *memory)
{
    CUresult result = REAL_AT(symbol, void *, struct nvml_memory *)(device, memory);
    if (result == NVML_SUCCESS && nvml_slot(device))
        *memory = (struct nvml_memory){memory->total, memory->total, 0};
    return result;
}

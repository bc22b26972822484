/* nvml_topology.c: how the devices are connected, from the profile's matrix. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nvml.h"

#define SWITCH_PCI "0000:c0:00.0"

static int nvlinks(int a, int b)
{
    const char *link = emu_conf()->link[a][b];
    return a != b && !strncmp(link, "NV", 2) ? (int)strtol(link + 2, NULL, 10) : 0;
}

API int nvmlDeviceGetTopologyCommonAncestor(nv_device a, nv_device b, int *level)
{
    NEED_PLACE(level);
    static const struct {
        const char *name;
        int level;
    } levels[] = {{"PIX", 10}, {"PXB", 20}, {"PHB", 30}, {"NODE", 40}, {"SYS", 50}};
    NEED_DEVICE(a);
    int other = nv_index(b);
    if (other < 0)
        return NV_INVALID;
    /* A matrix that says NVLink hides the way over PCIe: take the nearest that the NUMA nodes allow. */
    *level = at == other ? 0 : emu_conf()->gpu[at].numa == emu_conf()->gpu[other].numa ? 40 : 50;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(emu_conf()->link[at][other], levels[i].name))
            *level = levels[i].level;
    return NV_OK;
}

/* The peer of one link, count of GPUs for a switch, -1 when the link is not there. */
static int peer_of(int gpu, unsigned link)
{
    const emu_config *c = emu_conf();
    int total = 0, at = 0;
    for (int i = 0; i < c->count; i++)
        total += nvlinks(gpu, i);
    if (total > c->nvlinks)
        return link < (unsigned)c->nvlinks ? c->count : -1;
    for (int i = 0; i < c->count; i++) {
        at += nvlinks(gpu, i);
        if (link < (unsigned)at)
            return i;
    }
    return -1;
}

API int nvmlDeviceGetNvLinkState(nv_device d, unsigned link, unsigned *active)
{
    NEED_DEVICE(d);
    NEED_PLACE(active);
    if (!emu_conf()->nvlinks)
        return NV_NOT_SUPPORTED;
    if (link >= (unsigned)emu_conf()->nvlinks)
        return NV_INVALID;
    *active = peer_of(at, link) >= 0;
    return NV_OK;
}

API int nvmlDeviceGetNvLinkVersion(nv_device d, unsigned link, unsigned *version)
{
    NEED_DEVICE(d);
    NEED_PLACE(version);
    if (link >= (unsigned)emu_conf()->nvlinks)
        return emu_conf()->nvlinks ? NV_INVALID : NV_NOT_SUPPORTED;
    *version = emu_conf()->major == 7 ? 2 : emu_conf()->major == 8 ? 3 : 4;
    return NV_OK;
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(nv_device d, unsigned link, nv_pci *out)
{
    NEED_DEVICE(d);
    NEED_PLACE(out);
    if (!emu_conf()->nvlinks)
        return NV_NOT_SUPPORTED;
    int peer = peer_of(at, link);
    if (peer < 0)
        return NV_INVALID;
    nv_fill_pci(peer == emu_conf()->count ? SWITCH_PCI : emu_conf()->gpu[peer].pci, out);
    return NV_OK;
}

API int nvmlDeviceGetNvLinkRemotePciInfo(nv_device d, unsigned link, nv_pci *out)
{
    NEED_PLACE(out);
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(d, link, out);
}

API int nvmlDeviceGetNvLinkRemoteDeviceType(nv_device d, unsigned link, int *type)
{
    NEED_DEVICE(d);
    NEED_PLACE(type);
    int peer = peer_of(at, link);
    if (peer < 0)
        return NV_INVALID;
    *type = peer == emu_conf()->count ? 2 : 0;
    return NV_OK;
}

API int nvmlDeviceGetNvLinkCapability(nv_device d, unsigned link, int capability, unsigned *value)
{
    NEED_DEVICE(d);
    NEED_PLACE(value);
    if (link >= (unsigned)emu_conf()->nvlinks)
        return emu_conf()->nvlinks ? NV_INVALID : NV_NOT_SUPPORTED;
    *value = 1;
    return NV_OK;
}

API int nvmlDeviceGetP2PStatus(nv_device a, nv_device b, int what, int *status)
{
    NEED_DEVICE(a);
    NEED_PLACE(status);
    int other = nv_index(b);
    if (other < 0)
        return NV_INVALID;
    *status = what == 2 && !nvlinks(at, other) ? 5 : 0;
    return NV_OK;
}

/* A list such as 0-3,8 as a bit set of `words` longs. */
static void cpu_set(const char *list, unsigned words, unsigned long *set)
{
    memset(set, 0, words * sizeof *set);
    while (list && *list) {
        char *end;
        long from = strtol(list, &end, 10), to = from;
        if (end == list)
            return;
        if (*end == '-')
            to = strtol(end + 1, &end, 10);
        for (long cpu = from; cpu <= to && cpu < (long)words * 64; cpu++)
            set[cpu / 64] |= 1ul << cpu % 64;
        list = *end == ',' ? end + 1 : NULL;
    }
}

API int nvmlDeviceGetCpuAffinity(nv_device d, unsigned words, unsigned long *set)
{
    NEED_DEVICE(d);
    NEED_PLACE(set);
    cpu_set(emu_conf()->gpu[at].cpus, words, set);
    return NV_OK;
}

API int nvmlDeviceGetCpuAffinityWithinScope(nv_device d, unsigned words, unsigned long *set, int scope)
{
    NEED_PLACE(set);
    return nvmlDeviceGetCpuAffinity(d, words, set);
}

API int nvmlDeviceGetMemoryAffinity(nv_device d, unsigned words, unsigned long *set, int scope)
{
    NEED_DEVICE(d);
    NEED_PLACE(set);
    memset(set, 0, words * sizeof *set);
    if (words)
        set[0] = 1ul << emu_conf()->gpu[at].numa;
    return NV_OK;
}

API int nvmlDeviceGetNumaNodeId(nv_device d, unsigned *node)
{
    NEED_DEVICE(d);
    NEED_PLACE(node);
    *node = (unsigned)emu_conf()->gpu[at].numa;
    return NV_OK;
}

/* device.c: the devices of the profile and their attributes. */
#include <stdio.h>
#include <string.h>
#include "emu.h"
#include "shm.h"

#define NEED_DEV(d)                                                                                                    \
    NEED_INIT();                                                                                                       \
    if ((d) < 0 || (d) >= emu_conf()->count)                                                                           \
    return CU_INVALID_DEVICE

API CUresult cuDeviceGetCount(int *count)
{
    NEED_INIT();
    if (!count)
        return CU_INVALID;
    *count = emu_conf()->count;
    return CU_OK;
}

API CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
    NEED_DEV(ordinal);
    NEED_OUT(dev);
    *dev = ordinal;
    return CU_OK;
}

API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    NEED_DEV(dev);
    if (!name || len <= 0)
        return CU_INVALID;
    snprintf(name, (size_t)len, "%s", emu_conf()->model);
    return CU_OK;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    NEED_DEV(dev);
    NEED_OUT(uuid);
    memcpy(uuid->bytes, emu_conf()->all[shm_place(dev)].uuid, 16); /* of where it is now; its PCI address stays */
    return CU_OK;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) { return cuDeviceGetUuid_v2(uuid, dev); }

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    NEED_DEV(dev);
    if (!bytes)
        return CU_INVALID;
    *bytes = emu_conf()->memory;
    return CU_OK;
}

API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice dev)
{
    NEED_DEV(dev);
    NEED_OUT(bytes);
    uint64_t size = emu_conf()->memory;
    *bytes = size > 0xffffffffull ? 0xffffffffu : (unsigned)size;
    return CU_OK;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    NEED_DEV(dev);
    NEED_OUT(major && minor);
    *major = emu_conf()->major;
    *minor = emu_conf()->minor;
    return CU_OK;
}

/* Attributes that are the same on every emulated device, by number. */
static const struct {
    short id;
    int value;
} constant[] = {
    {1, 1024},   {2, 1024},     {3, 1024},    {4, 64},          {5, 2147483647}, {6, 65535},      {7, 65535},
    {8, 49152},  {9, 65536},    {10, 32},     {11, 2147483647}, {12, 65536},     {14, 512},       {15, 1},
    {19, 1},     {21, 131072},  {22, 131072}, {23, 65536},      {24, 16384},     {25, 16384},     {26, 16384},
    {27, 32768}, {28, 32768},   {29, 2048},   {30, 512},        {31, 1},         {32, 1},         {40, 3},
    {41, 1},     {42, 32768},   {43, 2048},   {45, 32768},      {46, 32768},     {51, 32},        {52, 32768},
    {53, 32768}, {54, 2046},    {55, 32768},  {56, 131072},     {57, 65536},     {69, 268435456}, {70, 131072},
    {71, 65000}, {72, 2097120}, {73, 32768},  {74, 32768},      {77, 32768},     {78, 1},         {79, 1},
    {80, 1},     {82, 65536},   {83, 1},      {87, 2},          {89, 1},         {90, 1},         {91, 1},
    {95, 1},     {96, 1},       {98, 1},      {99, 1},          {102, 1},        {103, 1},        {111, 1024},
    {113, 1},    {114, 1},      {115, 1},     {119, 1},         {121, 1},        {122, 1},        {123, 1},
    {125, 1},    {126, 1},      {134, 0},     {131, -1},
};

static int shared_optin(const emu_config *c)
{
    return c->major == 7 && c->minor == 5 ? 65536 : c->shared_sm - (c->major >= 8 ? 1024 : 0);
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice dev)
{
    NEED_DEV(dev);
    if (!value || attribute <= 0)
        return CU_INVALID;
    const emu_config *c = emu_conf();
    unsigned domain = 0, bus = 0, device = 0;
    sscanf(c->gpu[dev].pci, "%x:%x:%x", &domain, &bus, &device);
    *value = 0;
    for (size_t i = 0; i < sizeof constant / sizeof *constant; i++)
        if (constant[i].id == attribute)
            *value = constant[i].value;
    switch (attribute) {
    case 13: *value = c->clock_khz; break;
    case 16: *value = c->sms; break;
    case 33: *value = (int)bus; break;
    case 34: *value = (int)device; break;
    case 36: *value = c->mem_clock_khz; break;
    case 37: *value = c->bus_bits; break;
    case 38: *value = c->l2_bytes; break;
    case 39: *value = c->threads_sm; break;
    case 50: *value = (int)domain; break;
    case 75: *value = c->major; break;
    case 76: *value = c->minor; break;
    case 81: *value = c->shared_sm; break;
    case 97: *value = shared_optin(c); break;
    case 106: *value = c->threads_sm / 64; break;
    case 108: *value = c->major >= 8 ? c->l2_bytes * 3 / 4 : 0; break;
    case 120:
    case 127:
    case 132: *value = c->major >= 9; break;
    }
    return CU_OK;
}

API CUresult cuDeviceGetProperties(int *prop, CUdevice dev)
{
    NEED_DEV(dev);
    NEED_OUT(prop);
    const emu_config *c = emu_conf();
    const int values[] = {1024,  1024,  1024, 64,         2147483647, 65535,        65535,
                          49152, 65536, 32,   2147483647, 65536,      c->clock_khz, 512};
    memcpy(prop, values, sizeof values);
    return CU_OK;
}

API CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev)
{
    NEED_DEV(dev);
    NEED_OUT(text && len > 0);
    snprintf(text, (size_t)len, "%s", emu_conf()->gpu[dev].pci);
    return CU_OK;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text)
{
    NEED_INIT();
    NEED_OUT(dev && text);
    for (int i = 0; i < emu_conf()->count; i++)
        if (!strcmp(text, emu_conf()->gpu[i].pci)) {
            *dev = i;
            return CU_OK;
        }
    return CU_INVALID_DEVICE;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    NEED_DEV(dev);
    NEED_DEV(peer);
    NEED_OUT(can);
    *can = dev != peer;
    return CU_OK;
}

API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to)
{
    NEED_DEV(from);
    NEED_DEV(to);
    NEED_OUT(value);
    if (from == to)
        return CU_INVALID_DEVICE;
    bool nvlink = emu_conf()->link[from][to][0] == 'N' && emu_conf()->link[from][to][1] == 'V';
    *value = attribute == 1 ? (nvlink ? 2 : 1) : attribute == 3 ? nvlink : 1;
    return CU_OK;
}

API CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice dev)
{
    NEED_DEV(dev);
    NEED_OUT(supported);
    *supported = 0;
    return CU_OK;
}

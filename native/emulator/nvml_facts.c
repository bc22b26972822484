/* nvml_facts.c: constant facts of the model, and readings that only have to be plausible. */
#include <string.h>
#include "nvml.h"

API int nvmlDeviceGetCudaComputeCapability(nv_device d, int *major, int *minor)
{
    NEED_DEVICE(d);
    NEED_PLACE(major && minor);
    *major = emu_conf()->major;
    *minor = emu_conf()->minor;
    return NV_OK;
}

API int nvmlDeviceGetArchitecture(nv_device d, unsigned *arch)
{
    NEED_DEVICE(d);
    NEED_PLACE(arch);
    const emu_config *c = emu_conf();
    *arch = c->major >= 9 ? 9 : c->major == 8 ? 7 : c->minor == 5 ? 6 : 5;
    return NV_OK;
}

API int nvmlDeviceGetMigMode(nv_device d, unsigned *current, unsigned *pending)
{
    NEED_DEVICE(d);
    NEED_PLACE(current && pending);
    if (emu_conf()->major < 8)
        return NV_NOT_SUPPORTED;
    *current = *pending = emu_conf()->gpu[at].mig;
    return NV_OK;
}

API int nvmlDeviceIsMigDeviceHandle(nv_device d, unsigned *is_mig)
{
    NEED_DEVICE(d);
    NEED_PLACE(is_mig);
    *is_mig = 0;
    return NV_OK;
}

API int nvmlDeviceGetTemperature(nv_device d, int sensor, unsigned *celsius)
{
    NEED_DEVICE(d);
    NEED_PLACE(celsius);
    *celsius = 41;
    return NV_OK;
}

API int nvmlDeviceGetPowerManagementLimit(nv_device d, unsigned *milliwatt)
{
    NEED_DEVICE(d);
    NEED_PLACE(milliwatt);
    *milliwatt = (unsigned)emu_conf()->power_w * 1000;
    return NV_OK;
}

API int nvmlDeviceGetEnforcedPowerLimit(nv_device d, unsigned *milliwatt)
{
    NEED_PLACE(milliwatt);
    return nvmlDeviceGetPowerManagementLimit(d, milliwatt);
}

API int nvmlDeviceGetPowerUsage(nv_device d, unsigned *milliwatt)
{
    NEED_DEVICE(d);
    NEED_PLACE(milliwatt);
    *milliwatt = (unsigned)emu_conf()->power_w * 200;
    return NV_OK;
}

API int nvmlDeviceGetMaxClockInfo(nv_device d, int which, unsigned *mhz)
{
    NEED_DEVICE(d);
    NEED_PLACE(mhz);
    *mhz = (unsigned)(which == 2 ? emu_conf()->mem_clock_khz : emu_conf()->clock_khz) / 1000;
    return NV_OK;
}

API int nvmlDeviceGetClockInfo(nv_device d, int which, unsigned *mhz)
{
    return nvmlDeviceGetMaxClockInfo(d, which, mhz);
}

#define CONSTANT(name, value)                                                                                          \
    API int name(nv_device d, unsigned *out)                                                                           \
    {                                                                                                                  \
        NEED_DEVICE(d);                                                                                                \
        NEED_PLACE(out);                                                                                               \
        *out = (unsigned)(value);                                                                                      \
        return NV_OK;                                                                                                  \
    }
CONSTANT(nvmlDeviceGetBrand, emu_conf()->major == 7 ? 2 : 14)
CONSTANT(nvmlDeviceGetComputeMode, 0)
CONSTANT(nvmlDeviceGetPersistenceMode, 1)
CONSTANT(nvmlDeviceGetPerformanceState, 0)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, emu_conf()->pcie_gen)
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, emu_conf()->pcie_gen)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, emu_conf()->pcie_width)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, emu_conf()->pcie_width)
CONSTANT(nvmlDeviceGetNumGpuCores, emu_conf()->sms * 64)
CONSTANT(nvmlDeviceGetMemoryBusWidth, emu_conf()->bus_bits)
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)

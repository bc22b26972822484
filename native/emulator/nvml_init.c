/* nvml_init.c: start and stop, versions, error texts, and finding devices. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "nvml.h"

static _Atomic int users;

int nv_index(nv_device d)
{
    const emu_config *c = emu_conf();
    if (atomic_load(&users) <= 0)
        return -2;
    for (int i = 0; i < c->count; i++)
        if (d == &c->gpu[i])
            return nv_lost(i) ? -3 : i;
    return -1;
}

API int nvmlInitWithFlags(unsigned flags)
{
    if (emu_conf()->unread || !shm_open_engine())
        return NV_UNKNOWN;
    atomic_fetch_add(&users, 1);
    return NV_OK;
}

API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void)
{
    if (atomic_load(&users) <= 0)
        return NV_UNINITIALIZED;
    atomic_fetch_sub(&users, 1);
    return NV_OK;
}

static int text(char *to, unsigned size, const char *from)
{
    if (!to || size <= strlen(from))
        return to ? NV_SIZE : NV_INVALID;
    strcpy(to, from);
    return NV_OK;
}

API int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(to, size, emu_conf()->driver_name); }

API int nvmlSystemGetNVMLVersion(char *to, unsigned size)
{
    NEED_PLACE(to);
    char version[48];
    snprintf(version, sizeof version, "%d.%s", emu_conf()->cuda_version / 1000, emu_conf()->driver_name);
    return text(to, size, version);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    NEED_PLACE(version);
    *version = emu_conf()->cuda_version;
    return NV_OK;
}

API int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API int nvmlSystemGetProcessName(unsigned pid, char *to, unsigned size)
{
    NEED_PLACE(to);
    char path[64], name[256] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return NV_NOT_FOUND;
    size_t n = fread(name, 1, sizeof name - 1, f);
    fclose(f);
    name[n] = 0;
    return text(to, size, name);
}

API const char *nvmlErrorString(int code)
{
    static const char *const names[] = {"Success",
                                        "Uninitialized",
                                        "Invalid Argument",
                                        "Not Supported",
                                        "Insufficient Permissions",
                                        "Already Initialized",
                                        "Not Found",
                                        "Insufficient Size",
                                        "Insufficient External Power",
                                        "Driver Not Loaded",
                                        "Timeout"};
    if (code == NV_LOST)
        return "GPU is lost";
    return code >= 0 && code < (int)(sizeof names / sizeof *names) ? names[code] : "Unknown Error";
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
    if (atomic_load(&users) <= 0)
        return NV_UNINITIALIZED;
    NEED_PLACE(count);
    *count = (unsigned)emu_conf()->count;
    return NV_OK;
}

API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, nv_device *out)
{
    if (atomic_load(&users) <= 0)
        return NV_UNINITIALIZED;
    NEED_PLACE(out);
    if (index >= (unsigned)emu_conf()->count)
        return NV_INVALID;
    if (nv_lost((int)index))
        return NV_LOST;
    *out = &emu_conf()->gpu[index];
    return NV_OK;
}

API int nvmlDeviceGetHandleByIndex(unsigned index, nv_device *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

API int nvmlDeviceGetIndex(nv_device d, unsigned *index)
{
    NEED_DEVICE(d);
    NEED_PLACE(index);
    *index = (unsigned)at;
    return NV_OK;
}

API int nvmlDeviceGetMinorNumber(nv_device d, unsigned *minor)
{
    NEED_DEVICE(d);
    NEED_PLACE(minor);
    if (emu_conf()->fault.nvml_minor_unsupported)
        return NV_NOT_SUPPORTED;
    *minor = (unsigned)emu_conf()->gpu[at].minor;
    return NV_OK;
}

API int nvmlDeviceGetUUID(nv_device d, char *to, unsigned size)
{
    NEED_DEVICE(d);
    NEED_PLACE(to);
    char out[48] = "GPU-";
    int n = 4;
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, sizeof out - (size_t)n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      emu_conf()->gpu[at].uuid[i]);
    return text(to, size, out);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, nv_device *out)
{
    NEED_PLACE(uuid && out);
    char mine[64];
    for (int i = 0; i < emu_conf()->count; i++)
        if (nvmlDeviceGetUUID(&emu_conf()->gpu[i], mine, sizeof mine) == NV_OK && !strcmp(mine, uuid)) {
            *out = &emu_conf()->gpu[i];
            return NV_OK;
        }
    return atomic_load(&users) > 0 ? NV_NOT_FOUND : NV_UNINITIALIZED;
}

void nv_fill_pci(const char *from, nv_pci *out)
{
    memset(out, 0, sizeof *out);
    sscanf(from, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->text, sizeof out->text, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff);
    out->id = 0x20b010de;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, nv_device *out)
{
    NEED_PLACE(id && out);
    nv_pci asked, mine;
    nv_fill_pci(id, &asked);
    for (int i = 0; i < emu_conf()->count; i++) {
        nv_fill_pci(emu_conf()->gpu[i].pci, &mine);
        if (mine.domain == asked.domain && mine.bus == asked.bus && mine.device == asked.device)
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, out);
    }
    return NV_NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId(const char *id, nv_device *out)
{
    return nvmlDeviceGetHandleByPciBusId_v2(id, out);
}

API int nvmlDeviceGetPciInfo_v3(nv_device d, nv_pci *out)
{
    NEED_DEVICE(d);
    NEED_PLACE(out);
    nv_fill_pci(emu_conf()->gpu[at].pci, out);
    return NV_OK;
}

API int nvmlDeviceGetPciInfo_v2(nv_device d, nv_pci *out) { return nvmlDeviceGetPciInfo_v3(d, out); }

API int nvmlDeviceGetName(nv_device d, char *to, unsigned size)
{
    NEED_DEVICE(d);
    NEED_PLACE(to);
    return text(to, size, *emu_conf()->gpu[at].model ? emu_conf()->gpu[at].model : emu_conf()->model);
}

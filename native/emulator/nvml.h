/* nvml.h: what the files of the management library's twin share. A device handle is its configuration entry. */
#ifndef EMU_NVML_H
#define EMU_NVML_H
#include "config.h"
#include "shm.h"

#define API __attribute__((visibility("default")))
enum {
    NV_OK = 0,
    NV_UNINITIALIZED = 1,
    NV_INVALID = 2,
    NV_NOT_SUPPORTED = 3,
    NV_NO_PERMISSION = 4,
    NV_NOT_FOUND = 6,
    NV_SIZE = 7,
    NV_DRIVER = 9,
    NV_TIMEOUT = 10,
    NV_LOST = 15,
    NV_UNKNOWN = 999,
};
typedef const void *nv_device;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} nv_pci;
int nv_index(nv_device d); /* -1: no device, -2: the library is not initialized, -3: the GPU is lost */
unsigned nv_pid(int slot);
bool nv_lost(int gpu); /* by the file of faults, see nvml_faults.c */
void nv_fill_pci(const char *text, nv_pci *out);
#define NEED_DEVICE(d)                                                                                                 \
    int at;                                                                                                            \
    do {                                                                                                               \
        at = nv_index(d);                                                                                              \
        if (at == -2)                                                                                                  \
            return NV_UNINITIALIZED;                                                                                   \
        if (at == -3)                                                                                                  \
            return NV_LOST;                                                                                            \
        if (at < 0)                                                                                                    \
            return NV_INVALID;                                                                                         \
    } while (0)
#define NEED_PLACE(p)                                                                                                  \
    do {                                                                                                               \
        if (!(p))                                                                                                      \
            return NV_INVALID;                                                                                         \
    } while (0)
#endif

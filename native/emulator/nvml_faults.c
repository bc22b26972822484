/* nvml_faults.c: GPUs that fall ill while programs run, by the file `faults` beside the library.
 *
 * A line for each fault: `lost 1` (GPU 1 answers nothing but GPU_IS_LOST) or `xid 0 79` (an event to its listeners, and
 * a recovery action as long as the line stands, where that XID wants one). A GPU is well when its lines are gone, as
 * after a reset. The file is read again when it changed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "nvml.h"

#define XIDS 64
#define POLL_NS 20000000
enum { XID_EVENT = 8, RECOVERY_FIELD = 230, RESET_GPU = 1, UNSIGNED_INT = 1 };

typedef struct {
    struct timespec changed;
    long size;
    ino_t inode;
} stamp;
typedef struct {
    bool lost[EMU_GPUS];
    int xids;
    struct {
        int gpu;
        uint64_t number;
    } xid[XIDS];
} faults;
typedef struct {
    bool listens[EMU_GPUS];
    faults seen;
} event_set;
typedef struct {
    nv_device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event;
typedef struct {
    unsigned id, scope;
    long long time, latency;
    unsigned type;
    int result;
    union {
        double real;
        unsigned number;
        unsigned long long large;
    } value;
} field;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static stamp known_stamp;
static faults known;

static void parse(FILE *file)
{
    char line[128];
    while (fgets(line, sizeof line, file)) {
        int gpu;
        unsigned long long number;
        if (sscanf(line, "lost %d", &gpu) == 1 && gpu >= 0 && gpu < EMU_GPUS)
            known.lost[gpu] = true;
        else if (sscanf(line, "xid %d %llu", &gpu, &number) == 2 && gpu >= 0 && gpu < EMU_GPUS && known.xids < XIDS) {
            known.xid[known.xids].gpu = gpu;
            known.xid[known.xids++].number = number;
        }
    }
}

static faults now(void)
{
    char path[512];
    struct stat found;
    stamp fresh = {{0, 0}, 0, 0};
    snprintf(path, sizeof path, "%s/faults", emu_conf()->directory);
    if (stat(path, &found) == 0)
        fresh = (stamp){found.st_mtim, found.st_size, found.st_ino};
    pthread_mutex_lock(&lock);
    if (memcmp(&fresh, &known_stamp, sizeof fresh)) {
        memset(&known, 0, sizeof known);
        known_stamp = fresh;
        FILE *file = fopen(path, "re");
        if (file) {
            parse(file);
            fclose(file);
        }
    }
    faults copy = known;
    pthread_mutex_unlock(&lock);
    return copy;
}

bool nv_lost(int gpu) { return now().lost[gpu]; }

/* Which XIDs leave a GPU that only a reset mends: all but those that a program causes or that end with it.
 * Source: NVIDIA, XID errors, immediate action RESTART_APP. */
static bool wants_reset(uint64_t xid)
{
    static const uint64_t of_programs[] = {13, 31, 43, 45, 68, 94, 109};
    for (size_t i = 0; i < sizeof of_programs / sizeof *of_programs; i++)
        if (of_programs[i] == xid)
            return false;
    return true;
}

API int nvmlDeviceGetFieldValues(nv_device d, int count, field *values)
{
    NEED_DEVICE(d);
    NEED_PLACE(values);
    faults current = now();
    for (int i = 0; i < count; i++) {
        values[i].result = NV_NOT_SUPPORTED;
        if (values[i].id != RECOVERY_FIELD || emu_conf()->fault.nvml_recovery_unsupported)
            continue;
        values[i].result = NV_OK;
        values[i].type = UNSIGNED_INT;
        values[i].value.large = 0;
        for (int k = 0; k < current.xids; k++)
            if (current.xid[k].gpu == at && wants_reset(current.xid[k].number))
                values[i].value.number = RESET_GPU;
    }
    return NV_OK;
}

API int nvmlDeviceGetSupportedEventTypes(nv_device d, unsigned long long *types)
{
    NEED_DEVICE(d);
    NEED_PLACE(types);
    *types = XID_EVENT;
    return NV_OK;
}

API int nvmlEventSetCreate(event_set **out)
{
    NEED_PLACE(out);
    *out = calloc(1, sizeof **out);
    if (!*out)
        return NV_UNKNOWN;
    (*out)->seen = now(); /* what was there before is no event */
    return NV_OK;
}

API int nvmlEventSetFree(event_set *set)
{
    NEED_PLACE(set);
    free(set);
    return NV_OK;
}

API int nvmlDeviceRegisterEvents(nv_device d, unsigned long long types, event_set *set)
{
    NEED_DEVICE(d);
    NEED_PLACE(set);
    set->listens[at] = types & XID_EVENT;
    return NV_OK;
}

static int times(const faults *of, int gpu, uint64_t number)
{
    int count = 0;
    for (int i = 0; i < of->xids; i++)
        count += of->xid[i].gpu == gpu && of->xid[i].number == number;
    return count;
}

/* The first XID that stands more often than when the set looked last. */
static bool next(event_set *set, event *out)
{
    faults current = now();
    for (int i = 0; i < current.xids; i++) {
        int gpu = current.xid[i].gpu;
        uint64_t number = current.xid[i].number;
        if (!set->listens[gpu] || times(&current, gpu, number) <= times(&set->seen, gpu, number))
            continue;
        set->seen.xid[set->seen.xids % XIDS].gpu = gpu;
        set->seen.xid[set->seen.xids % XIDS].number = number;
        set->seen.xids += set->seen.xids < XIDS;
        *out = (event){&emu_conf()->gpu[gpu], XID_EVENT, number, ~0u, ~0u};
        return true;
    }
    for (int i = set->seen.xids - 1; i >= 0; i--) /* lines that went may come again */
        if (times(&set->seen, set->seen.xid[i].gpu, set->seen.xid[i].number) >
            times(&current, set->seen.xid[i].gpu, set->seen.xid[i].number))
            set->seen.xid[i] = set->seen.xid[--set->seen.xids];
    return false;
}

API int nvmlEventSetWait_v2(event_set *set, event *out, unsigned milliseconds)
{
    NEED_PLACE(set && out);
    struct timespec nap = {0, POLL_NS};
    for (long long left = milliseconds * 1000000ll;; left -= POLL_NS) {
        if (next(set, out))
            return NV_OK;
        if (left <= 0)
            return NV_TIMEOUT;
        nanosleep(&nap, NULL);
    }
}

API int nvmlEventSetWait(event_set *set, event *out, unsigned milliseconds)
{
    NEED_PLACE(set && out);
    return nvmlEventSetWait_v2(set, out, milliseconds);
}

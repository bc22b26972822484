/* nvmlshim.c: libnvidia-ml.so.1 leads to the hook that stands for libcuda.so.1.
 *
 * A file has one SONAME, and the hook of a process must be one: one connection, one ledger. So NVML's names have a
 * file of their own that holds nothing but jumps. The hook behind it is the one already loaded in this namespace; else
 * the tenant's, which lies in lib/ beside the tenant's configuration.
 */
#include "base/base.h"

#include <dlfcn.h>
#include <string.h>

extern HIDDEN const char *const aliquot_nvml_names[];
static void *hook;

static int absent(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }
static int broken(void) { return NVML_ERROR_LIBRARY_NOT_FOUND; }

static bool is_hook(void *library) { return library && dlsym(library, "aliquot_stats"); }

static void *open_hook(void)
{
    static const char below[] = "lib/libcuda.so.1";
    char path[PATH_BYTES + sizeof below];
    void *found = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (is_hook(found))
        return found;
    conf_path(path);
    char *slash = strrchr(path, '/');
    if (!slash)
        return NULL;
    memcpy(slash + 1, below, sizeof below);
    found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return is_hook(found) ? found : NULL;
}

void *aliquot_resolve(long index)
{
    void *library = __atomic_load_n(&hook, __ATOMIC_ACQUIRE);
    if (!library) {
        library = open_hook();
        __atomic_store_n(&hook, library, __ATOMIC_RELEASE);
    }
    if (!library)
        return (void *)broken; /* not kept: the next call looks again */
    void *found = dlsym(library, aliquot_nvml_names[index]);
    if (!found)
        found = (void *)absent;
    __atomic_store_n(&aliquot_real[index], found, __ATOMIC_RELEASE);
    return found;
}

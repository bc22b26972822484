/* preload.c: dlsym and dlvsym, which matter when this library is preloaded.
 *
 * Only names of the driver are looked at; the true function answers first, and its answer is replaced by our entry of
 * the same name. Everything else is passed on by a tail jump in entry.S, so that RTLD_NEXT keeps its meaning. Where we
 * substitute the driver's file, the answer is our own already and nothing changes.
 */
#include "base/base.h"

#include <dlfcn.h>
#include <string.h>

static bool of_driver(const char *name)
{
    return name && ((name[0] == 'c' && name[1] == 'u') || strncmp(name, "nvml", 4) == 0);
}

static int find(const char *name)
{
    int low = 0, high = ALIQUOT_SYMBOL_COUNT;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(aliquot_symbols[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < ALIQUOT_SYMBOL_COUNT && strcmp(aliquot_symbols[low].name, name) == 0 ? low : -1;
}

/* Our entry for `found`, which is `name` as the true dlsym sees it; NULL: leave it. */
static void *ours(void *found, const char *name)
{
    int symbol = find(name);
    if (!found || symbol < 0 || !aliquot_symbols[symbol].hook || conf_load() != MODE_HELD)
        return NULL;
    Dl_info info, self;
    if (!dladdr(found, &info) || !dladdr((void *)of_driver, &self) || info.dli_fbase == self.dli_fbase)
        return NULL;
    /* A library that merely begins its names like the driver (cudart, cuBLAS) has none of these exact names. */
    return found == real_symbol(symbol) ? aliquot_symbols[symbol].hook : NULL;
}

void *aliquot_dlsym_filter(void *handle, const char *name)
{
    true_dl_find();
    if (!of_driver(name))
        return NULL;
    return ours(aliquot_true_dlsym(handle, name), name);
}

void *aliquot_dlvsym_filter(void *handle, const char *name, const char *version)
{
    true_dl_find();
    if (!of_driver(name))
        return NULL;
    return ours(aliquot_true_dlvsym(handle, name, version), name);
}
